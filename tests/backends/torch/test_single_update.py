"""A step with a single update reads its rows once: scoring them keeps the way back for the update."""

from dataclasses import replace

import numpy as np
import pytest

from steadyrl.algorithms import grpo
from steadyrl.core import config
from steadyrl.core.protocols import Update
from steadyrl.core.types import Problem, Sampling
from steadyrl.loop.rollout.collect import collect
from steadyrl.maths.batch import make_batch, take_rows
from tests import needs

torch = needs.package("torch")
needs.skip_without_packages("transformers", extra="torch")

from steadyrl.backends.torch.backend import TorchBackend  # noqa: E402

TEXTS = ("the", "a red cat sees two small birds", "one dog", "three old", "the big blue bird hears a", "not")
PROBLEMS = [Problem(str(i), text) for i, text in enumerate(TEXTS)]
SAMPLING = Sampling(max_new_tokens=10)
GRPO = grpo.build(grpo.Settings(kl_coef=0.05))


def opened(folder, *overrides):
    settings = {
        "model": {"path": str(folder)},
        "backend": {"device": "cpu", "threads": 1},
        "rewards": {"length": 1.0},
        "sampling": {"max_new_tokens": 10},
        "update": {"epochs": 1, "minibatches": 1},
    }
    return TorchBackend(config.resolve(settings, overrides), GRPO)


def drawn(backend, samples=4):
    groups = collect(backend, PROBLEMS, samples, SAMPLING, (0, 0))
    rewards = iter(np.random.default_rng(0).normal(size=samples * len(PROBLEMS)))
    groups = [replace(g, rollouts=tuple(replace(r, reward=next(rewards)) for r in g.rollouts)) for g in groups]
    return make_batch(groups, backend.tokenizer.pad_id)


def trained(backend, batch):
    """Make one update and return its measurements and the weights after it."""
    batch = GRPO.prepare(replace(batch, old=backend.score(batch, SAMPLING, GRPO.needs)), GRPO.state)
    stats = backend.step(batch, Update(GRPO.loss, SAMPLING, GRPO.needs, 1e-2, 1e9))
    return batch, stats, {name: p.detach().clone() for name, p in backend.trainable().items()}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_update_from_the_pass_of_the_scores_is_that_of_a_pass_of_its_own(tiny_models, precision):
    once, twice = (opened(tiny_models["llama"], f"backend.precision={precision}", f"update.epochs={n}") for n in (1, 2))
    batch = drawn(twice)
    (one, stats, weights), (other, wanted, expected) = trained(once, batch), trained(twice, batch)
    np.testing.assert_array_equal(one.old.logprobs, other.old.logprobs)
    assert stats["grad_norm"][0] == pytest.approx(wanted["grad_norm"][0], rel=1e-6)
    for name, weight in weights.items():
        torch.testing.assert_close(weight, expected[name], rtol=0, atol=1e-7)


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize(("overrides", "passes"), [
    ((), [True]),
    (("update.epochs=2",), [False, True]),
    (("update.minibatches=2",), [False, True]),
])  # fmt: skip
def test_the_policy_reads_the_rows_of_a_single_update_once(tiny_models, rank, overrides, passes):
    backend = opened(tiny_models["llama"], f"model.lora_rank={rank}", *overrides)
    batch, graphs = drawn(backend), []
    backend.split.body.embed_tokens.register_forward_hook(lambda *_: graphs.append(torch.is_grad_enabled()))
    trained(backend, batch)
    of_adapter = [False] if rank else []  # without a copy the reference is read by the same modules
    assert sorted(graphs) == [*of_adapter, *passes]


def test_rows_that_need_several_passes_are_read_for_the_update_again(tiny_models):
    backend = opened(tiny_models["llama"], "backend.args.micro_batch_tokens=64")
    batch, graphs = drawn(backend), []
    backend.split.body.embed_tokens.register_forward_hook(lambda *_: graphs.append(torch.is_grad_enabled()))
    trained(backend, batch)
    assert graphs.count(True) == graphs.count(False) > 1


@pytest.mark.parametrize("change", ["weights", "rows"])
def test_an_update_of_other_weights_or_other_rows_reads_them(tiny_models, change):
    stale, fresh = (opened(tiny_models["llama"]) for _ in range(2))
    batch = GRPO.prepare(replace(drawn(fresh), old=fresh.score(drawn(fresh), SAMPLING, GRPO.needs)), GRPO.state)
    fresh._scored = None
    stale.score(batch, SAMPLING, GRPO.needs)
    if change == "weights":
        for backend in (stale, fresh):
            with backend.moving() as moved:
                for weight in moved.values():
                    weight.mul_(1.1)
    else:
        batch = take_rows(batch, np.arange(5))
    found, wanted = (b.step(batch, Update(GRPO.loss, SAMPLING, GRPO.needs, 1e-2, 1e9)) for b in (stale, fresh))
    assert found == wanted
