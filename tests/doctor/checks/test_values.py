import numpy as np
import pytest

from steadyrl.doctor.checks.values import advantage_off, explained_variance_low, value_loss_spikes
from tests.doctor.checks.series_for_values import (
    alone,
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

N = 200
BURST = slice(120, 126)


def spiked(base, size, where=BURST):
    values = np.array(base, float)
    values[where] = size
    return values


def quiet_loss(seed=0):
    return np.exp(np.log(0.5) + noise(np.random.default_rng(seed), N, 0.4))


def quiet_kl(seed=1):
    return 3.0 + noise(np.random.default_rng(seed), N, 0.3)


# value_loss_spikes


def test_a_spike_of_3000_with_a_kl_of_300_is_traced_to_the_kl():
    # coefficient 0.2 x KL 300 = 60; half of 60 squared is 1800, the whole 3600
    run = healthy(loss_value=spiked(quiet_loss(), 3000.0), kl_ref=spiked(quiet_kl(), 300.0), settings={"kl_coef": 0.2})
    found = finding(value_loss_spikes(run))
    assert (found.cause, found.since_step, found.severity) == ("kl", 120, "warning")
    assert "3000 at step 120" in " ".join(found.evidence)
    assert "update.learning_rate=0.0001" in found.overrides


def test_a_kl_that_spikes_too_explains_the_spike_also_where_it_is_logged_per_token():
    per_token = series("kl_ref", spiked(quiet_kl(), 300.0) / 50, unit="nats/token")
    length = np.full(N, 50.0) + noise(np.random.default_rng(4), N, 1.0)
    run = healthy(loss_value=spiked(quiet_loss(), 2000.0), kl_ref=per_token, length=length, settings={"kl_coef": 0.2})
    assert finding(value_loss_spikes(run)).cause == "kl"


def test_a_kl_spike_just_before_counts_without_a_known_coefficient():
    run = healthy(
        loss_value=spiked(quiet_loss(), 50.0),
        kl_ref=spiked(quiet_kl(), 90.0, slice(117, 124)),
        settings={"kl_coef": None},
    )
    assert finding(value_loss_spikes(run)).cause == "kl"


def test_an_outlier_of_the_reward_is_the_cause_where_the_kl_stayed():
    reward_max = spiked(1.0 + noise(np.random.default_rng(2), N, 0.02), 80.0)
    run = healthy(loss_value=spiked(quiet_loss(), 400.0), reward_max=reward_max)
    found = finding(value_loss_spikes(run))
    assert found.cause == "reward_outlier"
    assert "reward_max" in found.message


def test_a_least_reward_far_below_is_an_outlier_too():
    reward_min = spiked(noise(np.random.default_rng(2), N, 0.02), -80.0)
    assert finding(value_loss_spikes(healthy(loss_value=spiked(quiet_loss(), 400.0), reward_min=reward_min))).cause == (
        "reward_outlier"
    )


def test_longer_completions_are_told_from_a_kl_that_grew_per_token():
    length = spiked(50 + noise(np.random.default_rng(3), N, 2.0), 900.0)
    kl = quiet_kl() * length / 50
    run = healthy(loss_value=spiked(quiet_loss(), 60.0), kl_ref=kl, length=length)
    assert finding(value_loss_spikes(run)).cause == "length_jump"


def test_a_jump_of_the_values_alone_is_a_reset_of_the_head():
    value = np.concatenate([0.6 * np.ones(120), np.full(80, -4.0)]) + noise(np.random.default_rng(5), N, 0.02)
    loss = spiked(quiet_loss(), 12.0)
    found = finding(value_loss_spikes(healthy(loss_value=loss, value_mean=value)))
    assert found.cause == "value_reset"


def test_a_spike_with_nothing_beside_it_is_unknown():
    run = healthy(loss_value=spiked(quiet_loss(), 12.0))
    assert finding(value_loss_spikes(alone(run, "loss_value"))).cause == "unknown"


def test_one_single_spike_is_silent():
    assert said(value_loss_spikes(healthy(loss_value=spiked(quiet_loss(), 3000.0, 120)))) == []


def test_a_few_steps_do_not_tell_what_is_usual():
    assert "15 steps" in unclear(value_loss_spikes(healthy(n=15))).message


# explained_variance_low


def test_a_head_that_stays_worse_than_a_constant_is_untrained():
    explained = series("explained_variance", -1.5 + noise(np.random.default_rng(0), N, 0.3))
    flat = series("reward", 0.3 + noise(np.random.default_rng(1), N, 0.02))
    found = finding(explained_variance_low(healthy(explained_variance=explained, reward=flat)))
    assert (found.cause, found.severity) == ("untrained_head", "warning")
    assert found.since_step == 40  # the first fifth is not judged
    assert set(found.overrides) == {
        "algorithm.args.value_start=mean_return",
        "algorithm.args.value_learning_rate=0.0001",
        "algorithm.args.value_warmup_steps=10",
    }
    learning = finding(explained_variance_low(healthy(explained_variance=explained)))
    assert learning.severity == "info", "the reward of the healthy run rises all the same"


def test_mean_value_and_mean_return_tell_it_where_only_the_uncentred_formula_is_logged():
    rng = np.random.default_rng(0)
    # 1 - (bias^2 + variance of the error) / variance = 1 - (0.8^2 + 0.15^2) / 0.3^2 = -6.4
    explained = series("explained_variance", -6.4 + noise(rng, N, 0.3), estimator="uncentred")
    columns = {"return_mean": 0.8 + noise(rng, N, 0.01), "value_mean": noise(rng, N, 0.01)}
    run = healthy(explained_variance=explained, return_std=0.3 + noise(rng, N, 0.01), **columns)
    shifted = finding(explained_variance_low(run))
    assert (shifted.cause, shifted.overrides) == ("offset", ("algorithm.args.value_start=mean_return",))
    level = healthy(
        explained_variance=explained, return_std=0.3 * np.ones(N), return_mean=np.zeros(N), value_mean=np.zeros(N)
    )
    assert finding(explained_variance_low(level)).cause == "untrained_head"


def test_returns_that_do_not_vary_make_it_meaningless():
    run = healthy(explained_variance=np.full(N, -3.0), return_std=np.zeros(N))
    found = finding(explained_variance_low(run))
    assert (found.cause, nearest(found)) == ("constant_returns", "reward_constant")


def test_a_head_that_climbs_from_minus_six_to_above_zero_is_fine():
    assert said(explained_variance_low(healthy(explained_variance=rise(N, -6.0, 0.4, pace=8.0)))) == []


def test_a_short_run_leaves_the_head_no_time_to_be_judged():
    assert "settle" in unclear(explained_variance_low(healthy(n=29))).message


# advantage_off


def test_whitened_advantages_with_a_mean_are_off_too():
    advantage = 0.4 + noise(np.random.default_rng(0), N, 0.05)
    run = healthy(advantage_mean=advantage, settings={"whitened": True, "batch_size": 256}, without=["advantage_std"])
    run = run.__class__(**{**vars(run), "trainer": "trl-ppo-old"})
    found = finding(advantage_off(run))  # 3 / sqrt(256) = 0.19
    assert (found.cause, found.severity) == ("not_whitened", "warning")


def test_advantages_that_are_not_centred_are_named_so():
    run = healthy(advantage_mean=0.5 + noise(np.random.default_rng(0), N, 0.03), settings={"batch_size": 256})
    found = finding(advantage_off(run.__class__(**{**vars(run), "trainer": "verl"})))
    assert found.cause == "not_whitened"
    assert found.overrides == ("algorithm.args.whiten_advantages=true",)


def test_the_mean_over_tokens_of_a_group_baseline_is_worth_knowing_only():
    run = healthy(
        advantage_mean=-0.2 + noise(np.random.default_rng(0), N, 0.02), settings={"batch_size": 256}, algorithm="grpo"
    )
    found = finding(advantage_off(run))
    assert (found.severity, found.cause) == ("info", "length_correlation")
    assert "worse" in found.message


def test_advantages_logged_before_whitening_may_have_a_mean():
    assert said(advantage_off(healthy(advantage_mean=np.full(N, 0.5), settings={"batch_size": 256}))) == []


def test_a_mean_within_the_error_of_16_completions_is_silent():
    # the founding run: mean advantage about -0.006 over 16 completions of 32 tokens; 3 / sqrt(16) = 0.75
    run = healthy(advantage_mean=np.full(N, -0.006), settings={"whitened": True, "batch_size": 16})
    assert said(advantage_off(run.__class__(**{**vars(run), "trainer": "trl-ppo-old"}))) == []


def test_without_a_spread_the_advantages_cannot_be_judged():
    run = healthy(without=["advantage_std"])
    assert "advantage_std" in unclear(advantage_off(run.__class__(**{**vars(run), "trainer": "verl"}))).would_tell


@pytest.mark.parametrize("name", ["loss_value", "explained_variance", "advantage_mean"])
def test_what_is_not_logged_is_unclear(name):
    check = {"loss_value": value_loss_spikes, "explained_variance": explained_variance_low}.get(name, advantage_off)
    assert unclear(check(healthy(without=[name]))).would_tell == (name,)


def test_a_value_loss_far_beyond_the_square_of_the_rewards_is_named_without_an_explained_variance():
    n = 20
    run = make_run({"reward": np.full(n, 0.3), "reward_std": np.full(n, 0.4), "loss_value": np.full(n, 100.0)})
    found = finding(explained_variance_low(run))
    assert (found.cause, found.severity) == ("value_far_off", "warning")
    assert "off by about 10, and returns are about 0.5" in found.message  # 3-4-5
    near = make_run({"reward": np.full(n, 0.3), "reward_std": np.full(n, 0.4), "loss_value": np.full(n, 74.0)})
    # 74 is below 300 * 0.5^2
    assert unclear(explained_variance_low(near)).message == "the log has no explained variance"


@pytest.mark.parametrize(("mean", "far"), [(0.3, True), (-0.002, False)])
def test_a_mean_reward_near_0_without_its_spread_says_nothing_of_the_size_of_returns(mean, far):
    rewards = mean * np.linspace(0.5, 1.5, 20)
    results = explained_variance_low(make_run({"reward": rewards, "loss_value": np.full(20, 100.0)}))
    assert [result.cause for result in results if result.state == "found"] == ["value_far_off"] * far


def test_thirty_rows_of_an_explained_variance_far_below_0_are_enough():
    run = make_run({"explained_variance": -3.0 + noise(np.random.default_rng(0), 30, 0.2)})
    assert finding(explained_variance_low(run)).severity == "warning"


@pytest.mark.parametrize(
    ("value", "step", "far"), [(0.875, 400, True), (-0.5, 400, True), (0.31, 400, False), (0.875, 8, False)]
)
def test_values_far_outside_all_returns_are_named_once_the_head_has_settled(value, step, far):
    logged = {"loss_value": 0.01, "value_mean": value, "return_min": 0.25, "return_mean": 0.3, "return_max": 0.375}
    run = make_run({name: series(name, np.array([number]), np.array([step])) for name, number in logged.items()})
    causes = [result.cause for result in explained_variance_low(run) if result.state == "found"]
    assert causes == (["value_far_off"] if far else [])
