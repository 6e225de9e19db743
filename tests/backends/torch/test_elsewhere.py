"""What a GPU asks of the code: no tensor of the CPU among those of the device, and no waiting in a decoding step."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from steadyrl import config
from tests import needs
from tests.backends.ppo_batch import ALGORITHM, NARROW, PLAIN, prompts_of, scored_batch, step

torch = needs.package("torch")
needs.package("transformers")
needs.package("peft")

from steadyrl.backends.torch import sampler  # noqa: E402
from steadyrl.backends.torch.backend import TorchBackend  # noqa: E402
from tests.backends.torch.elsewhere import Elsewhere, MixedDevicesError, pretended  # noqa: E402
from tests.rounding import NATS  # noqa: E402

# peft reads a property of the model that transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
LONG = replace(PLAIN, max_new_tokens=20)
ON_CPU = "backend.args.reference=cpu"


@pytest.fixture
def opened(tiny_models):
    """Return a function that opens a backend on a device, in float32 unless it is asked for another precision."""

    def open_one(device, *overrides):
        settings = {
            "model": {"path": str(tiny_models["llama"])},
            "backend": {"device": device, "threads": 1, "precision": "fp32"},
            "rewards": {"length": 1.0},
        }
        return TorchBackend(config.resolve(settings, overrides), ALGORITHM)

    return open_one


@pytest.mark.parametrize(
    "overrides", [(ON_CPU,), ("model.lora_rank=4",), ("backend.args.gradient_checkpointing=true",)]
)
def test_sampling_scoring_and_updates_stay_on_the_device(opened, overrides):
    here = opened("cpu", *overrides)
    batches, stats = [], []
    batches.append(scored_batch(here, NARROW, samples=2))
    stats.append(step(here, batches[0]))
    with pretended(any_order=False):
        there = opened("cuda", *overrides)
        batches.append(scored_batch(there, NARROW, samples=2))
        stats.append(step(there, batches[1]))
        assert all(isinstance(p, Elsewhere) for p in there.trainable().values())
        assert all(isinstance(x, Elsewhere) for s in there.optimizer.state.values() for x in s.values())
    np.testing.assert_array_equal(batches[1].tokens, batches[0].tokens)
    np.testing.assert_allclose(batches[1].old.logprobs, batches[0].old.logprobs, atol=NATS)
    np.testing.assert_array_equal(batches[1].kept.ids, batches[0].kept.ids)
    assert stats[1]["grad_norm"] == pytest.approx(stats[0]["grad_norm"], rel=1e-4)
    for one, other in zip(here.trainable().values(), there.trainable().values(), strict=True):
        torch.testing.assert_close(other.detach().held, one.detach(), atol=1e-4, rtol=0)


def test_a_reference_that_is_kept_on_the_cpu_is_on_the_device_while_it_scores_only(opened):
    expected = scored_batch(opened("cpu"), NARROW).old.ref_logprobs
    with pretended():
        there = opened("cuda", ON_CPU)
        model, seen = there.reference.model, []
        before = {name: p.clone() for name, p in model.named_parameters()}
        read = there.reference.read
        there.reference.read = lambda part: seen.append({id(p): p for p in model.parameters()}) or read(part)
        assert "reference" not in there.describe()["memory"]
        batch = scored_batch(there, NARROW)
        np.testing.assert_allclose(batch.old.ref_logprobs, expected, atol=NATS)
        assert len(seen) == 1
        assert all(isinstance(p, Elsewhere) for p in seen[0].values())
        assert not any(isinstance(p, Elsewhere) for p in model.parameters())
        assert {n: p.tolist() for n, p in model.named_parameters()} == {n: p.tolist() for n, p in before.items()}
        there.reference.read = None
        there.score(batch, NARROW, ALGORITHM.needs - {"ref_logprobs"})  # nothing is copied where nothing asks for it


@pytest.mark.parametrize(
    ("sampling", "stop"), [(LONG, ()), (replace(NARROW, max_new_tokens=20), ()), (LONG, ("cat", "big"))]
)
def test_the_host_waits_for_the_device_every_few_tokens_only(opened, sampling, stop):
    here = opened("cpu")
    sampling = replace(sampling, stop=stop)
    prompts = prompts_of(here)
    expected = here.generate(prompts, sampling, range(len(prompts)))
    with pretended() as device:
        found = opened("cuda").generate(prompts, sampling, range(len(prompts)))
    assert [c.ids.tolist() for c in found] == [c.ids.tolist() for c in expected]
    assert [c.stop_reason for c in found] == [c.stop_reason for c in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=NATS)
        assert len(one.kept_ids or ()) == len(other.kept_ids or ())
        for ids, same in zip(one.kept_ids or (), other.kept_ids or (), strict=True):
            np.testing.assert_array_equal(ids, same)
    every = sampler.LOOK_EVERY["cuda"]
    steps = device.replays
    waited = [t for t, (a, b) in enumerate(itertools.pairwise(steps)) if a != b]
    assert len(steps) > every
    assert all((t + 2) % every == 0 for t in waited), f"waited after the tokens {waited}"


@pytest.mark.parametrize("overrides", [(), ("model.lora_rank=4",), ("backend.args.weights=bf16",)])
def test_a_run_in_bfloat16_starts_beside_another_and_multiplies_float32_in_tf32_in_its_work_only(opened, overrides):
    with pretended() as device:
        backends = [opened("cuda", "backend.precision=auto", *overrides) for _ in range(2)]
        assert [b.describe()["precision"] for b in backends] == ["bf16", "bf16"]
        assert device.rounded == 0
        for backend in backends:
            step(backend, scored_batch(backend, NARROW))
        assert device.rounded > 0
        before = device.rounded
        assert opened("cuda").describe()["decoder"] == "fast"
        assert device.rounded == before
        assert torch.backends.cuda.matmul.fp32_precision != "tf32"


@pytest.mark.parametrize("overrides", [(), ("model.lora_rank=4",), ("backend.args.weights=bf16",)])
def test_a_run_goes_on_from_its_checkpoint_with_all_its_state_on_the_device(opened, overrides, tmp_path):
    with pretended(any_order=False):
        first, second = (opened("cuda", "backend.precision=auto", *overrides) for _ in range(2))
        step(first, batch := scored_batch(first, NARROW))
        first.save(tmp_path)
        second.load(tmp_path)
        assert second.optimizer.state
        assert all(isinstance(x, Elsewhere) for s in second.optimizer.state.values() for x in s.values())
        for backend in (first, second):
            step(backend, batch)
        for one, other in zip(first.trainable().values(), second.trainable().values(), strict=True):
            assert torch.equal(one, other)


def test_a_tensor_of_the_cpu_among_those_of_the_device_is_noticed():
    with pretended() as device:
        there = torch.zeros(3, 2, device=torch.device("cuda", 0))
        assert there.new_ones(2).device.type == torch.arange(3, device=there.device).device.type == "cuda"
        for mistake in (
            lambda: there + torch.ones(2),
            lambda: there[torch.tensor([0, 1])],
            lambda: there.numpy(),
            lambda: torch.cat([there, torch.ones(1, 2)]),
        ):
            with pytest.raises(MixedDevicesError):
                mistake()
        assert device.waits == []
        assert there.sum().item() == 0.0
        assert not bool(there.any())
        assert there[there > 0].tolist() == []
        assert len(device.waits) == 4, "a number, a truth, an index of unknown size, a list"
