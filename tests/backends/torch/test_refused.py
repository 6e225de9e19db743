import json
import logging
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from steadyrl.core.errors import CheckpointError, ConfigError, ModelError
from steadyrl.core.sections import ModelSection
from tests import needs


@pytest.mark.parametrize("name", ["meta", "nowhere", "cuda:99", "", "cpu:x"])
def test_a_device_that_computes_nothing_is_refused_in_one_line(name):
    needs.package("torch")
    from steadyrl.backends.torch.device import chosen_device

    with pytest.raises(ConfigError, match="cannot be used"):
        chosen_device(name)


@pytest.mark.parametrize("name", ["num_hidden_layers", "vocab_size", "hidden_size", "num_attention_heads"])
def test_a_shape_that_no_model_has_is_refused_before_it_is_built(name):
    needs.package("torch")
    from steadyrl.backends.huggingface.folder import _check_numbers

    shape = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    _check_numbers(SimpleNamespace(**shape), "model")
    with pytest.raises(ModelError, match=f"{name} = 1000000000000; expected a number up to"):
        _check_numbers(SimpleNamespace(**{**shape, name: 10**12}), "model")


@pytest.mark.parametrize(
    ("files", "opened", "told"),
    [
        (("m.gguf",), "m.gguf", "GGUF is not read; expected the folder"),
        (("m.gguf",), "", "GGUF is not read; expected the folder"),
        (("model.safetensors",), "", "it has no config.json"),
        (("config.json", "model.safetensors"), "", "holds no tokenizer: expected tokenizer.json"),
        (("config.json", "pytorch_model.bin"), "", "pytorch_model.bin is not read, for such a file can run code: if"),
        (
            ("config.json", "model-00001-of-00002.safetensors"),
            "",
            "or model.safetensors.index.json, which says what mod",
        ),
        (("config.json", "model.safetensors", "spiece.model"), "", "there is a tokenizer"),
    ],
)
def test_a_folder_without_all_of_a_model_is_refused_for_what_it_lacks(tmp_path, files, opened, told):
    needs.package("torch")
    from steadyrl.backends.huggingface.folder import check_files

    for name in files:
        (tmp_path / name).write_text("{}")
    if told == "there is a tokenizer":
        check_files(str(tmp_path))
        return
    with pytest.raises(ModelError, match=told):
        check_files(str(tmp_path / opened))


@pytest.fixture
def model(tiny_models, tmp_path):
    """Return a copy of a tiny model's folder."""
    return shutil.copytree(tiny_models["llama"], tmp_path / "model")


def said(folder):
    """Return the one line in which a folder is refused."""
    from steadyrl.backends.torch.load.model import load_model, split_head

    with pytest.raises(ModelError) as caught:
        split_head(load_model(ModelSection(path=str(folder)), needs.package("torch").device("cpu"))[0])
    return str(caught.value)


def edit(file, **changes):
    file.write_text(json.dumps({**(json.loads(file.read_text()) if file.is_file() else {}), **changes}))


def test_an_adapter_is_refused_alone_and_beside_a_whole_model(model):
    edit(model / "adapter_config.json", base_model_name_or_path="/nowhere", peft_type="LORA")
    assert "holds an adapter" in said(model)
    (model / "config.json").unlink()
    assert "`steadyrl export RUN --merge`" in said(model)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "pointer of Git LFS: run `git lfs pull`"),
        (b"", "is damaged or cut short"),
        (None, "is damaged or cut short"),
    ],
)
def test_weights_that_are_not_whole_are_refused_with_their_file(model, content, told):
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8] if content is None else content)
    assert told in (line := said(model)) and "model.safetensors" in line


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model"])
def test_a_pointer_in_the_place_of_the_tokenizer_is_told_from_damaged_json(model, name):
    (model / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    assert f"{name}' is a pointer of Git LFS, and not the file itself; run `git lfs pull`" in said(model)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_folder_or_a_link_to_nowhere_in_the_place_of_the_tokenizer_is_one_line(model, name):
    (model / name).unlink(missing_ok=True)
    (model / name).mkdir()
    assert f"{name}' cannot be read (Is a directory); expected a file" in said(model)
    (model / name).rmdir()
    (model / name).symlink_to(name)
    assert f"{name}' cannot be read (Too many levels of symbolic links); expected a file" in said(model)


def test_shards_without_all_of_their_files_are_refused(model):
    (model / "model.safetensors").rename(model / "model-00001-of-00002.safetensors")
    assert "holds no weights: expected model.safetensors" in said(model)
    edit(model / "model.safetensors.index.json", weight_map={"a": "model-00002-of-00002.safetensors"})
    assert "lacks 1 of the 1 files that model.safetensors.index.json names, such as model-00002" in said(model)
    edit(model / "model.safetensors.index.json", weight_map=[])
    assert "has no 'weight_map'" in said(model)


def changed(model, name, change):
    from safetensors.numpy import load_file, save_file

    arrays = load_file(model / "model.safetensors")
    arrays[name] = change(arrays[name])
    save_file(arrays, model / "model.safetensors", metadata={"format": "pt"})


def test_integers_without_what_they_mean_are_refused(model):
    changed(model, "model.norm.weight", lambda array: array.astype(np.int8))
    assert "holds model.norm.weight as I8, and config.json has no quantization_config" in said(model)


def test_weights_that_are_not_numbers_are_refused_as_such(model):
    changed(model, "model.norm.weight", lambda array: np.full_like(array, np.nan))
    assert "are not finite numbers" in said(model)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model_type": "nobodys"}, "this transformers does not know the model_type"),
        ({"architectures": ["BertForMaskedLM"]}, "is a BertForMaskedLM; expected a causal language model"),
        ({"architectures": [5]}, "has architectures = [5]; expected names of classes"),
        ({"architectures": 5}, "has architectures = 5; expected names of classes"),
        ({"hidden_size": 64}, "its weights have other shapes than config.json says"),
        ({"pad_token_id": 60}, "has a pad_token_id that is no row of the embedding"),
        ({"max_position_embeddings": -1}, "gives positions for -1 tokens"),
        ({"rope_parameters": {"rope_type": "other", "rope_theta": 1e4}}, "transformers looked for 'other'"),
    ],
)
def test_a_config_that_does_not_fit_is_refused_in_plain_words(model, changes, told):
    edit(model / "config.json", **changes)
    line = said(model)
    assert told in line and "AutoModel" not in line


def test_a_model_that_is_not_causal_is_refused_without_the_names_of_classes():
    needs.package("transformers")
    from steadyrl.backends.huggingface.folder import reading

    with pytest.raises(ModelError, match="transformers knows no causal language model of this type"), reading("m"):
        raise ValueError("Unrecognized configuration class <T5Config> for this kind of AutoModel: AutoModelForCausalLM")


@pytest.mark.parametrize(
    "changes",
    [
        {"_attn_implementation": "flash_attention_2"},
        {"attn_implementation": "kernels-community/flash-attn3"},
        {"return_dict": False},
    ],
)
def test_how_the_author_of_a_folder_computed_is_no_part_of_the_model(model, changes):
    from steadyrl.backends.torch.load.model import load_model, split_head

    edit(model / "config.json", **changes)
    found = load_model(ModelSection(path=str(model)), needs.package("torch").device("cpu"))[0]
    split_head(found)
    assert found.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("end", [5000, -1, "</s>", 1.5, [[1]], [True]])
def test_an_end_that_is_no_token_of_the_model_is_refused(model, end):
    edit(model / "generation_config.json", eos_token_id=end)
    assert "which is no id below 60, the rows of its embedding" in said(model)


def test_of_several_ends_those_without_a_row_are_left_out(model):
    from steadyrl.backends.torch.load.model import load_model

    edit(model / "generation_config.json", eos_token_id=[1, 5000])
    assert load_model(ModelSection(path=str(model)), needs.package("torch").device("cpu"))[1].end_ids == (1,)


def test_weights_for_which_config_has_no_place_are_told(model, caplog):
    from steadyrl.backends.torch.load.model import load_model

    edit(model / "config.json", num_hidden_layers=1)
    with caplog.at_level(logging.WARNING):
        load_model(ModelSection(path=str(model)), needs.package("torch").device("cpu"))
    assert "9 weights are left out, for config.json has no place for them (model.layers.1." in caplog.text


def test_an_output_layer_of_its_own_is_told_where_config_says_that_there_is_none(model, tmp_path, caplog):
    from safetensors.numpy import load_file, save_file

    from steadyrl.backends.torch.load.model import load_model

    def opened():
        caplog.clear()
        return load_model(ModelSection(path=str(model)), needs.package("torch").device("cpu"))[0]

    assert opened().config.tie_word_embeddings and not caplog.text
    arrays = load_file(model / "model.safetensors")
    arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"][::-1].copy()
    save_file(arrays, model / "model.safetensors", metadata={"format": "pt"})
    found = opened()
    assert "the weights hold an output layer of other numbers than the embedding" in caplog.text
    found.save_pretrained(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["tie_word_embeddings"] is False


def test_a_checkpoint_with_an_adapter_of_another_rank_is_refused(tiny_models, tmp_path):
    from steadyrl.backends.torch.load.model import load_model
    from steadyrl.backends.torch.save import state

    cpu = needs.package("torch").device("cpu")
    needs.package("peft")
    path = str(tiny_models["llama"])
    two, four = (load_model(ModelSection(path=path, lora_rank=rank), cpu)[0] for rank in (2, 4))
    two.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="other adapter matrices than this run trains"):
        state.load_policy(tmp_path, four, lora=True)
