"""What a GPU asks of the code: no tensor of the CPU among those of the device, and no waiting in a decoding step."""

from dataclasses import replace
from typing import ClassVar

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
from steadyrl.backends.torch.graph import StepState  # noqa: E402
from tests.backends.torch.elsewhere import Elsewhere, MixedDevicesError, move, pretended  # noqa: E402
from tests.rounding import NATS  # noqa: E402

# peft reads a property of the model that transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
LONG = replace(PLAIN, max_new_tokens=20)


class Uncaptured:
    """Makes the steps that a CUDA graph holds, one by one, and counts what made the host wait in each."""

    steps: ClassVar = []
    waits: ClassVar = []

    def __init__(self, decoder):
        self._decoder, self._cache = decoder, None
        self.prefill = decoder.prefill

    def step(self, tokens, cache):
        before = len(Uncaptured.waits)
        if self._cache is None or self._cache is not cache.keys:
            self._cache, self._state = cache.keys, StepState(cache, cache.keys.shape[3])
        cache.places = cache.places + 1
        cache.used += 1
        found = self._state.step(self._decoder, tokens, cache)
        assert len(Uncaptured.waits) == before, "a graph holds nothing that waits"
        Uncaptured.steps.append(before)
        return found


@pytest.fixture
def pair(tiny_models, monkeypatch):
    """Return a function that opens two equal backends, one of them on the device."""
    monkeypatch.setattr(sampler, "GraphDecoder", Uncaptured)

    def opened(*overrides):
        settings = {
            "model": {"path": str(tiny_models["llama"])},
            "backend": {"device": "cpu", "threads": 1},
            "rewards": {"length": 1.0},
        }
        return [TorchBackend(config.resolve(settings, overrides), ALGORITHM) for _ in range(2)]

    return opened


ON_CPU = "backend.args.reference=cpu"


@pytest.mark.parametrize(
    "overrides", [(ON_CPU,), ("model.lora_rank=4",), ("backend.args.gradient_checkpointing=true",)]
)
def test_sampling_scoring_and_updates_stay_on_the_device(pair, overrides):
    here, there = pair(*overrides)
    batches, stats = [], []
    batches.append(scored_batch(here, NARROW, samples=2))
    stats.append(step(here, batches[0]))
    with pretended():
        move(there)
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


def test_a_reference_that_is_kept_on_the_cpu_is_on_the_device_while_it_scores_only(pair):
    expected = scored_batch(pair()[0], NARROW).old.ref_logprobs
    _, there = pair(ON_CPU)
    model, seen = there.reference.model, []
    before = {name: p.clone() for name, p in model.named_parameters()}
    read = there.reference.read
    there.reference.read = lambda part: seen.append({id(p): p for p in model.parameters()}) or read(part)
    with pretended():
        move(there)
        assert "reference" not in there.describe()["memory"]
        batch = scored_batch(there, NARROW)
    np.testing.assert_allclose(batch.old.ref_logprobs, expected, atol=NATS)
    assert len(seen) == 1
    assert all(isinstance(p, Elsewhere) for p in seen[0].values())
    assert not any(isinstance(p, Elsewhere) for p in model.parameters())
    assert {name: p.tolist() for name, p in model.named_parameters()} == {n: p.tolist() for n, p in before.items()}
    there.reference.read = None
    with pretended():
        there.score(batch, NARROW, ALGORITHM.needs - {"ref_logprobs"})  # nothing is copied where nothing asks for it


@pytest.mark.parametrize(
    ("sampling", "stop"), [(LONG, ()), (replace(NARROW, max_new_tokens=20), ()), (LONG, ("cat", "big"))]
)
def test_the_host_waits_for_the_device_every_few_tokens_only(pair, sampling, stop):
    here, there = pair()
    sampling = replace(sampling, stop=stop)
    prompts = prompts_of(here)
    expected = here.generate(prompts, sampling, range(len(prompts)))
    with pretended() as Uncaptured.waits:
        move(there)
        Uncaptured.steps = []
        found = there.generate(prompts, sampling, range(len(prompts)))
    assert [c.ids.tolist() for c in found] == [c.ids.tolist() for c in expected]
    assert [c.stop_reason for c in found] == [c.stop_reason for c in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=NATS)
        assert len(one.kept_ids or ()) == len(other.kept_ids or ())
        for ids, same in zip(one.kept_ids or (), other.kept_ids or (), strict=True):
            np.testing.assert_array_equal(ids, same)
    every = sampler.LOOK_EVERY["cuda"]
    waited = [t for t, (a, b) in enumerate(zip(Uncaptured.steps, Uncaptured.steps[1:], strict=False)) if a != b]
    assert len(Uncaptured.steps) > every
    assert all((t + 2) % every == 0 for t in waited), f"waited after the tokens {waited}"


def test_a_tensor_of_the_cpu_among_those_of_the_device_is_noticed():
    with pretended() as waits:
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
        assert waits == []
        assert there.sum().item() == 0.0
        assert not bool(there.any())
        assert there[there > 0].tolist() == []
        assert len(waits) == 4, "a number, a truth, an index of unknown size, a list"
