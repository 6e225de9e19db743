"""Exported policies of MLX runs are what transformers and peft load."""

import numpy as np
import pytest

from steadyrl.algorithms import grpo
from steadyrl.core import config, plugins
from steadyrl.core.errors import CheckpointError, ModelError
from tests import needs
from tests.rounding import NATS

torch = needs.package("torch")
transformers = needs.package("transformers")
needs.skip_without_packages("peft", extra="torch")
needs.skip_without_packages("mlx", "mlx_lm", extra="mlx")
mx = needs.package("mlx.core", extra="mlx")

from steadyrl.backends.mlx.backend import MlxBackend  # noqa: E402

# peft reads a property of the model that transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")

TOKENS = np.array([5, 9, 17, 30, 8, 41, 22, 6], np.int32)


def checkpointed(folder, model, rank):
    """Save a policy away from its start; return the config, the log-probs of some tokens, and the backend."""
    settings = {"model": {"path": str(model), "lora_rank": rank}, "rewards": {"length": 1.0}}
    found = config.resolve(settings, ["backend.name=mlx", "backend.device=cpu"])
    backend = MlxBackend(found, grpo.build(grpo.Settings()))
    noise = np.random.default_rng(0)
    backend._net.adopt({name: x + mx.array(noise.normal(0, 0.1, x.shape)) for name, x in backend._net.params.items()})
    backend.save(folder)
    return found, backend._net.measure(TOKENS), backend


def logprobs(model):
    ids = torch.from_numpy(TOKENS.astype(np.int64))[None]
    with torch.no_grad():
        logp = model(ids).logits[0, :-1].float().log_softmax(-1)
    return logp.gather(1, ids[0, 1:, None])[:, 0].numpy()


@pytest.mark.parametrize(("rank", "merge"), [(0, False), (4, True), (4, False)], ids=["whole", "merged", "adapter"])
def test_an_export_loads_in_transformers_with_equal_logprobs(tiny_models, tmp_path, rank, merge):
    settings, expected, _ = checkpointed(tmp_path / "saved", tiny_models["llama"], rank)
    folder = tmp_path / "export"
    folder.mkdir()
    record = plugins.load("exporter", "mlx")(settings, tmp_path / "saved", folder, merge)
    adapter = rank and not merge
    reader = needs.package("peft").AutoPeftModelForCausalLM if adapter else transformers.AutoModelForCausalLM
    np.testing.assert_allclose(logprobs(reader.from_pretrained(folder).eval()), expected, atol=NATS)
    assert record["kind"] == ("adapter" if adapter else "weights")
    assert transformers.GenerationConfig.from_pretrained(folder).eos_token_id == [1]
    untrained = transformers.AutoModelForCausalLM.from_pretrained(tiny_models["llama"]).eval()
    assert np.abs(logprobs(untrained) - expected).max() > 0.01


def test_an_adapter_that_peft_wrote_is_read(tiny_models, tmp_path):
    _, _, backend = checkpointed(tmp_path / "saved", tiny_models["llama"], 4)
    model = needs.package("peft").AutoPeftModelForCausalLM.from_pretrained(tmp_path / "saved" / "policy").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.mul_(-2)
    model.save_pretrained(tmp_path / "saved" / "policy")
    (tmp_path / "saved" / "policy" / "probe.json").unlink()
    backend.load(tmp_path / "saved")
    np.testing.assert_allclose(backend._net.measure(TOKENS), logprobs(model), atol=NATS)


def test_a_damaged_checkpoint_is_not_exported(tiny_models, tmp_path):
    settings, _, _ = checkpointed(tmp_path / "saved", tiny_models["llama"], 4)
    file = tmp_path / "saved" / "policy" / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="is missing or damaged"):
        plugins.load("exporter", "mlx")(settings, tmp_path / "saved", tmp_path, True)


def test_nothing_is_merged_into_quantised_weights(tiny_models, tmp_path):
    settings, _, _ = checkpointed(tmp_path / "saved", tiny_models["llama"], 4)
    config_file = tiny_models["llama"] / "config.json"
    text = config_file.read_text()
    try:
        config_file.write_text(text.replace("{", '{"quantization_config": {"bits": 4, "quant_method": "mlx"},', 1))
        with pytest.raises(ModelError, match="no adapter can be merged into"):
            plugins.load("exporter", "mlx")(settings, tmp_path / "saved", tmp_path, True)
    finally:
        config_file.write_text(text)
