from dataclasses import replace

import numpy as np
import pytest

from steadyrl.doctor.checks.reward_scale import reward_scale, reward_unscored
from steadyrl.doctor.checks.signal import no_signal_groups
from tests.doctor.checks.series_for_values import finding, healthy, make_run, noise, said, series, unclear

N = 200


def causes(findings):
    return [found.cause for found in said(findings)]


def grouped(**columns):
    return healthy(n=N, algorithm="grpo", **columns)


# no_signal_groups


def test_groups_that_are_all_right_are_too_easy():
    run = grouped(no_signal=np.full(N, 0.9), reward=np.full(N, 0.95))
    found = finding(no_signal_groups(run))
    assert (found.cause, found.severity, found.since_step) == ("too_easy", "warning", 0)
    assert found.overrides == ()


@pytest.mark.parametrize(("rows", "severity"), [(90, "info"), (60, "warning")])
def test_what_was_learned_in_four_steps_is_no_fault_once_enough_rows_are_settled(rows, severity):
    """The first three rows lie 0.17 below a level of 0.99 with a deviation of 0.005."""
    share = np.concatenate([[0.2, 0.4, 0.6, 0.8], np.full(rows - 4, 0.97)])
    level = 0.99 + 0.005 * np.random.default_rng(4).normal(size=rows - 4)
    reward = np.concatenate([[0.68, 0.85, 0.93, 0.97], level])
    found = finding(no_signal_groups(make_run({"no_signal": share, "reward": reward}, "grpo")))
    assert (found.cause, found.severity) == ("too_easy", severity)


def test_groups_that_are_all_wrong_are_too_hard():
    found = finding(no_signal_groups(grouped(no_signal=np.full(N, 0.9), reward=np.full(N, 0.05))))
    assert found.cause == "too_hard"
    assert found.overrides == ("rollout.samples_per_prompt=8",)


def test_the_level_is_judged_between_the_least_and_the_greatest_reward():
    run = grouped(
        no_signal=np.full(N, 0.9), reward=np.full(N, 1.9), reward_min=np.full(N, -2.0), reward_max=np.full(N, 2.0)
    )
    assert finding(no_signal_groups(run)).cause == "too_easy"


@pytest.mark.parametrize(("lost", "severity"), [(0.0, "warning"), (0.4, "info")])
def test_batches_without_a_difference_leave_a_run_idle_only_if_its_reward_does_not_fall(lost, severity):
    rng = np.random.default_rng(3)
    reward = np.where(np.arange(N) < 90, 0.6, 0.6 - lost) + noise(rng, N, 0.05)
    spread = np.where(rng.random(N) < 0.58, 0.0, 0.4)
    run = make_run({"advantage_std": spread, "reward": reward}, "grpo")
    assert finding(no_signal_groups(run)).severity == severity


def test_groups_that_agree_half_right_half_wrong_give_the_same_answers():
    found = finding(no_signal_groups(grouped(no_signal=np.full(N, 0.9), reward=np.full(N, 0.5))))
    assert found.cause == "same_answers"


@pytest.mark.parametrize(
    ("spread", "cause"),
    [
        (0.48, "too_hard"),  # all or nothing: sqrt(0.37 x 0.63)
        (0.28, "same_answers"),  # at most 0.28^2 / (0.37^2 + 0.28^2) = 36 % of the completions earn nothing
        (0.05, "too_hard"),  # all earn about the same, say for their form
    ],
)
def test_a_low_mean_that_few_wrong_answers_can_make_gives_the_same_answers(spread, cause):
    def of(scale, **columns):
        levels = {"reward": np.full(N, 0.37 * scale), "reward_std": np.full(N, spread * scale)}
        return finding(no_signal_groups(grouped(no_signal=np.full(N, 0.8), **levels, **columns))).cause

    assert of(1.0) == cause
    assert of(4.0, reward_min=np.zeros(N), reward_max=np.full(N, 4.0)) == cause


@pytest.mark.parametrize(("gain", "severity"), [(0.1, "info"), (0.0, "warning")])
def test_groups_that_came_to_agree_while_held_out_problems_earned_more_are_worth_knowing(gain, severity):
    run = grouped(no_signal=np.where(np.arange(N) < 120, 0.3, 0.95), reward=np.full(N, 0.95))
    found = finding(no_signal_groups(replace(run, gains={"sampled": np.tile([0.0, gain], 50)})))
    assert (found.cause, found.severity) == ("too_easy", severity)


def test_a_share_that_grew_is_dated():
    share = np.where(np.arange(N) < 120, 0.3, 0.95)
    assert finding(no_signal_groups(grouped(no_signal=share))).since_step == 120


def test_no_signal_at_any_step_is_critical():
    assert finding(no_signal_groups(grouped(no_signal=np.ones(N), reward=np.zeros(N)))).severity == "critical"


def test_a_value_head_learns_from_equal_rewards_as_well():
    assert said(no_signal_groups(healthy(n=N, no_signal=np.ones(N)))) == []


# reward_unscored


def test_a_judge_that_never_answers_is_critical_from_the_start():
    found = finding(reward_unscored(healthy(n=N, reward_unscored=np.full(N, 0.8))))
    assert (found.severity, found.cause, found.since_step) == ("critical", "scorer_fails", 0)


def test_an_engine_that_fails_later_is_dated():
    share = np.where(np.arange(N) < 90, 0.0, 0.3)
    found = finding(reward_unscored(healthy(n=N, reward_unscored=share)))
    assert (found.severity, found.cause, found.since_step) == ("warning", "scorer_fails", 90)


def test_a_judge_that_answers_one_batch_in_three_is_dated_by_its_first_failure():
    steps = np.arange(N)
    share = np.where((steps < 60) | (steps % 3 == 0), 0.0, 0.25)
    found = finding(reward_unscored(healthy(n=N, reward_unscored=share)))
    assert found.since_step == 61 and found.message.endswith("since step 61")


# reward_scale


def test_rewards_near_100_with_a_spread_of_1_are_an_offset():
    rng = np.random.default_rng(0)
    run = healthy(n=N, reward=100 + noise(rng, N, 0.2), reward_std=np.ones(N), value_mean=np.full(N, 60.0),
                  return_mean=np.full(N, 100.0), reward_max=np.full(N, 103.0), reward_min=np.full(N, 97.0))  # fmt: skip
    found = finding(reward_scale(run))
    assert (found.cause, found.severity) == ("offset", "warning")
    assert "100 standard deviations" in found.message


def test_an_offset_that_the_values_have_learned_is_worth_knowing_only():
    run = healthy(n=N, reward=np.full(N, 100.0), reward_std=np.ones(N), value_mean=np.full(N, 100.0),
                  return_mean=np.full(N, 100.0), reward_max=np.full(N, 103.0), reward_min=np.full(N, 97.0))  # fmt: skip
    assert finding(reward_scale(run)).severity == "info"


def test_single_rewards_of_a_thousand_are_outliers():
    greatest = np.ones(N)
    greatest[[50, 90, 130]] = 1000.0
    found = finding(reward_scale(healthy(n=N, reward_max=greatest)))
    assert (found.cause, found.since_step, found.severity) == ("outliers", 50, "warning")


def test_outliers_show_in_the_spread_where_extremes_are_not_logged():
    spread = 0.3 + noise(np.random.default_rng(1), N, 0.015)
    spread[[50, 53, 54, 90]] = 140.0
    without = ["reward_max", "reward_min"]
    found = finding(reward_scale(healthy(n=N, reward_std=spread, without=without)))
    assert (found.cause, found.since_step, found.severity) == ("outliers", 50, "warning")
    spread[50:] = 140.0  # it stays: no single rewards
    assert said(reward_scale(healthy(n=N, reward_std=spread, without=without))) == []


def test_rare_successes_are_no_outliers():
    rng = np.random.default_rng(0)
    wins = rng.binomial(128, 0.01, N)
    rate = wins / 128
    run = healthy(n=N, reward=rate, reward_std=np.sqrt(rate * (1 - rate)), reward_max=(wins > 0).astype(float))
    assert said(reward_scale(run)) == []


@pytest.mark.parametrize("learning", [slice(0, 32), slice(80, 112)])
def test_a_failure_of_a_policy_that_has_learned_is_no_outlier(learning):
    """The rewards differ by 0.4 for a while and by 0.05 else, and a least reward of 0.03 is 17 times as far off."""
    spread, least = np.full(N, 0.05), np.full(N, 0.88)
    spread[learning], least[[0, 1, 60, 100, 150]] = 0.4, 0.03
    learned = {"reward": np.full(N, 1.25), "reward_std": spread, "reward_max": np.full(N, 1.3)}
    assert "outliers" not in causes(reward_scale(healthy(n=N, reward_min=least, **learned)))
    least[[60, 100, 150]] = -30.0  # beyond all that the rewards ever differed by
    assert "outliers" in causes(reward_scale(healthy(n=N, reward_min=least, **learned)))


def test_without_a_spread_the_scale_is_unclear():
    run = healthy(n=N, without=["reward_std", "reward_std_within"])
    assert unclear(reward_scale(run)).would_tell == ("reward_std",)


def test_checks_of_the_signal_say_what_they_miss():
    run = healthy(
        n=N,
        without=["no_signal", "reward_unscored", "reward_std_within", "reward_std", "advantage_std", "reward_min"],
        algorithm="grpo",
    )
    missing = [unclear(check(run)).would_tell[0] for check in (no_signal_groups, reward_unscored)]
    assert missing == ["no_signal", "reward_unscored"]


FADES = 2.0 ** -np.linspace(0, 6, 60)


def stuck(entropy=0.4 * FADES, **columns):
    usual = {"reward": np.minimum(0.2 + np.arange(60) / 40, 0.7), "no_signal": np.linspace(0, 1, 60)}
    usual |= {"grad_norm": 3 * FADES, "entropy": series("entropy", entropy, unit="nats/token", estimator="exact")}
    return healthy(n=60, algorithm="grpo", **{**usual, **columns})


def test_a_policy_sure_of_its_answers_before_all_are_right_is_stuck():
    found = finding(no_signal_groups(stuck()))
    assert (found.cause, found.severity) == ("same_answers", "warning")
    assert "looks for no other" in found.message and "entropy is 0.00" in found.message


@pytest.mark.parametrize(
    "column",
    [{"grad_norm": np.full(60, 1.5)}, {"entropy": np.full(60, 0.4)}, {"reward": np.linspace(0.2, 0.99, 60)}],
    ids=["a gradient", "an entropy", "all are right"],
)
def test_a_policy_that_learned_is_not_stuck_with(column):
    assert finding(no_signal_groups(stuck(**column))).severity == "info"


@pytest.mark.parametrize(("late", "severity"), [(0.95, "warning"), (0.8, "info")])
def test_answers_that_agree_in_nearly_all_groups_before_they_are_right_are_no_success(late, severity):
    groups = np.concatenate([np.linspace(0.1, late, 40), np.full(20, late)])
    found = finding(
        no_signal_groups(stuck(reward=np.linspace(0.1, 0.5, 60), no_signal=groups, entropy=np.full(60, 0.4)))
    )
    assert (found.cause, found.severity) == ("same_answers", severity)
