"""Healthy runs keep the checks on KL, entropy, ratios, sampler and learning rate silent; all of them are quick."""

import time

import numpy as np
import pytest

from steadyrl.doctor.checks import entropy, kl, kl_control, learning_rate, negative_kl, ratios, sampler
from steadyrl.doctor.series import Run, Series

CHECKS = (
    negative_kl.negative_kl,
    sampler.warped_sampling,
    sampler.sampler_mismatch,
    kl.kl_runaway,
    kl.kl_zero,
    kl_control.kl_unit_clash,
    kl_control.kl_controller,
    entropy.entropy_collapse,
    entropy.entropy_explosion,
    entropy.entropy_is_a_sum,
    ratios.ratio_off,
    ratios.clip_fraction_high,
    ratios.policy_loss_spikes,
    learning_rate.learning_rate_too_high,
    learning_rate.learning_rate_too_low,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
@pytest.mark.parametrize("steps", [30, 200])
def test_fifty_healthy_runs_with_correlated_noise_keep_a_check_silent(check, steps, make, silent):
    for seed in range(50):
        silent(check, make(seed, steps))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_run_without_logged_errors_and_per_token_values_only_stays_silent(check, make, silent):
    for seed in range(50):
        made = make(seed)
        made.drop("kl_ref_se")
        made.curves.pop(("kl_ref", "nats/sequence", "k1"))
        made.curves.pop(("kl_ref", "nats/token", "exact"))
        silent(check, made)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_learning_rate_that_falls_to_nothing_is_no_fault(check, make, silent):
    for seed in range(20):
        made = make(seed)
        left = np.linspace(1.0, 1e-3, made.n)
        made.put("learning_rate", 1e-4 * left)
        for quantity, power in (("kl_old", 2), ("clip_fraction", 1)):
            values = next(v for k, v in made.curves.items() if k[0] == quantity)
            made.put(quantity, values * left**power)
        silent(check, made)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_short_completions_of_a_small_model_with_two_nats_per_token_are_healthy(check, make, silent):
    for seed in range(20):
        made = make(seed)
        made.put("length", 4.5)
        for (quantity, unit, _), values in made.curves.items():
            if quantity == "kl_ref" and unit == "nats/token":
                values *= 20.0 / 4.5
        silent(check, made)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_every_check_explains_itself_to_a_newcomer(check):
    assert check.title and check.symptom and check.healthy and check.source and check.causes
    assert all(cause.sign and cause.remedy for cause in check.causes)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_log_without_anything_is_never_called_healthy(check, make):
    made = make(0)
    made.curves, made.settings = {}, {}
    if check.name != "warped_sampling":
        assert check.needs
    assert [result.state for result in check(made.run())] == ["unknown"]


@pytest.mark.weekly
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_million_steps_take_a_check_less_than_half_a_second(check, make):
    short = make(0, 2000).run()
    series = {}
    for quantity, several in short.series.items():
        series[quantity] = tuple(
            Series(s.quantity, s.unit, s.estimator, s.source, np.arange(1_000_000), np.tile(s.values, 500))
            for s in several
        )
    run = Run("made", "steadyrl", "ppo", series, short.settings)
    start = time.process_time()
    check(run)
    assert time.process_time() - start < 0.5
