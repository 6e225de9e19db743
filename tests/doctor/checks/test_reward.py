from dataclasses import replace

import numpy as np
import pytest

from steadyrl.doctor.checks.reward import reward_constant, reward_falling, reward_flat
from steadyrl.doctor.series import Series, Traits
from steadyrl.doctor.statistics.levels import measure
from steadyrl.doctor.statistics.readings import learns
from tests.doctor.checks.series_for_values import (
    finding,
    healthy,
    make_run,
    nearest,
    noise,
    rise,
    said,
    series,
    unclear,
)

N = 400


def flat(seed=0, n=N, scale=0.02):
    return 0.5 + noise(np.random.default_rng(seed), n, scale, memory=0.3)


# reward_flat


def test_a_policy_that_stands_still_is_told_by_its_kl():
    still = np.abs(noise(np.random.default_rng(1), N, 0.002))
    run = healthy(n=N, reward=flat(), kl_ref=still, settings={"learning_rate": 1e-6})
    found = finding(reward_flat(run))
    assert (found.cause, found.severity) == ("not_moving", "warning")
    assert "learning rate 1e-06" in found.message
    # The updates of a step come to what is usual here, 0.004 nats per token: three times the rate is the least raise.
    assert found.overrides == ("update.learning_rate=3e-06",)


@pytest.mark.parametrize(("kl", "named"), [(0.01, True), (0.1, False)])
def test_a_likely_gain_is_noise_where_the_policy_is_too_near_its_reference_to_have_gained(kl, named):
    """At 0.01 nats a sequence the mean moves by 0.14 deviations of the rewards at most, at 0.1 by 0.45."""
    rng, n = np.random.default_rng(6), 60
    reward = 0.5 + 0.04 * np.arange(n) / n + noise(rng, n, 0.03, 0.0)
    run = healthy(n=n, reward=reward, reward_std=np.full(n, 0.4), kl_ref=np.full(n, kl), without=["kl_old"])
    assert learns(run) and measure(run.needed("reward")).change.leans
    found = said(reward_flat(run))
    assert [one.cause for one in found] == (["not_moving"] if named else [])


@pytest.mark.parametrize(
    ("level", "kl", "no_signal", "named"),
    [(0.85, 0.005, 0.3, True), (0.85, 0.1, 0.3, False), (0.96, 0.005, 0.3, False), (0.85, 0.005, 1.0, False)],
)
def test_a_level_near_the_top_is_no_success_of_a_policy_that_did_not_move(level, kl, no_signal, named):
    """A quarter of the deviation of 0.2 is left to gain at 0.85, and not at 0.96; nor where no group has a signal."""
    n = 120
    columns = {"reward_std": np.full(n, 0.2), "kl_ref": np.full(n, kl), "no_signal": np.full(n, no_signal)}
    reward = level + noise(np.random.default_rng(7), n, 0.01, 0.0)
    run = healthy(n=n, reward=reward, without=["kl_old", "heldout/retrieval"], **columns)
    assert [one.cause for one in said(reward_flat(run))] == (["not_moving"] if named else [])


def test_a_learning_rate_of_0_is_not_moving_where_no_kl_is_logged():
    run = healthy(n=N, reward=flat(), learning_rate=np.zeros(N), without=["kl_ref", "kl_old"])
    found = finding(reward_flat(run))
    assert found.cause == "not_moving"
    assert "learning rate is 0" in found.message


def test_steps_that_change_nothing_are_not_moving_however_far_the_kl_came():
    run = healthy(n=N, reward=flat(), kl_ref=np.full(N, 0.2), kl_old=np.full(N, 2e-6))
    assert finding(reward_flat(run)).cause == "not_moving"


def test_groups_without_differences_are_no_signal():
    run = healthy(n=N, reward=flat(), no_signal=np.full(N, 0.95), kl_ref=np.full(N, 1e-4))
    found = finding(reward_flat(run))
    assert (found.cause, nearest(found)) == ("no_signal", "no_signal_groups")
    assert found.overrides == ("rollout.samples_per_prompt=8",)


@pytest.mark.parametrize(
    ("gains", "flat_still"),
    [
        ({"greedy": np.tile([0.0, 0.1], 100)}, False),
        ({"sampled": np.tile([-0.1, 0.1], 100), "greedy": np.tile([0.0, 0.1], 100)}, False),
        ({"sampled": np.tile([-0.1, 0.1], 100)}, True),  # as many lost as gained
        ({"sampled": np.tile([0.0, -0.1], 100)}, True),
        ({"sampled": np.full(10, 0.1)}, True),  # too few problems
        ({}, True),
    ],
)
def test_a_reward_whose_held_out_problems_earned_more_after_training_is_not_flat(gains, flat_still):
    run = replace(healthy(n=N, reward=flat()), gains=gains)
    assert bool(said(reward_flat(run))) == flat_still


def test_a_policy_that_moves_without_gain_points_at_the_reward():
    assert finding(reward_flat(healthy(n=N, reward=flat()))).cause == "moving_without_gain"


def test_without_kl_learning_rate_groups_and_entropy_the_cause_is_unknown():
    run = healthy(
        n=N, reward=flat(), without=["kl_ref", "kl_old", "no_signal", "learning_rate", "entropy", "heldout/retrieval"]
    )
    assert finding(reward_flat(run)).cause == "unknown"


@pytest.mark.parametrize(
    ("change", "cause"), [(-0.5, "moving_without_gain"), (0.5, "moving_without_gain"), (0.0, "unknown")]
)
def test_without_kl_a_trend_of_the_entropy_shows_that_the_policy_moves(change, cause):
    entropy = 1.0 + np.linspace(0.0, change, N) + noise(np.random.default_rng(5), N, 0.05)
    run = healthy(n=N, reward=flat(), entropy=entropy, without=["kl_ref", "kl_old", "heldout/retrieval"])
    found = finding(reward_flat(run))
    assert (found.cause, "the entropy went from" in found.message) == (cause, bool(change))


def test_noise_that_could_hide_a_gain_is_unclear_and_names_the_gain():
    rng = np.random.default_rng(1)
    run = healthy(n=60, reward=0.5 + noise(rng, 60, 0.3), reward_std=np.full(60, 0.3))
    assert "0.075 would be worth having" in unclear(reward_flat(run)).message  # a quarter of 0.3


def test_a_plateau_after_a_rise_is_fine_however_quick_the_rise_was():
    rng = np.random.default_rng(0)
    for n, pace in ((2000, 3.0), (2000, 30.0), (2000, 200.0), (200, 30.0), (200, 60.0)):
        assert said(reward_flat(healthy(n=n, reward=rise(n, 0.2, 0.7, pace) + noise(rng, n, 0.02)))) == []


def test_a_level_reward_is_named_though_its_rise_could_be_more_than_the_spread_of_its_completions():
    # Completions of a prompt differ by .05, batches by .12 about 1.1: a quarter of .05 could not be seen.
    reward = 1.1 + noise(np.random.default_rng(2), 200, 0.12, 0.3)
    found = finding(reward_flat(healthy(n=200, reward=reward, reward_std=np.full(200, 0.05))))
    assert "does not rise in 200 steps" in found.message
    assert unclear(reward_flat(healthy(n=60, reward=reward[:60], reward_std=np.full(60, 0.05))))


def test_nothing_is_to_be_logged_that_is_logged():
    run = replace(make_run({"reward": flat()}, trainer="unknown"), traits=Traits(grouped=True))
    remedies = []
    for name in ("kl_ref", "no_signal"):
        remedies.append(finding(reward_flat(run)).remedy)
        values = np.full(N, 0.2)
        run = replace(run, series={**run.series, name: (Series(name, "", "", name, np.arange(N), values),)})
    remedies.append(finding(reward_flat(run)).remedy)
    assert ["the KL to the reference" in remedy for remedy in remedies] == [True, False, False]
    assert ["equal rewards" in remedy for remedy in remedies] == [True, True, False]
    with_critic = replace(run, series={"reward": run.series["reward"]}, traits=Traits(critic=True))
    assert "equal rewards" not in finding(reward_flat(with_critic)).remedy  # where they teach all the same


def test_a_reward_that_rests_near_its_top_is_in_order():
    reward = np.clip(0.93 + noise(np.random.default_rng(3), 200, 0.03), 0.0, 1.0)
    assert reward_flat(healthy(n=200, reward=reward))[0].state == "ok"
    assert finding(reward_flat(healthy(n=200, reward=reward - 0.4)))


def test_a_fall_that_the_trend_alone_shows_is_no_healthy_course():
    reward = 0.3 - 0.0006 * np.arange(200) + noise(np.random.default_rng(1), 200, 0.16)
    run = healthy(n=200, reward=reward, without=["heldout/retrieval"])
    assert said(reward_falling(run)) == []
    assert "does not rise in 200 steps" in finding(reward_flat(run)).message
    assert said(reward_flat(healthy(n=200, reward=reward))) == []  # held-out answers became better


# reward_constant


def test_one_reward_for_everything_is_critical():
    run = healthy(n=50, reward=np.full(50, 0.25), reward_std=np.zeros(50))
    found = finding(reward_constant(run))
    assert (found.cause, found.severity, found.since_step) == ("broken", "critical", 0)


def test_a_reward_that_stops_varying_below_its_best_broke_there():
    reward = rise(100, 0.2, 0.7)
    reward[60:] = 0.0
    spread = np.where(np.arange(100) < 60, 0.3, 0.0)
    found = finding(reward_constant(healthy(n=100, reward=reward, reward_std=spread)))
    assert (found.cause, found.severity, found.since_step) == ("broke", "critical", 60)


def test_a_reward_that_stays_at_its_best_is_solved():
    reward = np.minimum(rise(100, 0.2, 1.3), 1.0)
    found = finding(reward_constant(healthy(n=100, reward=reward, without=["reward_std", "reward_std_within"])))
    assert (found.cause, found.severity) == ("solved", "info")


def test_a_best_level_out_of_nowhere_is_no_success():
    reward = np.where(np.arange(100) < 60, rise(100, 0.2, 0.5), 1.2)
    spread = np.where(np.arange(100) < 60, 0.3, 0.0)
    assert finding(reward_constant(healthy(n=100, reward=reward, reward_std=spread))).cause == "broke"
    near = np.where(np.arange(100) < 60, rise(100, 0.2, 1.1), 1.2)
    assert finding(reward_constant(healthy(n=100, reward=near, reward_std=spread))).cause == "solved"


def test_the_most_that_any_completion_earned_is_solved_from_half_of_the_way():
    """A quick learner's last steps before are further off than its rewards differ at the end."""
    reward = np.where(np.arange(100) < 60, rise(100, 0.1, 0.7), 1.0)
    spread = np.where(np.arange(100) < 60, 0.05, 0.0)
    for most, cause in ((1.0, "solved"), (1.2, "broke")):
        run = healthy(n=100, reward=reward, reward_std=spread, reward_max=np.full(100, most))
        assert finding(reward_constant(run)).cause == cause
    low = np.where(np.arange(100) < 60, 0.2 + 0.001 * np.arange(100), 1.0)
    run = healthy(n=100, reward=low, reward_std=spread, reward_max=np.ones(100))
    assert finding(reward_constant(run)).cause == "broke"  # out of nowhere


def test_a_policy_that_was_sure_of_one_text_when_its_reward_became_constant_lost_the_others():
    reward = np.where(np.arange(100) < 60, rise(100, 0.2, 0.6), 0.4)
    spread = np.where(np.arange(100) < 60, 0.3, 0.0)
    gone, late = (series("entropy", np.where(np.arange(100) < lost, 3.0, 0.01), unit="nats/token") for lost in (58, 80))
    settings = {"temperature": 0.3, "clip": 0.2}
    found = finding(reward_constant(healthy(n=100, reward=reward, reward_std=spread, entropy=gone, settings=settings)))
    assert (found.cause, found.severity, found.overrides) == ("one_text", "critical", ("sampling.temperature=1",))
    # An engine died, and noise took the entropy afterwards.
    assert finding(reward_constant(healthy(n=100, reward=reward, reward_std=spread, entropy=late))).cause == "broke"


def test_a_mean_of_0_with_a_spread_was_centred_before_logging():
    found = finding(reward_constant(healthy(n=50, reward=np.zeros(50), reward_std=np.ones(50))))
    assert (found.cause, found.severity) == ("normalised", "info")


def test_nine_equal_rewards_are_too_few():
    reward = np.append(rise(50, 0.2, 0.7), np.full(9, 0.9))
    assert said(reward_constant(healthy(n=59, reward=reward))) == []


# reward_falling


def test_a_reward_that_collapses_late_is_found_with_its_step():
    rng = np.random.default_rng(0)
    reward = np.where(np.arange(N) < 300, rise(N, 0.2, 0.7), 0.3) + noise(rng, N, 0.03)
    found = finding(reward_falling(healthy(n=N, reward=reward)))
    assert found.cause == "unknown"
    assert 280 <= found.since_step <= 320
    assert found.overrides == ("update.learning_rate=0.0001",)


def test_a_fall_with_cut_off_texts_is_put_down_to_them():
    rng = np.random.default_rng(0)
    cut = np.clip(0.05 + 0.8 * np.arange(N) / N + noise(rng, N, 0.02), 0, 1)
    found = finding(reward_falling(healthy(n=N, reward=0.7 - 0.6 * cut + noise(rng, N, 0.02), truncated=cut)))
    assert (found.cause, nearest(found)) == ("bad_texts", "truncated")


def test_a_dip_smaller_than_what_matters_is_silent():
    # a quarter of the spread of 0.3 is 0.075
    reward = np.where(np.arange(N) < 300, 0.70, 0.65) + noise(np.random.default_rng(0), N, 0.002)
    assert said(reward_falling(healthy(n=N, reward=reward))) == []


def test_a_handful_of_steps_is_unclear_for_every_check():
    run = healthy(n=5)
    assert all("few" in unclear(check(run)).message for check in (reward_flat, reward_falling))


def test_a_reward_of_few_completions_that_halves_is_found_by_long_parts():
    rng = np.random.default_rng(4)
    share = np.where(np.arange(300) < 150, 0.65, 0.3)
    found = finding(reward_falling(healthy(n=300, reward=rng.binomial(4, share) / 4)))
    assert 100 <= found.since_step <= 200
    run = healthy(n=300, reward=rng.binomial(4, share) / 4)
    assert not any(result.state == "found" for result in reward_flat(run))


def test_noise_that_remembers_is_no_loss():
    every = [measure(series("reward", noise(np.random.default_rng(i), 200, 1.0, 0.5))) for i in range(300)]
    assert sum(levels.loss(0.0) is not None for levels in every) <= 3


@pytest.mark.weekly
def test_noise_alone_seldom_learns_in_logs_of_any_length():
    for n in (25, 100, 400):
        runs = [healthy(n=n, reward=0.5 + noise(np.random.default_rng(i), n, 0.05, 0.5)) for i in range(200)]
        assert sum(bool(learns(run)) for run in runs) <= 20  # a tenth; seven in a hundred are meant
