"""Every family that the MLX backend reads gives the log-probs of transformers; what would not is refused."""

import json

import numpy as np
import pytest

from steadyrl.core.errors import CheckpointError, ModelError
from steadyrl.core.sections import ModelSection
from tests import needs
from tests.rounding import NATS

torch = needs.package("torch")
transformers = needs.package("transformers")
needs.skip_without_packages("mlx", "mlx_lm", extra="mlx")

import mlx.core as mx  # noqa: E402
from mlx_lm.utils import load_model as load_with_defaults  # noqa: E402

from steadyrl.backends.huggingface.portable import make_probe, spell_twice, write_probe  # noqa: E402
from steadyrl.backends.mlx.model import FAMILIES, load_model  # noqa: E402

mx.set_default_device(mx.cpu)  # on a Mac too: what is compared is the arithmetic, in full float32

SHAPE = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "eos_token_id": 1, "bos_token_id": None,
    "pad_token_id": 0,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
OTHER_BASE = {"rope_type": "default", "rope_theta": 3e4}
KINDS = {
    "llama": {"model_type": "llama", "rope_parameters": OTHER_BASE},
    "llama, long": {"model_type": "llama", "rope_parameters": LLAMA3, "tie_word_embeddings": True},
    "llama, linear": {"model_type": "llama", "rope_parameters": {**OTHER_BASE, "rope_type": "linear", "factor": 2.0}},
    "llama, biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "head_dim": 16},
    "mistral": {"model_type": "mistral", "rope_parameters": OTHER_BASE, "sliding_window": None},
    "olmo2": {"model_type": "olmo2", "rope_parameters": OTHER_BASE},
    "phi3": {"model_type": "phi3", "rope_parameters": OTHER_BASE},
    "qwen2": {"model_type": "qwen2", "rope_parameters": OTHER_BASE},
    "qwen2, yarn": {"model_type": "qwen2", "rope_parameters": YARN, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "rope_parameters": OTHER_BASE, "head_dim": 16},
    "smollm3": {"model_type": "smollm3", "rope_parameters": OTHER_BASE},
}


@pytest.fixture
def written(tiny_models, tmp_path):
    """Return a function that writes a random model of a kind, far from uniform, and returns (folder, model)."""

    def write(model_type, **settings):
        tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_models["llama"])
        config = transformers.AutoConfig.for_model(model_type, vocab_size=len(tokenizer), **{**SHAPE, **settings})
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = transformers.AutoModelForCausalLM.from_config(config).eval()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.copy_(torch.randn_like(parameter) * 0.2 + (parameter.ndim == 1))
        model.save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        return tmp_path, model

    return write


def logprobs(found):
    logits = np.array(found.astype(mx.float32), np.float64)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.parametrize("kind", KINDS)
def test_log_probs_are_those_of_transformers(written, kind):
    folder, model = written(**KINDS[kind])
    ids = np.random.default_rng(0).integers(4, 60, (2, 200))
    with torch.no_grad():
        expected = model(torch.from_numpy(ids)).logits.double().log_softmax(-1).numpy()
    loaded = load_model(ModelSection(path=str(folder)), mx.float32)
    found = logprobs(loaded.logits(loaded.net.model(mx.array(ids))))
    assert np.abs(found - expected).max() <= NATS
    assert expected.std() > 0.5, "far from uniform, so that a wrong position shows"


def test_every_family_has_such_a_test():
    assert {kind["model_type"] for kind in KINDS.values()} == set(FAMILIES)


def test_without_the_older_spelling_mlx_lm_reads_another_model(written):
    """Why ``older_spelling`` is passed; the day this fails it can go. Anyone reads a folder spelled twice right."""
    folder, model = written(**KINDS["llama"])
    ids = np.random.default_rng(0).integers(4, 60, (1, 100))
    with torch.no_grad():
        expected = model(torch.from_numpy(ids)).logits.double().log_softmax(-1).numpy()

    def gap():
        return np.abs(logprobs(load_with_defaults(folder)[0](mx.array(ids))) - expected).max()

    assert gap() > 0.1
    spell_twice(folder)
    assert gap() <= NATS
    again = transformers.AutoConfig.from_pretrained(folder)
    assert again.rope_parameters == model.config.rope_parameters


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_type": "gemma", "head_dim": 8}, r"type 'gemma', which is not proved equal .* set backend\.name"),
        ({"model_type": "llama", "hidden_act": "gelu"}, "hidden_act = 'gelu', expected 'silu'"),
        ({"model_type": "llama", "rope_parameters": {**YARN, "rope_type": "dynamic"}}, "rope_type = 'dynamic'"),
        ({"model_type": "qwen2", "rope_parameters": {**YARN, "attention_factor": 1.0}}, r"attention_factor = 1\.0"),
    ],
)
def test_what_would_be_computed_in_another_way_is_refused(written, settings, message):
    folder, _ = written(**settings)
    with pytest.raises(ModelError, match=message):
        load_model(ModelSection(path=str(folder)), mx.float32)


def test_a_text_may_not_be_longer_than_the_window_of_attention(written):
    folder, _ = written("mistral", sliding_window=48)
    assert load_model(ModelSection(path=str(folder)), mx.float32).context == 48


def test_no_id_reaches_past_the_embedding_where_mlx_would_read_whatever_lies_there(written):
    """MLX checks no index: a word past the last row has whatever vector stands behind it in memory."""
    folder, model = written("llama")
    loaded = load_model(ModelSection(path=str(folder)), mx.float32)
    loaded.tokenizer.hf.add_tokens([transformers.AddedToken("<past>", special=True)])
    with pytest.raises(ModelError, match=r"holds the token '<past>'.*embedding has \d+ rows; leave the token out"):
        loaded.tokenizer.encode_prompt("hello <past>")
    model.resize_token_embeddings(20)
    model.save_pretrained(folder)
    with pytest.raises(ModelError, match="knows words with ids up to 59, and the model's embedding has 20 rows"):
        load_model(ModelSection(path=str(folder)), mx.float32)


def test_every_end_of_the_generation_config_ends_a_completion(written):
    folder, _ = written("llama")
    file = folder / "generation_config.json"
    file.write_text(json.dumps({"eos_token_id": [1, 9]}))
    tokenizer = load_model(ModelSection(path=str(folder)), mx.float32).tokenizer
    assert set(tokenizer.end_ids) >= {1, 9} and tokenizer.end_id == tokenizer.end_ids[0]


@pytest.mark.parametrize("damage", ["cut short", "a weight is missing"])
def test_a_damaged_folder_is_one_line(written, damage):
    folder, _ = written("llama")
    file = folder / "model.safetensors"
    if damage == "cut short":
        file.write_bytes(file.read_bytes()[:-1000])
    else:
        weights = mx.load(str(file))
        mx.eval(weights)
        del weights["model.norm.weight"]
        mx.save_safetensors(str(file), weights)
    with pytest.raises(ModelError, match=r"cannot be loaded|damaged or cut short"):
        load_model(ModelSection(path=str(folder)), mx.float32)


@pytest.mark.parametrize("section", [{}, {"lora_rank": 2}])
def test_a_model_that_is_not_what_was_saved_is_refused(written, section):
    from steadyrl.algorithms import grpo
    from steadyrl.backends.mlx.backend import MlxBackend
    from steadyrl.core import config

    folder, model = written("llama")

    def measure(tokens):
        with torch.no_grad():
            logp = model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0, :-1].log_softmax(-1)
        return logp.gather(1, torch.from_numpy(tokens[1:, None].astype(np.int64)))[:, 0].double().numpy()

    def opened():
        settings = {"model": {"path": str(folder), **section}, "backend": {"name": "mlx"}, "rewards": {"length": 1.0}}
        return MlxBackend(config.resolve(settings), grpo.build(grpo.Settings()))

    write_probe(folder, make_probe(60, 512, measure, "fp32"))
    opened()
    (folder / "config.json").write_text((folder / "config.json").read_text().replace("10000.0", "30000.0"))
    with pytest.raises(CheckpointError, match=r"log-probs are .* nats from those that were saved .* read in another"):
        opened()
