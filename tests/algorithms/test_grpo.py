from dataclasses import replace

import numpy as np
import pytest

from steadyrl.algorithms.grpo import GRPO
from steadyrl.batch import loss_arrays
from steadyrl.errors import ConfigError
from steadyrl.rundir import RunDir
from steadyrl.train import Watch, train
from steadyrl.types import Batch, TokenScores

# Two groups of two rows; two completion tokens each, but the last row has one.
MASK = np.array([[0, 1, 1], [0, 1, 1], [0, 1, 1], [0, 1, 0]], bool)
OLD = np.where(MASK, -1.0, 0.0)
REF = np.where(MASK, -1.5, 0.0)


def built(**settings):
    return GRPO.build(GRPO.Settings(**settings))


def four_rows(rewards, groups=(0, 0, 1, 1)):
    return Batch(
        tokens=np.ones((4, 3), np.int32),
        lengths=np.array([3, 3, 3, 2], np.int32),
        completion_mask=MASK,
        sampling_logprobs=OLD.astype(np.float32),
        rewards=np.array(rewards, float),
        groups=np.array(groups, np.int32),
        old=TokenScores(logprobs=OLD, ref_logprobs=REF),
    )


def test_every_token_of_a_rollout_gets_its_deviation_from_the_group_in_standard_deviations():
    """Rewards 1 and 3: mean 2, sample deviation sqrt(2), so -1 / sqrt(2) and +1 / sqrt(2); equal rewards give 0."""
    advantages = built().prepare(four_rows([1, 3, 5, 5]), {}).advantages
    side = 0.5**0.5
    np.testing.assert_allclose(advantages, [[0, -side, -side], [0, side, side], [0, 0, 0], [0, 0, 0]], atol=1e-4)


def test_the_loss_adds_the_kl_to_the_reference_at_every_token():
    """No change since sampling: the policy part is minus the mean advantage, here 0; k3 at p / ref = e^0.5."""
    batch = built().prepare(four_rows([1, 3, 5, 5]), {})
    new = TokenScores(logprobs=OLD)
    loss, sums = built(kl_coef=0.2).loss(np, new, loss_arrays(batch), float(MASK.sum()))
    k3 = np.exp(-0.5) - 1 + 0.5
    assert float(loss) == pytest.approx(0.2 * k3)
    assert float(sums["clip_fraction"]) == float(sums["kl_old_k3"]) == 0.0


def test_without_a_kl_coefficient_no_reference_is_needed():
    free = built(kl_coef=0.0)
    assert (free.needs, built(kl_coef=0.1).needs) == (frozenset(), frozenset({"ref_logprobs"}))
    batch = free.prepare(four_rows([1, 3, 5, 5]), {})
    batch = replace(batch, old=TokenScores(logprobs=OLD))
    loss, _ = free.loss(np, TokenScores(logprobs=OLD), loss_arrays(batch), float(MASK.sum()))
    assert float(loss) == pytest.approx(0.0)


def test_single_rollouts_are_refused_with_the_setting_to_change():
    with pytest.raises(ConfigError, match=r"set rollout\.samples_per_prompt to 2 or more"):
        built().prepare(four_rows([1, 2, 3, 4], groups=(0, 1, 2, 3)), {})


def rewards_of(run):
    return [record["reward/mean"] for record in run.metrics()]


@pytest.mark.parametrize("seed", [0, 1])
def test_grpo_learns_to_write_the_letter_a(toy, tmp_path, seed):
    session = toy("algorithm.name=grpo", "run.steps=60", "rollout.samples_per_prompt=8", f"run.seed={seed}")
    run = RunDir(tmp_path / "run")
    assert train(session, run) == "finished"
    rewards = rewards_of(run)
    assert np.mean(rewards[:3]) < 0.15
    assert np.mean(rewards[-5:]) > 0.6


def test_a_resumed_run_equals_the_unbroken_one(toy, tmp_path):
    settings = ("algorithm.name=grpo", "run.steps=6", "rollout.samples_per_prompt=4")
    whole, broken = RunDir(tmp_path / "whole"), RunDir(tmp_path / "broken")
    train(toy(*settings), whole)
    done = []
    assert train(toy(*settings), broken, 0, Watch(step=done.append, stop=lambda: len(done) == 3)) == "interrupted"
    assert train(toy(*settings), broken, 1) == "finished"
    assert rewards_of(broken) == rewards_of(whole)
    assert [r["grad_norm"] for r in broken.metrics()] == [r["grad_norm"] for r in whole.metrics()]
