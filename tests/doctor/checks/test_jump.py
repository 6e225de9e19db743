from dataclasses import replace

import numpy as np
import pytest

from steadyrl.doctor.checks.jump import reward_jump, value_jump
from tests.doctor.checks.series_for_values import finding, healthy, noise, rise, said, series, unclear

N, AT = 60, 25
LATER = np.arange(N) >= AT


def level(value, scale, seed=0):
    return value + noise(np.random.default_rng(seed), N, scale, memory=0.0)


def steady(**columns):
    """Return a run whose policy and rewards have settled, with some columns changed."""
    same = {
        "reward": level(0.6, 0.03, 1), "reward_std": level(0.3, 0.02, 2), "length": level(80.0, 4.0, 3),
        "kl_ref": level(5.0, 0.3, 4), "entropy": level(1.9, 0.05, 5), "value_mean": level(0.6, 0.02, 6),
    }  # fmt: skip
    rising = {"reward_part/retrieval", "reward_part/structure"} - {name.replace("__", "/") for name in columns}
    return healthy(n=N, without=rising, **{**same, **columns})


# reward_jump


def test_a_constant_added_to_every_reward_is_a_shift():
    found = finding(reward_jump(steady(reward=level(0.6, 0.03, 1) + 20.0 * LATER)))
    assert (found.cause, found.severity, found.since_step) == ("reward_shift", "warning", AT)


def test_rows_that_average_several_steps_do_not_tell_it_from_quick_learning():
    run = steady(reward=level(0.6, 0.03, 1) + 20.0 * LATER)
    assert "a row averages 5 steps" in unclear(reward_jump(replace(run, averaged_over=5))).message


def test_verdicts_that_scatter_more_are_a_noisy_judge():
    found = finding(reward_jump(steady(reward_std=level(0.3, 0.02, 2) * np.where(LATER, 3.0, 1.0))))
    assert (found.cause, found.since_step) == ("judge_noise", AT)
    assert "reward_std went from 0.3" in found.evidence[0]


def test_a_part_that_moves_by_less_than_the_spread_is_another_scorer():
    part, shown = level(0.1, 0.02, 7) + 0.25 * LATER, level(0.6, 0.03, 1) + 0.08 * LATER
    found = finding(reward_jump(steady(reward_part__retrieval=part, reward=shown)))
    assert (found.cause, found.since_step) == ("judge_or_engine", AT)
    assert any("the part retrieval" in text for text in found.evidence)
    # what does not show in the whole is given away for another part, or only measured
    assert said(reward_jump(steady(reward_part__retrieval=part))) == []


def test_other_prompts_are_worth_knowing_only():
    run = steady(reward=level(0.6, 0.03, 1) - 0.4 * LATER, length_prompt=level(40.0, 1.0, 8) + 60.0 * LATER)
    found = finding(reward_jump(run))
    assert (found.cause, found.severity) == ("other_prompts", "info")


@pytest.mark.parametrize(
    "policy",
    [
        {"length": level(80.0, 4.0, 3) * np.where(LATER, 0.3, 1.0)},
        {"kl_ref": level(5.0, 0.3, 4) + 30.0 * LATER},
        {"entropy": series("entropy", level(1.9, 0.05, 5) * np.where(LATER, 0.2, 1.0), unit="nats/token")},
        {"kl_old": np.where(np.arange(N) == AT - 1, 2.0, 0.004)},
    ],
    ids=["length", "kl", "entropy", "step"],
)
def test_a_policy_that_jumps_too_explains_its_rewards(policy):
    assert said(reward_jump(steady(reward=level(0.6, 0.03, 1) - 0.4 * LATER, **policy))) == []


@pytest.mark.parametrize("share", ["empty", "truncated", "reward_unscored"])
def test_texts_that_are_lost_explain_the_rewards(share):
    lost = {share: np.where(LATER, 0.7, 0.01) + np.abs(noise(np.random.default_rng(9), N, 0.01))}
    assert said(reward_jump(steady(reward=level(0.6, 0.03, 1) - 0.4 * LATER, **lost))) == []


@pytest.mark.parametrize(("best", "names"), [(1.0, []), (0.8, ["reward_jump"])])
def test_rewards_that_the_best_completions_earned_before_are_a_policy_that_chose_them(best, names):
    """The mean goes from 0.3 to 0.9 at once: within what completions earned, or beyond all of them."""
    most = np.where(LATER, 1.0, best)
    run = steady(reward=level(0.3, 0.02, 1) + 0.6 * LATER, reward_max=most, kl_ref=level(5.0, 0.1, 4) + 0.5 * LATER)
    assert [found.check for found in said(reward_jump(run))] == names
    fell = steady(reward=level(0.9, 0.02, 1) - 0.6 * LATER, reward_max=np.ones(N), kl_ref=level(5.0, 0.1, 4))
    assert [found.check for found in said(reward_jump(fell))] == ["reward_jump"]


def test_a_reward_that_becomes_constant_is_another_checks():
    run = steady(reward=np.where(LATER, 0.5, level(0.6, 0.03, 1)) - 0.3 * LATER, reward_std=np.where(LATER, 0.0, 0.3))
    assert said(reward_jump(run)) == []


def test_rewards_that_are_learned_quickly_do_not_jump():
    for seed in range(20):
        learned = rise(N, 0.4, 1.2, pace=12.0) + noise(np.random.default_rng(seed), N, 0.03)
        assert said(reward_jump(steady(reward=learned))) == [], seed


def test_a_handful_of_steps_is_unclear():
    assert "few" in unclear(reward_jump(healthy(n=5))).message


# value_jump


def test_a_value_head_that_lost_its_weights_is_dated():
    value = level(0.6, 0.02, 6)
    value[AT : AT + 4] = (1.6, 1.1, 0.9, 0.7)  # it learns again
    found = finding(value_jump(steady(value_mean=value, explained_variance=np.where(LATER, -7.0, 0.2))))
    assert (found.cause, found.severity, found.since_step) == ("value_reset", "warning", AT)


def test_a_prediction_that_follows_the_rewards_is_no_reset():
    run = steady(value_mean=level(0.6, 0.02, 6) + 3.0 * LATER, reward=level(0.6, 0.03, 1) + 3.0 * LATER)
    assert said(value_jump(run)) == []


@pytest.mark.parametrize(("to", "names"), [(0.95, []), (-0.8, ["value_jump"]), (3.0, ["value_jump"])])
def test_a_prediction_that_comes_to_what_is_earned_is_no_reset(to, names):
    """Returns scatter by 0.3, rewards are 1, and the head predicted 0.5."""
    value = np.where(LATER, to, level(0.5, 0.02, 6))
    run = steady(reward=level(1.0, 0.02, 1), reward_std=level(0.3, 0.02, 2), value_mean=value)
    assert [found.check for found in said(value_jump(run))] == names


def test_a_fresh_head_may_move_in_its_first_steps():
    value = level(0.6, 0.02, 6)
    value[:4] = (-1.0, -0.4, 0.9, 0.5)
    assert said(value_jump(steady(value_mean=value))) == []


def test_a_jump_within_the_spread_of_the_returns_is_silent():
    assert said(value_jump(steady(value_mean=level(0.6, 0.005, 6) + 0.2 * LATER))) == []


def test_without_values_or_steps_it_is_unclear():
    assert unclear(value_jump(healthy(n=N, without=["value_mean"]))).would_tell == ("value_mean",)
    assert "few" in unclear(value_jump(healthy(n=5))).message


def test_where_nothing_is_known_of_the_policy_a_jump_is_not_the_scorers():
    known = steady(reward=level(0.6, 0.03, 1) - 0.25 * LATER)
    assert finding(reward_jump(known)).cause == "judge_or_engine"
    policy = ("kl_ref", "kl_old", "entropy", "length")
    assert said(reward_jump(replace(known, series={k: v for k, v in known.series.items() if k not in policy}))) == []
