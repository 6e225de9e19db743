"""A step with a single update: old log-probs come from the update itself, and fewer rows are scored in bfloat16."""

from dataclasses import replace

import numpy as np
import pytest

from steadyrl import config, plugins
from steadyrl.algorithms import grpo, ppo
from steadyrl.batch import make_batch, take_rows
from steadyrl.protocols import OLD_IS_CURRENT
from steadyrl.rollout.collect import collect
from steadyrl.types import Problem, Sampling
from tests import needs
from tests.rounding import NATS

torch = needs.package("torch")
needs.package("transformers")

from steadyrl.backends.torch.backend import TorchBackend  # noqa: E402

TEXTS = ("the", "a red cat sees two small birds", "one dog", "three old", "the big blue bird hears a", "not")
PROBLEMS = [Problem(str(i), text) for i, text in enumerate(TEXTS)]
SAMPLING = Sampling(max_new_tokens=10)
GRPO = grpo.build(grpo.Settings(kl_coef=0.05))
ONE, SEVERAL = GRPO.needs_for(1), GRPO.needs_for(2)


def opened(folder, *overrides):
    settings = {
        "model": {"path": str(folder)},
        "backend": {"device": "cpu", "threads": 1},
        "rewards": {"length": 1.0},
        "sampling": {"max_new_tokens": 10},
    }
    return TorchBackend(config.resolve(settings, overrides), GRPO)


def drawn(backend, samples=4):
    groups = collect(backend, PROBLEMS, samples, SAMPLING, (0, 0))
    rewards = iter(np.random.default_rng(0).normal(size=samples * len(PROBLEMS)))
    groups = [replace(g, rollouts=tuple(replace(r, reward=next(rewards)) for r in g.rollouts)) for g in groups]
    return make_batch(groups, backend.tokenizer.pad_id)


def trained(backend, batch, wanted):
    """Make one update and return its measurements and the weights after it."""
    batch = GRPO.prepare(replace(batch, old=backend.score(batch, SAMPLING, wanted)), GRPO.state)
    stats = backend.step(batch, GRPO.loss, SAMPLING, wanted, 1e-2, 1e9)
    return batch, stats, {name: p.detach().clone() for name, p in backend.trainable().items()}


@pytest.mark.parametrize(
    ("name", "epochs", "spared"),
    [("grpo", 1, True), ("grpo", 2, False), ("rlaif", 1, True), ("raft", 1, True), ("ppo", 1, False)],
)
def test_only_one_update_of_an_algorithm_that_prepares_from_rewards_spares_scores(name, epochs, spared):
    module = plugins.load("algorithm", name)
    assert (OLD_IS_CURRENT in module.build(module.Settings()).needs_for(epochs)) is spared


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_single_update_is_that_of_all_rows_scored_first(tiny_models, precision):
    """The old policy is the one that is differentiated: its ratios are exactly 1, whatever the sampler rounded."""
    override = f"backend.precision={precision}"
    exact, quick = (opened(tiny_models["llama"], override) for _ in range(2))
    batch = drawn(exact)
    whole, stats, weights = trained(exact, batch, SEVERAL)
    part, found, others = trained(quick, batch, ONE)
    if precision == "bf16":
        assert whole.old.rechecked.all() and part.old.rechecked.sum() == 6, "one of four"
    else:
        assert part.old.rechecked.sum() == whole.old.rechecked.sum() == 6
    total, count = found["kl_old_k3"]
    assert total == 0 and count == batch.completion_mask.sum()
    assert found["loss/total"][0] == pytest.approx(stats["loss/total"][0], abs=NATS)
    assert found["grad_norm"][0] == pytest.approx(stats["grad_norm"][0], rel=1e-3)
    moved = {
        name: (weights[name] - p.detach()).abs().max()
        for name, p in opened(tiny_models["llama"]).model.named_parameters()
    }
    for name, weight in others.items():
        assert (weight - weights[name]).abs().max() <= 0.02 * moved[name] + 1e-6, name


def test_a_sampler_further_away_than_rounding_is_not_believed(tiny_models):
    backend = opened(tiny_models["llama"], "backend.precision=bf16")
    batch = drawn(backend)
    near = backend.score(batch, SAMPLING, ONE)
    off = replace(batch, sampling_logprobs=np.where(batch.completion_mask, batch.sampling_logprobs - 0.5, 0.0))
    far = backend.score(off, SAMPLING, ONE)
    assert not near.rechecked.all() and far.rechecked.all()
    mask = batch.completion_mask
    np.testing.assert_allclose(far.logprobs[mask], backend.score(batch, SAMPLING, SEVERAL).logprobs[mask], atol=NATS)


@pytest.mark.parametrize("override", ["update.old_logprobs=recompute", "backend.precision=fp32"])
def test_other_settings_score_as_before(tiny_models, override):
    backend = opened(tiny_models["llama"], "backend.precision=bf16", override)
    batch = drawn(backend)
    one, several = backend.score(batch, SAMPLING, ONE), backend.score(batch, SAMPLING, SEVERAL)
    np.testing.assert_array_equal(one.rechecked, several.rechecked)
    np.testing.assert_allclose(one.logprobs, several.logprobs, atol=NATS)  # read beside other rows, rounded apart


def test_ppo_reads_the_log_probs_of_every_row(tiny_models):
    needed = ppo.build(ppo.Settings()).needs_for(1)
    backend = opened(tiny_models["llama"], "backend.precision=bf16")
    assert backend.score(drawn(backend), SAMPLING, needed - {"values"}).rechecked.all()


@pytest.mark.parametrize("override", ["model.lora_rank=2", "model.lora_rank=0"])
def test_the_policy_reads_the_rows_of_a_single_update_once(tiny_models, override):
    """The pass that scores them is the update's; several updates read them for the scores and for every update."""
    seen = {}
    for wanted in (ONE, SEVERAL):
        backend = opened(tiny_models["llama"], "backend.precision=bf16", override)
        batch, graphs = drawn(backend), []
        backend._parts.body.embed_tokens.register_forward_hook(
            lambda module, inputs, out, graphs=graphs: graphs.append(torch.is_grad_enabled())
        )
        trained(backend, batch, wanted)
        seen[wanted] = graphs
    of_adapter = [False] if "2" in override else []  # without a copy the reference is read by the same modules
    assert sorted(seen[ONE]) == [*of_adapter, True]
    assert sorted(seen[SEVERAL]) == [*of_adapter, False, True]


@pytest.mark.parametrize("change", ["weights", "rows"])
def test_an_update_of_other_weights_or_other_rows_reads_them(tiny_models, change):
    stale, fresh = (opened(tiny_models["llama"]) for _ in range(2))
    batch = GRPO.prepare(replace(drawn(fresh), old=fresh.score(drawn(fresh), SAMPLING, SEVERAL)), GRPO.state)
    stale.score(batch, SAMPLING, ONE)
    if change == "weights":
        for backend in (stale, fresh):
            backend.set_weights(backend.weights() * 1.1)
    else:
        batch = take_rows(batch, np.arange(5))
    found, wanted = (b.step(batch, GRPO.loss, SAMPLING, ONE, 1e-2, 1e9) for b in (stale, fresh))
    assert found == wanted


def test_of_demonstrations_some_rows_are_measured_for_the_log(tiny_models):
    """Nobody sampled them, and one update takes the log-probs from its own pass."""
    batch = drawn(backend := opened(tiny_models["llama"]))
    batch = replace(batch, sampling_logprobs=np.where(batch.completion_mask, np.nan, 0.0).astype(np.float32))
    some, every = backend.score(batch, SAMPLING, ONE), backend.score(batch, SAMPLING, SEVERAL)
    assert some.rechecked.sum() == 6 and every.rechecked.all(), "one of four"
    seen = batch.completion_mask & some.rechecked[:, None]
    np.testing.assert_allclose(some.logprobs[seen], every.logprobs[seen], atol=NATS)
    assert np.isnan(some.logprobs[batch.completion_mask & ~seen]).all()
    recomputing = opened(tiny_models["llama"], "update.old_logprobs=recompute")
    assert recomputing.score(batch, SAMPLING, ONE).rechecked.all()
