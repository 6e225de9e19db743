from types import SimpleNamespace

import pytest

from steadyrl.errors import ConfigError, ModelError
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
        (("config.json", "model.safetensors", "spiece.model"), "", "there is a tokenizer"),
    ],
)
def test_a_folder_without_all_of_a_model_is_refused_for_what_it_lacks(tmp_path, files, opened, told):
    needs.package("torch")
    from steadyrl.backends.huggingface.folder import _check_files

    for name in files:
        (tmp_path / name).write_text("{}")
    if told == "there is a tokenizer":
        _check_files(str(tmp_path))
        return
    with pytest.raises(ModelError, match=told):
        _check_files(str(tmp_path / opened))
