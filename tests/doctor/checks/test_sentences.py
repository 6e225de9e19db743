"""What findings say of a log: numbers that a reader counts in it, and nothing that its other columns refute."""

import numpy as np
import pytest

from steadyrl.doctor.checks.ending import truncated
from steadyrl.doctor.checks.gradient import grad_norm
from steadyrl.doctor.checks.hacking import reward_hacking
from steadyrl.doctor.checks.jump import reward_jump
from steadyrl.doctor.checks.kl import kl_runaway
from steadyrl.doctor.checks.learning_rate import learning_rate_too_high, learning_rate_too_low
from steadyrl.doctor.checks.non_finite import non_finite
from steadyrl.doctor.checks.reward import reward_constant, reward_falling, reward_flat
from steadyrl.doctor.checks.signal import advantage_baseline, no_signal_groups
from steadyrl.doctor.checks.values import explained_variance_low
from steadyrl.doctor.statistics.levels import measure
from steadyrl.doctor.statistics.readings import levels, nothing_to_learn, number
from tests.doctor.checks.series_for_values import finding, healthy, make_run, noise, said, series, unclear

N = 60
RARE = np.isin(np.arange(N), [7, 19, 31, 33]) / 16.0  # one answer in sixteen earns something, in four batches


def grouped(columns):
    return make_run(columns, "grpo")


def test_a_course_is_of_means_which_rare_rewards_raise():
    assert levels("it", series("reward", [0, 1, 0, 0, 0] * 6)).startswith("it went from 0.2")


@pytest.mark.parametrize(
    ("x", "text"), [(1063.2, "1060"), (-45678.0, "-45700"), (0.12345, "0.123"), (4.1e7, "4.1e+07")]
)
def test_thousands_have_no_power_of_ten(x, text):
    assert number(x) == text


def test_a_reward_that_was_hardly_ever_earned_did_not_break():
    found = finding(reward_constant(grouped({"reward": np.where(RARE > 0, 1 / 64, 0.0)})))
    assert (found.cause, found.since_step) == ("mostly_least", 0)
    assert f"in {N - 4} of {N} rows" in found.message


def test_a_reward_that_is_constant_after_it_varied_says_what_it_was():
    reward = np.append(np.tile([0.2, 0.4], 15), np.zeros(20))
    found = finding(reward_constant(grouped({"reward": reward})))
    assert (found.cause, found.since_step) == ("broke", 30)
    assert found.evidence == ("it was 0.3 in the mean of the 30 rows before",)


def without_rewards():
    """Return what a trainer logs where all rewards are 0 but in four batches: advantages of 0, and no movement."""
    advantage = 2.4 * (RARE > 0)
    return {
        "reward": RARE, "reward_min": np.zeros(N), "reward_max": 1.0 * (RARE > 0), "advantage_min": -0.4 * (RARE > 0),
        "advantage_max": advantage, "kl_old": series("kl_old", 1e-7 * advantage), "entropy": 0.5 + 0.01 * RARE,
        "clip_fraction": np.zeros(N), "learning_rate": np.full(N, 1e-6),
    }  # fmt: skip


def test_advantages_are_no_rewards_because_both_are_0():
    assert said(advantage_baseline(grouped(without_rewards()))) == []
    plain = np.random.default_rng(0).uniform(0.1, 0.9, N)
    rewards = {"reward_min": -plain, "reward_max": plain, "advantage_min": -plain, "advantage_max": plain}
    assert finding(advantage_baseline(grouped({"reward": 0 * plain, **rewards}))).cause == "single_sample"


def test_no_rate_is_too_low_where_all_advantages_are_0():
    run = grouped(without_rewards())
    assert nothing_to_learn(run) == "in 93% of the rows all advantages are 0"
    assert said(learning_rate_too_low(run)) == []


def test_advantages_that_are_alike_and_not_0_still_move_the_policy():
    reward, std = np.zeros(N), np.where(np.arange(N) % 5, 0.0, 0.05)
    alike = {"reward": reward, "advantage_std": std}
    assert finding(no_signal_groups(grouped({**alike, "advantage_mean": np.zeros(N)}))).check == "no_signal_groups"
    assert said(no_signal_groups(grouped({**alike, "advantage_mean": np.full(N, -0.5)}))) == []


@pytest.mark.parametrize(
    ("right", "cause", "words"),
    [
        ({"reward_part/accuracy": np.full(N, 0.3)}, "same_answers", "30% are right at the end, by accuracy"),
        ({"reward_part/game": np.full(N, 0.01)}, "too_hard", "game hardly ever pays"),
        ({"reward_part/accuracy": np.full(N, 0.97)}, "too_easy", "earn about the most"),
    ],
)
def test_a_total_near_its_greatest_is_not_of_right_answers(right, cause, words):
    form = np.full(N, 0.98)
    total = form + next(iter(right.values())) + noise(np.random.default_rng(2), N, 0.005)
    found = finding(
        no_signal_groups(grouped({"no_signal": np.full(N, 0.8), "reward": total, "reward_part/layout": form, **right}))
    )
    assert found.cause == cause
    assert words in found.message


@pytest.mark.parametrize(("cut", "cause"), [(0.9, "cut_off"), (0.1, "same_answers")])
def test_groups_alike_because_answers_are_cut_off_need_room_and_no_temperature(cut, cause):
    columns = {"no_signal": np.full(N, 0.8), "reward": 0.5 + noise(np.random.default_rng(3), N, 0.01)}
    found = finding(no_signal_groups(grouped({**columns, "truncated": np.full(N, cut)})))
    assert (found.cause, "temperature" in found.remedy) == (cause, cause == "same_answers")


def test_a_fall_is_dated_where_the_levels_that_it_names_part():
    reward = np.append(np.full(70, 0.8), np.full(50, 0.3)) + noise(np.random.default_rng(5), 120, 0.05, memory=0.0)
    reward[90:] = np.linspace(0.3, 0.7, 30)  # it comes back, so that it is no fall for good
    reward = np.append(reward, np.full(120, 0.5) + noise(np.random.default_rng(6), 120, 0.05, memory=0.0))
    found = finding(reward_falling(healthy(n=240, reward=reward)))
    first, last = (int(step) for step in found.evidence[0].split("steps ")[1].split(" and")[0].split(" to "))
    before, after = reward[first : last + 1].mean(), reward[last + 1 :].mean()
    assert found.since_step == last + 1
    assert found.message.startswith(f"the reward fell from {number(before)} to {number(after)}")


def test_a_fall_that_ends_in_a_level_is_dated_before_that_level():
    reward = np.concatenate([np.linspace(1.0, -4.0, 45), np.full(75, -4.0)])
    course = series("reward", reward + noise(np.random.default_rng(7), 120, 0.3))
    lost = measure(course).loss(0.1)
    assert 10 < lost.began(course) < 40


def test_a_reward_that_falls_is_not_said_to_be_level_within_what_would_have_shown():
    reward = np.linspace(0.5, 0.42, 200) + 0.25 * np.random.default_rng(0).normal(size=200)
    run = healthy(n=200, reward=reward, kl_ref=np.linspace(0.0, 6.0, 200), without=["heldout/retrieval"])
    assert finding(reward_flat(run)).evidence[0].endswith("(95 %): if anything it falls")


def test_rewards_that_rise_while_the_entropy_falls_are_learned():
    rng = np.random.default_rng(4)
    later = np.arange(N) >= 25
    columns = {
        "reward": np.where(later, 0.7, 0.4) + 0.01 * rng.normal(size=N), "reward_max": np.ones(N),
        "reward_std": 0.3 + 0.01 * rng.normal(size=N),
    }  # fmt: skip
    entropy = np.interp(np.arange(N), [0, 20, 32, N], [0.5, 0.5, 0.3, 0.3]) + 0.005 * rng.normal(size=N)
    still = 0.5 + 0.005 * rng.normal(size=N)
    falling, still = (series("entropy", values, unit="nats/token") for values in (entropy, still))
    assert said(reward_jump(grouped({**columns, "entropy": falling}))) == []
    assert finding(reward_jump(grouped({**columns, "entropy": still})))


def test_what_is_not_finite_now_and_then_is_counted_under_the_logs_name():
    kl = np.full(N, 0.2)
    kl[[0, 20, 41]] = np.nan
    run = healthy(n=N, kl_ref=kl)
    assert finding(non_finite(run)).message.startswith(
        f"log/kl_ref is not finite in 3 of {N} rows, the first at step 0"
    )


def test_what_is_logged_as_nan_only_is_not_missing():
    lost = np.full(N, np.nan)
    assert unclear(grad_norm(healthy(n=N, grad_norm=lost))).message == "no gradient norm of the log is finite"
    assert unclear(explained_variance_low(healthy(n=N, explained_variance=lost, without=["loss_value"]))).message == (
        "the log has no finite explained variance or value loss"
    )


def test_two_rows_have_a_start_and_an_end():
    found = finding(truncated(healthy(n=2, truncated=np.array([0.6, 0.5]))))
    assert "share cut off: 0.6 at the start, 0.5 at the end" in found.evidence[0]


@pytest.mark.parametrize(("first", "apart"), [(0.5, True), (0.01, False)])
def test_a_kl_that_is_there_before_any_update_calls_for_no_lower_rate(first, apart):
    kl = np.full(N, 0.3)
    kl[[0, 4, 5, 20, 31]] = [first, 70.0, 35.0, 900.0, 40.0]
    values = series("kl_ref", kl, np.arange(1, N + 1), "nats/token", "k3")
    run = healthy(n=N, kl_ref=values, settings={"kl_place": "loss"}, algorithm="grpo")
    found = next(result for result in said(kl_runaway(run)) if result.cause == "spikes")
    assert bool(found.overrides) is not apart
    assert any("before any update" in line for line in found.evidence) is apart
    if apart:
        assert not any("in the one step" in line for one in said(learning_rate_too_high(run)) for line in one.evidence)


def test_gradients_of_the_few_rows_with_a_signal_are_no_spikes():
    rng = np.random.default_rng(8)
    signal = rng.random(400) < 0.15
    norm = np.where(signal, 1.5, 0.004) * np.exp(0.2 * rng.normal(size=400))
    columns = {"grad_norm": norm, "reward_std": 0.2 * signal, "reward": 0.9 + 0.01 * rng.normal(size=400)}
    assert said(grad_norm(grouped(columns))) == []


def test_each_score_that_falls_is_given_with_its_numbers_once():
    fall = np.linspace(0.4, 0.2, 12)
    steps = np.arange(0, N, 5)
    scores = {
        f"heldout/{name}": series(f"heldout/{name}", scale * fall, steps) for name, scale in (("f1", 1), ("em", 2))
    }
    reward = np.linspace(0.2, 0.6, N) + noise(np.random.default_rng(9), N, 0.01)
    found = said(reward_hacking(grouped({"reward": reward, **scores})))
    falls = [line for one in found for line in one.evidence if " falls from " in line]
    assert {line.split(" falls from ")[0] for line in falls} == {"heldout/f1", "heldout/em"}
    assert len(falls) == 2
    assert not any("of the reward noise" in line for one in found for line in one.evidence)
