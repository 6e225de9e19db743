import numpy as np
import pytest

from steadyrl.doctor.checks.negative_kl import negative_kl
from tests.doctor.checks.series_for_values import nearest, said


def fall_below(made, per_sequence=-5.0, k3_over_k1=1.0, since=40):
    """Let the sampled KL fall to a level, k3 staying positive."""
    t = np.arange(made.n)
    kl = np.where(t < since, 0.2 * t / max(since, 1), per_sequence) + 0.3 * made.noise()
    made.put("kl_ref", kl, "nats/sequence", "k1")
    made.put("kl_ref", kl / 20, "nats/token", "k1")
    made.put("kl_ref", np.abs(kl) / 20 * k3_over_k1, "nats/token", "k3")
    made.put("kl_ref", 0.3, "nats/token", "exact")
    made.put("kl_ref_se", 0.3)


@pytest.mark.parametrize("seed", range(5))
def test_a_gap_to_the_entropy_names_warped_sampling(seed, make, finding):
    made = make(seed)
    fall_below(made)
    made.settings["logprobs"] = "raw"
    exact = made.curves[("entropy", "nats/token", "exact")]
    made.put("entropy", 0.7 * exact + 0.03 * made.noise(), "nats/token", "sampled")
    found = finding(negative_kl, made)
    assert (found.cause, found.severity, found.since_step) == ("warped_sampling", "critical", 40)
    assert found.overrides == ("sampling.logprobs=sampled",)
    assert nearest(found) == "warped_sampling"


def test_raw_logprobs_with_a_temperature_are_warped_by_the_settings_alone(make, finding):
    made = make(1)
    fall_below(made)
    made.drop("entropy", "sampler_gap")
    made.settings |= {"logprobs": "raw", "temperature": 0.7, "top_p": 0.9}
    found = finding(negative_kl, made)
    assert found.cause == "warped_sampling"
    assert "temperature 0.7 and top_p 0.9" in " ".join(found.evidence)


def test_padding_shows_by_a_k3_far_above_k1(make, finding):
    # Simulated with padding in the mask: k1 -0.67, k3 1.46 nats per token, so that the mean of ref/p is 3.13.
    made = make(2)
    fall_below(made, per_sequence=-0.67 * 20, k3_over_k1=1.46 / 0.67)
    found = finding(negative_kl, made)
    assert found.cause == "pad_leak"
    assert "the mean of ref/p is 3.1" in " ".join(found.evidence)


def test_padding_shows_by_an_exact_kl_that_stays_positive_while_sampling_is_in_order(make, finding):
    made = make(2)
    fall_below(made)
    made.curves.pop(("kl_ref", "nats/token", "k3"))
    assert finding(negative_kl, made).cause == "pad_leak"


def test_noise_in_the_policys_pass_is_there_from_the_first_step(make, finding):
    # Simulated with dropout in the policy's pass: k1 -0.017, k3 0.019 nats per token.
    made = make(3)
    fall_below(made, per_sequence=-0.34, k3_over_k1=0.019 / 0.017, since=0)
    made.put("kl_ref", -0.34 + 0.05 * made.noise(), "nats/sequence", "k1")
    made.put("kl_ref_se", 0.05)
    found = finding(negative_kl, made)
    assert (found.cause, found.severity, found.since_step) == ("policy_noise", "warning", 0)


def test_without_anything_that_tells_the_cause_is_unknown(make, finding):
    made = make(5)
    fall_below(made)
    kl = made.curves[("kl_ref", "nats/sequence", "k1")]
    made.curves = {("kl_ref", "nats/sequence", "k1"): kl}
    made.settings = {}
    found = finding(negative_kl, made)
    assert (found.cause, found.severity) == ("unknown", "critical")


def test_a_negative_kl_without_a_penalty_on_it_is_a_warning(make, finding):
    made = make(6)
    fall_below(made)
    made.put("kl_coef", 0.0)
    assert finding(negative_kl, made).severity == "warning"


def test_a_negative_kl_that_ended_is_a_warning(make, finding):
    made = make(7)
    fall_below(made)
    for key in (("kl_ref", "nats/sequence", "k1"), ("kl_ref", "nats/token", "k1")):
        made.curves[key][100:] = 1.0
    assert finding(negative_kl, made).severity == "warning"


def scattered(made, mean, spread, batch=None):
    """Leave nothing but a KL that single updates throw to both sides of 0."""
    made.curves = {("kl_ref", "nats/sequence", "k1"): mean + spread * made.rng.normal(size=made.n)}
    made.settings = {} if batch is None else {"batch_size": batch}


@pytest.mark.parametrize(("mean", "spread", "batch"), [(9.0, 14.0, None), (2.0, 3.0, 16)])
def test_single_updates_far_below_what_chance_allows_are_a_fault(mean, spread, batch, make, finding):
    made = make(8, n=500)
    scattered(made, mean, spread, batch)
    kl = made.curves[("kl_ref", "nats/sequence", "k1")]
    found = finding(negative_kl, made)
    assert found.severity == "critical"
    assert f"below 0 in {(kl < 0).sum()} of 500 updates" in " ".join((found.message, *found.evidence))


@pytest.mark.parametrize("batch", [1, 4, 64])
def test_updates_as_far_below_zero_as_sound_batches_fall_are_no_fault(batch, make, silent):
    for seed in range(10):
        made = make(seed, n=500)
        true = 1.5  # nats: a log-ratio that is normal around it has a variance of twice that
        scattered(made, true, np.sqrt(2 * true / batch), batch)
        silent(negative_kl, made)


def test_noise_around_zero_is_no_fault(make, silent):
    for seed in range(50):
        made = make(seed)
        made.drop("kl_ref")
        made.put("kl_ref", 0.05 + 0.1 * made.noise(), "nats/sequence", "k1")
        made.put("kl_ref_se", 0.03)  # too small: rollouts of one prompt are alike
        silent(negative_kl, made)
        made.drop("kl_ref_se")
        silent(negative_kl, made)


def test_a_mean_below_zero_shows_over_a_whole_log_where_ten_steps_are_too_noisy(make, silent):
    for seed in range(10):
        made = make(seed, n=400)
        made.drop("kl_ref", "kl_ref_se")
        noise = 0.2 * made.rng.standard_normal(400)
        made.put("kl_ref", noise - noise.mean() - 0.1, "nats/sequence", "k1")  # 10 standard errors below 0
        (finding,) = negative_kl(made.run())
        assert finding.since_step == 0
        assert "about -0.1 nats/sequence" in " ".join(finding.evidence)
        made.drop("kl_ref")
        made.put("kl_ref", noise - noise.mean() - 0.02, "nats/sequence", "k1")  # 2 standard errors
        silent(negative_kl, made)


def test_rounding_below_zero_is_no_fault(make):
    made = make(0)
    made.drop("kl_ref")
    made.put("kl_ref", -2e-6, "nats/sequence", "k1")
    made.put("kl_ref_se", 1e-8)
    assert said(negative_kl(made.run())) == []


def test_estimators_that_cannot_be_negative_do_not_clear_a_run(make, unclear):
    made = make(0)
    made.curves.pop(("kl_ref", "nats/sequence", "k1"))
    made.curves.pop(("kl_ref", "nats/token", "k1"))
    assert "kl_ref (k1)" in unclear(negative_kl, made).would_tell


def test_a_few_steps_without_errors_do_not_tell(make, unclear):
    made = make(0, 20)
    made.drop("kl_ref", "kl_ref_se")
    made.put("kl_ref", -1.0, "nats/sequence", "k1")
    unclear(negative_kl, made)
