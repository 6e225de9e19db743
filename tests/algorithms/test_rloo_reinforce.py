from dataclasses import replace

import numpy as np
import pytest

from steadyrl.algorithms import reinforce, rloo
from steadyrl.core.rundir import RunDir
from steadyrl.core.types import Batch, TokenScores
from steadyrl.loop.train import train
from steadyrl.maths.batch import loss_arrays

# A group of three rows; two completion tokens each, but the last row has one.
MASK = np.array([[0, 1, 1], [0, 1, 1], [0, 1, 0]], bool)
OLD = np.where(MASK, -1.0, 0.0)
REF = np.where(MASK, [[0, -1.5, -1.0], [0, -0.5, -1.0], [0, -2.0, 0]], 0.0)  # k1: 0.5, 0; -0.5, 0; 1


def three_rows(rewards, groups=(0, 0, 0)):
    return Batch(
        tokens=np.ones((3, 3), np.int32),
        lengths=np.array([3, 3, 2], np.int32),
        completion_mask=MASK,
        sampling_logprobs=OLD.astype(np.float32),
        rewards=np.array(rewards, float),
        groups=np.array(groups, np.int32),
        old=TokenScores(logprobs=OLD, ref_logprobs=REF),
    )


def built_rloo(**settings):
    return rloo.build(rloo.Settings(**settings))


def built_reinforce(**settings):
    return reinforce.build(reinforce.Settings(**settings))


def test_rloo_compares_with_the_mean_of_the_others():
    """Rewards 1, 2, 6: 1 - 4, 2 - 3.5, 6 - 1.5."""
    advantages = built_rloo(kl_coef=0.0).prepare(three_rows([1, 2, 6]), {}).advantages
    np.testing.assert_allclose(advantages, [[0, -3, -3], [0, -1.5, -1.5], [0, 4.5, 0]])


def test_rloo_pays_the_kl_of_the_whole_completion_from_the_reward():
    """At 2 a nat the rewards 1, 2, 6 become 0, 3, 4: 0 - 3.5, 3 - 2, 4 - 1.5."""
    advantages = built_rloo(kl_coef=2.0).prepare(three_rows([1, 2, 6]), {}).advantages
    np.testing.assert_allclose(advantages, [[0, -3.5, -3.5], [0, 1, 1], [0, 2.5, 0]])


def test_rollouts_without_others_of_their_problem_have_no_advantage():
    assert not built_rloo().prepare(three_rows([1, 2, 3], groups=(0, 1, 2)), {}).advantages.any()


def test_reinforce_adds_up_penalties_from_each_token_on_and_normalises_over_the_batch():
    """At 2 a nat: -1 + 1 = 0, then 1; 1 + 2 = 3, then 2; 6 - 2 = 4. Mean 2, deviation sqrt(2)."""
    prepared = built_reinforce(kl_coef=2.0).prepare(three_rows([1, 2, 6], groups=(0, 1, 2)), {})
    np.testing.assert_allclose(prepared.measured["advantages_raw"], [[0, 0, 1], [0, 3, 2], [0, 4, 0]])
    np.testing.assert_allclose(
        prepared.advantages, np.where(MASK, np.array([[9, -2, -1], [9, 1, 0], [9, 2, 9]]) / 2**0.5, 0), atol=1e-7
    )


def test_reinforce_discounts_by_the_token():
    raw = built_reinforce(kl_coef=0.0, gamma=0.5).prepare(three_rows([1, 2, 6]), {}).measured["advantages_raw"]
    np.testing.assert_allclose(raw, [[0, 0.5, 1], [0, 1, 2], [0, 6, 0]])


@pytest.mark.parametrize("make", [built_rloo, built_reinforce])
def test_without_a_coefficient_no_reference_is_needed(make):
    assert make(kl_coef=0.0).needs == frozenset()
    assert make(kl_coef=0.1).needs == {"ref_logprobs"}
    batch = replace(three_rows([1, 2, 6]), old=TokenScores(logprobs=OLD))
    assert make(kl_coef=0.0).prepare(batch, {}).advantages[MASK].any()


@pytest.mark.parametrize("make", [built_rloo, built_reinforce])
def test_the_loss_is_the_clipped_surrogate_alone(make):
    """Ratios 1, 2; 1, 1/2; 1 with advantages 1, 1; -1, -1; 0 and clip range [0.9, 1.4]: -1 - 1.4 + 1 + 0.9, over 5."""
    batch = replace(three_rows([1, 2, 6]), advantages=np.array([[0, 1.0, 1], [0, -1, -1], [0, 0, 0]]))
    new = TokenScores(logprobs=OLD + np.log([[1, 1, 2], [1, 1, 0.5], [1, 1, 1]]))
    loss, sums = make(clip_low=0.1, clip_high=0.4).loss(np, new, loss_arrays(batch), 5.0)
    assert float(loss) == pytest.approx(-0.5 / 5)
    assert float(sums["clip_fraction"]) == 2.0


CASES = [
    *(pytest.param(name, 8, 40, marks=pytest.mark.weekly) for name in ("rloo", "reinforce")),
    ("reinforce", 1, 100),
]


@pytest.mark.parametrize(("name", "samples", "steps"), CASES)
def test_both_learn_to_write_the_letter_a(toy, tmp_path, name, samples, steps):
    run = RunDir(tmp_path / "run")
    session = toy(f"algorithm.name={name}", f"rollout.samples_per_prompt={samples}", f"run.steps={steps}")
    assert train(replace(session, heldout=[]), run) == "finished"
    rewards = [record["reward/mean"] for record in run.metrics()]
    assert np.mean(rewards[:3]) < 0.2
    assert np.mean(rewards[-5:]) > 0.3


@pytest.mark.parametrize("name", ["rloo", "reinforce"])
def test_a_resumed_run_equals_the_unbroken_one(toy, whole_and_broken, name):
    settings = (f"algorithm.name={name}", "run.steps=6", "rollout.samples_per_prompt=4")
    whole, broken = whole_and_broken(lambda: toy(*settings))
    for key in ("reward/mean", "grad_norm", "kl_ref_k1"):
        assert [r[key] for r in broken.metrics()] == [r[key] for r in whole.metrics()]
        assert len({r[key] for r in whole.metrics()}) >= 5
