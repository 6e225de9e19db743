"""Moments in 8 bits and base weights in 4: what they compute, that a resume is exact, and where they are refused."""

import pytest

from steadyrl.core import config
from steadyrl.core.errors import ConfigError
from tests import needs
from tests.backends.ppo_batch import ALGORITHM, NARROW, scored_batch, step, train
from tests.rounding import NATS

torch = needs.package("torch")
needs.skip_without_packages("transformers", "peft", extra="torch")

from steadyrl.backends.torch.backend import TorchBackend  # noqa: E402
from steadyrl.backends.torch.load.quantized import adam  # noqa: E402

# peft reads a property of the model that transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
EIGHT, FOUR = ("backend.args.optimizer_bits=8",), ("backend.args.quantize=nf4", "model.lora_rank=4")


def settings(folder, *overrides):
    own = {
        "model": {"path": str(folder)},
        "backend": {"device": "cpu", "threads": 1},
        "rewards": {"length": 1.0},
    }
    return config.resolve(own, overrides)


def opened(folder, *overrides):
    needs.skip_without_packages("bitsandbytes", "accelerate", extra="quantized")
    return TorchBackend(settings(folder, *overrides), ALGORITHM)


def matrices(backend):
    return {name: p.detach().clone() for name, p in backend.trainable().items()}


def test_eight_bits_take_nearly_the_steps_of_thirty_two():
    needs.skip_without_packages("bitsandbytes", extra="quantized")
    start, target = torch.randn(64, 128, generator=torch.Generator().manual_seed(0)), torch.zeros(64, 128)
    ends = {}
    for bits in (32, 8):
        weight = torch.nn.Parameter(start.clone())
        optimizer = adam([weight], weight.device, bits, 0.0)
        optimizer.param_groups[0]["lr"] = 0.01
        for _ in range(20):
            weight.grad = 2 * (weight.detach() - target)
            optimizer.step()
        ends[bits] = weight.detach()
    moved = (ends[32] - start).norm()
    assert 0 < (ends[8] - ends[32]).norm() < 0.05 * moved
    assert {x.dtype for x in optimizer.state[weight].values() if isinstance(x, torch.Tensor) and x.numel() > 4096} == {
        torch.uint8
    }


@pytest.mark.parametrize("overrides", [EIGHT, FOUR, (*EIGHT, *FOUR)])
def test_saved_and_loaded_it_goes_on_as_if_it_had_not_stopped(tiny_models, tmp_path, overrides):
    stopped = opened(tiny_models["llama"], *overrides)
    train(stopped, range(2))
    stopped.save(tmp_path)
    resumed = opened(tiny_models["llama"], *overrides)
    resumed.load(tmp_path)
    for backend in (stopped, resumed):
        train(backend, range(2, 4))
    for one, other in zip(matrices(stopped).values(), matrices(resumed).values(), strict=True):
        assert torch.equal(one, other)
    files = {file.suffix for file in tmp_path.rglob("*") if file.is_file()}
    assert files <= {".safetensors", ".json", ".jinja", ".md", ".txt"}


def test_four_bits_are_sampled_scored_and_trained_alike(tiny_models):
    backend, whole = opened(tiny_models["llama"], *FOUR), opened(tiny_models["llama"], FOUR[1])
    before = matrices(backend)
    batch = scored_batch(backend, NARROW)
    seen = batch.completion_mask
    assert abs(batch.old.logprobs - batch.sampling_logprobs)[seen].max() < NATS
    assert abs(whole.score(batch, NARROW, ALGORITHM.needs).logprobs - batch.old.logprobs)[seen].max() > 0.01
    assert step(backend, batch)["grad_norm"][0] > 0.1
    assert all(not torch.equal(before[name], now) for name, now in matrices(backend).items() if "lora_B" in name)
    assert backend.describe()["parameters"] == whole.describe()["parameters"]
    kept = {p.dtype for name, p in backend.model.named_parameters() if "base_layer" in name}
    assert kept == {torch.uint8}


def test_four_bits_without_an_adapter_are_refused(tiny_models):
    with pytest.raises(ConfigError, match=r"'nf4' keeps weights that cannot.*set model\.lora_rank"):
        settings(tiny_models["llama"], FOUR[0])


def test_ranks_refuse_what_saves_memory_on_one_device(tiny_models):
    for override in (EIGHT[0], FOUR[0], "backend.args.reference=cpu"):
        with pytest.raises(ConfigError, match=r"work with backend\.name = 'torch' only; more ranks"):
            settings(tiny_models["llama"], "backend.name=fsdp", override)


def test_a_device_that_has_none_is_refused():
    with pytest.raises(ConfigError, match="optimizer_bits = 8 works on cpu, cuda, xpu; got the device 'mps'; set 32"):
        adam([], torch.device("mps"), 8, 0.0)
