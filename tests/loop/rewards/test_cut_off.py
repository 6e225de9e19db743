"""Answers that reached the token limit are penalised or left out of the loss, as asked."""

from dataclasses import replace

import numpy as np
import pytest

from steadyrl.algorithms import grpo, ppo, reinforce, rloo
from steadyrl.core import config
from steadyrl.core.errors import DataError
from steadyrl.core.rundir import RunDir
from steadyrl.core.types import Group, Problem, TokenScores
from steadyrl.loop.rewards.combine import make_terms, score_groups
from steadyrl.loop.train import train
from steadyrl.maths.batch import make_batch, only_trained
from tests.loop.rewards.test_trl import NoTask, group, term


def cut(found, *places):
    rollouts = [replace(r, stop_reason="length" if i in places else "stop") for i, r in enumerate(found.rollouts)]
    return replace(found, rollouts=tuple(rollouts))


def terms(**entry):
    settings = config.resolve({"rewards": {"retrieval": 1.0, "cut_off": entry}})
    letters = term(lambda problem, rollout: len(rollout.text), "letters")
    return [letters, *make_terms({"cut_off": settings.rewards["cut_off"]}, NoTask())]


def test_a_negative_weight_is_a_penalty():
    (found,) = score_groups([cut(group("aaaa", "aa"), 0)], terms(weight=-0.5))
    assert [r.reward for r in found.rollouts] == [3.5, 2.0]
    assert [r.parts["cut_off"] for r in found.rollouts] == [1.0, 0.0]
    assert all(rollout.trains for rollout in found.rollouts)


def test_masked_answers_keep_their_reward_and_leave_the_loss():
    groups = score_groups([cut(group("aaaa", "aa", "a"), 0)], terms(weight=0.0, mask=True))
    batch = only_trained(make_batch(groups, pad_id=0))
    assert batch.rewards.tolist() == [4.0, 2.0, 1.0]
    assert batch.completion_mask.sum(axis=1).tolist() == [0, 2, 1]
    np.testing.assert_array_equal(batch.sampling_logprobs[0], 0.0)


@pytest.mark.parametrize("masked", [False, True])
def test_the_penalty_of_long_answers_counts_the_tokens_of_those_that_do_not_train(masked):
    """By hand: answers of 16, 14, 5 and 8 tokens with a limit of 16 and a buffer of 8 lose 1, 0.75, 0 and 0."""
    rewards, lengths = [1.0, 1.0, 0.0, 0.0], [16, 14, 5, 8]
    answers = group(*("a" * length for length in lengths)).rollouts
    rows = tuple(
        replace(answer, reward=reward, trains=not (masked and place == 0))
        for place, (answer, reward) in enumerate(zip(answers, rewards, strict=True))
    )
    batch = make_batch([Group(Problem("p", ""), rows)], pad_id=0)
    algorithm = grpo.build(grpo.Settings(kl_coef=0.0, scale="none", length_limit=16, overlong_buffer=8))
    advantages = only_trained(algorithm.prepare(batch, {})).advantages.sum(axis=1) / lengths
    np.testing.assert_allclose(advantages, [0.0 if masked else -0.0625, 0.1875, -0.0625, -0.0625], atol=1e-12)


def test_the_baseline_of_rloo_holds_the_reward_of_an_answer_that_does_not_train():
    rows = tuple(
        replace(r, reward=float(len(r.text)), trains=len(r.text) < 4) for r in group("aaaa", "aa", "a").rollouts
    )
    batch = make_batch([Group(Problem("p", ""), rows)], pad_id=0)
    batch = replace(batch, old=TokenScores(logprobs=batch.sampling_logprobs))
    advantages = rloo.build(rloo.Settings(kl_coef=0.0)).prepare(batch, {}).advantages
    assert [row.max(initial=-9, where=row != 0) for row in advantages] == [2.5, -0.5, -2.0]


@pytest.mark.parametrize("algorithm", [ppo.build(ppo.Settings()), reinforce.build(reinforce.Settings(kl_coef=0.0))])
def test_advantages_are_normalised_over_the_tokens_that_train(algorithm):
    rows = tuple(
        replace(r, reward=float(len(r.text)), trains=len(r.text) < 4) for r in group("aaaa", "aa", "a").rollouts
    )
    batch = make_batch([Group(Problem("p", ""), rows)], pad_id=0)
    scores = TokenScores(
        logprobs=batch.sampling_logprobs, ref_logprobs=batch.sampling_logprobs, values=np.zeros(batch.tokens.shape)
    )
    found = algorithm.prepare(replace(batch, old=scores), {"kl_coef": 0.0}).advantages
    assert found[batch.trained_mask].mean() == pytest.approx(0.0, abs=1e-12)
    assert found[batch.trained_mask].std() == pytest.approx(1.0)


def test_a_run_with_top_k_trains_on_what_was_not_cut_off(toy, tmp_path):
    session = toy("rewards.cut_off.weight=0.0", "rewards.cut_off.mask=true", "sampling.top_k=5", "run.steps=1")
    run = RunDir(tmp_path / "masked")
    train(session, run)
    assert 0 < run.metrics()[0]["completion/truncated"] < 1


def test_a_run_masks_what_was_cut_off(toy, tmp_path):
    """What was cut off moves nothing: its advantages are those of tokens outside the mask."""
    session = toy("rewards.cut_off.weight=0.0", "rewards.cut_off.mask=true", "run.steps=2", "run.rollouts_every=1")
    run = RunDir(tmp_path / "masked")
    train(session, run)
    first = run.metrics()[0]
    assert 0 < first["reward/cut_off"] < 1
    assert first["reward/cut_off"] == first["completion/truncated"]
    assert first["advantage/used"] <= 1 - first["completion/truncated"]


def test_a_step_in_which_all_were_cut_off_says_so(toy, tmp_path):
    session = toy("rewards.cut_off.weight=0.0", "rewards.cut_off.mask=true", "sampling.max_new_tokens=1")
    with pytest.raises(DataError, match=r"all .* rollouts were cut off, and rewards\.cut_off\.mask leaves none"):
        train(session, RunDir(tmp_path / "all"))


def test_a_rollout_trains_only_if_all_rewards_let_it():
    whole = cut(group("a", "b"), 1)
    (found,) = score_groups([whole], [*terms(weight=0.0, mask=True), term(lambda p, r: 1.0, "other")])
    assert [rollout.trains for rollout in found.rollouts] == [True, False]
