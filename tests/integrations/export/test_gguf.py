"""GGUF files hold what the folder holds, as llama.cpp's reader says, and a Modelfile prompts as in training."""

import json

import numpy as np
import pytest

from steadyrl.backends.huggingface.gguf import in_pairs, write_gguf
from steadyrl.core.errors import ModelError
from steadyrl.integrations.export.model import export
from steadyrl.integrations.export.ollama import chat_template, write_modelfile
from tests import needs

needs.skip_without_packages("gguf", extra="gguf")


def read(file):
    reader = needs.package("gguf", "gguf").GGUFReader(file)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    return reader, tensors


def value(reader, name):
    return reader.fields[name].contents()


def rows_in_pairs(weight, heads):
    """Order rows by hand: of a head with rows 0 1 2 | 3 4 5, which rotate 0 with 3, they are 0 3 1 4 2 5."""
    size = len(weight) // heads
    order = [h * size + half * (size // 2) + i for h in range(heads) for i in range(size // 2) for half in (0, 1)]
    return weight[order]


def test_rows_that_rotate_together_become_neighbours():
    assert in_pairs(np.arange(8)[:, None], 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_the_reader_of_llama_cpp_finds_every_weight(tiny_models, tmp_path, name):
    load_file = needs.package("safetensors.numpy").load_file
    folder, file = tiny_models[name], tmp_path / "model.gguf"
    write_gguf(folder, file, "a model")
    reader, tensors = read(file)
    ours = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    assert len(tensors) == len(ours)
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "mlp.down_proj": "ffn_down"}
    for layer in range(config["num_hidden_layers"]):
        for source, target in names.items():
            expected = ours[f"model.layers.{layer}.{source}.weight"]
            if name == "llama" and target in ("attn_q", "attn_k"):
                expected = rows_in_pairs(expected, {"attn_q": 4, "attn_k": 2}[target])
            np.testing.assert_array_equal(tensors[f"blk.{layer}.{target}.weight"].data, expected)
    np.testing.assert_array_equal(tensors["token_embd.weight"].data, ours["model.embed_tokens.weight"])
    assert ("output.weight" in tensors) == (not config["tie_word_embeddings"])
    assert value(reader, "general.architecture") == name
    assert value(reader, f"{name}.attention.head_count_kv") == 2
    assert value(reader, f"{name}.context_length") == 64


def test_the_tokenizer_is_written_with_its_ends_and_template(tiny_models, tmp_path):
    tokenizer = needs.package("transformers").AutoTokenizer.from_pretrained(tiny_models["llama"])
    write_gguf(tiny_models["llama"], tmp_path / "model.gguf", "a model")
    reader, _ = read(tmp_path / "model.gguf")
    assert value(reader, "tokenizer.ggml.tokens") == tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    assert value(reader, "tokenizer.ggml.token_type")[:5] == [3, 3, 3, 3, 1]  # four special tokens come first
    assert value(reader, "tokenizer.ggml.eos_token_id") == tokenizer.eos_token_id
    assert value(reader, "tokenizer.ggml.pre") == "gpt-2"
    assert value(reader, "tokenizer.chat_template") == tokenizer.chat_template


def test_bfloat16_is_kept_bit_by_bit(tiny_models, tmp_path):
    torch, transformers = needs.package("torch"), needs.package("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_models["llama"], dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "m")
    transformers.AutoTokenizer.from_pretrained(tiny_models["llama"]).save_pretrained(tmp_path / "m")
    write_gguf(tmp_path / "m", tmp_path / "model.gguf", "a model")
    _, tensors = read(tmp_path / "model.gguf")
    down = model.model.layers[0].mlp.down_proj.weight.detach().view(torch.int16).numpy().view(np.uint8)
    assert tensors["blk.0.ffn_down.weight"].tensor_type.name == "BF16"
    np.testing.assert_array_equal(tensors["blk.0.ffn_down.weight"].data.reshape(down.shape), down)
    norm = model.model.norm.weight.detach().float().numpy()
    np.testing.assert_array_equal(tensors["output_norm.weight"].data, norm)


def test_other_families_and_tokenizers_are_refused_with_the_script_that_knows_more(tiny_models, tmp_path):
    with pytest.raises(ModelError, match=r"'gpt2'.*convert_hf_to_gguf\.py"):
        write_gguf(tiny_models["gpt2"], tmp_path / "model.gguf", "a model")
    from steadyrl.backends.huggingface.folder import BASE_MODEL

    with pytest.raises(ModelError, match=r"splits texts in a way.*convert_hf_to_gguf\.py"):
        write_gguf(BASE_MODEL, tmp_path / "model.gguf", "a model")
    assert not list(tmp_path.iterdir())


def test_an_export_has_the_file_and_a_modelfile_with_the_prompts_and_sampling_of_training(trained, tmp_path):
    run = trained("llama", "model.lora_rank=4", "sampling.stop=['zz']")
    export(run, tmp_path / "out", merge=True, gguf=True)
    _, tensors = read(tmp_path / "out" / "model.gguf")
    ours = needs.package("safetensors.numpy").load_file(tmp_path / "out" / "model.safetensors")
    np.testing.assert_array_equal(tensors["blk.1.ffn_up.weight"].data, ours["model.layers.1.mlp.up_proj.weight"])
    lines = (tmp_path / "out" / "Modelfile").read_text().splitlines()
    assert lines[0] == "FROM ./model.gguf"
    roles = "{{ if .System }}<user>{{ .System }}<eos><user>{{ else }}<user>{{ end }}"  # its template knows no system
    assert lines[1] == f'TEMPLATE "{roles}{{{{ .Prompt }}}}<eos><bot>{{{{ .Response }}}}"'
    for line in (
        "PARAMETER temperature 0.8",
        "PARAMETER num_predict 6",
        'PARAMETER stop "zz"',
        'PARAMETER stop "<eos>"',
    ):
        assert line in lines
    assert "`ollama create NAME -f Modelfile`" in (tmp_path / "out" / "README.md").read_text()


class Chat:
    """A tokenizer with the layout of ChatML, and a default system message."""

    bos_token = None

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        if messages[0]["role"] != "system":
            messages = [{"role": "system", "content": "be kind"}, *messages]
        parts = [f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages]
        return "".join(parts) + "<|im_start|>assistant\n"


def filled(template, system, prompt):
    """Fill in a template of Ollama as its documents say: if, else, end, and three names."""
    head, _, rest = template.partition("{{ if .System }}")
    with_system, _, rest = rest.partition("{{ else }}")
    without, _, tail = rest.partition("{{ end }}")
    text = head + (with_system if system else without) + tail
    return text.replace("{{ .System }}", system).replace("{{ .Prompt }}", prompt).replace("{{ .Response }}", "")


@pytest.mark.parametrize("system", ["", "be brief"])
def test_ollamas_template_writes_what_the_tokenizers_writes(system):
    messages = [{"role": "system", "content": system}] * bool(system) + [{"role": "user", "content": "hello"}]
    expected = Chat().apply_chat_template(messages, False, True)
    assert filled(chat_template(Chat(), {}), system, "hello") == expected


def test_a_policy_without_a_chat_template_is_prompted_with_the_text_alone(trained, tmp_path):
    export(trained("qwen2"), tmp_path / "out")
    record = json.loads((tmp_path / "out" / "export.json").read_text())
    write_modelfile(tmp_path / "out", "model.gguf", record)
    assert 'TEMPLATE "{{ .Prompt }}"' in (tmp_path / "out" / "Modelfile").read_text().splitlines()
