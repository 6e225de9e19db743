import numpy as np
import pytest

from steadyrl.doctor.checks.sampler import sampler_mismatch, sampling_gap, warped_sampling
from tests.doctor.checks.series_for_values import nearest, said


def sample(made, share, noise=0.03):
    """Let the mean -log p of the sampled tokens be a share of the exact entropy."""
    exact = made.curves[("entropy", "nats/token", "exact")]
    made.put("entropy", share * exact + noise * made.rng.normal(size=made.n), "nats/token", "sampled")


@pytest.mark.parametrize(
    ("share", "settings", "cause"),
    [
        (0.71, {"temperature": 0.7}, "temperature_or_truncation"),
        (0.89, {"top_p": 0.9}, "temperature_or_truncation"),
        (0.89, {"top_k": 50}, "temperature_or_truncation"),
        (0.71, {"temperature": None, "top_p": None, "top_k": None}, "temperature_or_truncation"),
        (1.27, {"temperature": 1.3}, "high_temperature_or_stale_weights"),
        (1.27, {}, "stale_weights"),
        (1.27, {"temperature": None}, "high_temperature_or_stale_weights"),
    ],
)
def test_the_direction_of_the_gap_names_the_cause(share, settings, cause, make, finding):
    made = make(0)
    sample(made, share)
    made.settings = {k: v for k, v in (made.settings | settings).items() if v is not None}
    found = finding(warped_sampling, made)
    assert (found.cause, found.since_step) == (cause, 0)


def test_the_gap_shows_on_the_first_day_while_every_kl_is_zero(make, finding):
    made = make(1, 10)
    made.kl(np.zeros(10))
    sample(made, 0.71)
    assert finding(warped_sampling, made).severity == "warning"


def test_the_gap_is_the_mean_difference(make):
    made = make(2)
    made.put("entropy", 2.0, "nats/token", "exact")
    made.put("entropy", np.tile([1.4, 1.6], 100), "nats/token", "sampled")
    gap = sampling_gap(made.run())
    assert gap.gap == pytest.approx(-0.5)
    assert gap.error == pytest.approx(0.1 / np.sqrt(49), rel=1e-3)  # and a trace of a trend
    assert (gap.onset, gap.sure) == (0, True)


def test_a_sampled_entropy_per_sequence_is_read_per_token(make, finding):
    made = make(3)
    exact = made.curves[("entropy", "nats/token", "exact")]
    made.curves.pop(("entropy", "nats/token", "sampled"))
    length = made.curves[("length", "tokens", "")]
    made.put("entropy", 0.71 * exact * length, "nats/sequence", "sampled")
    assert finding(warped_sampling, made).cause == "temperature_or_truncation"


def test_raw_logits_at_a_temperature_are_told_by_the_settings_alone(make, finding):
    made = make(4)
    made.drop("entropy")
    made.settings |= {"logprobs": "raw", "temperature": 0.7}
    found = finding(warped_sampling, made)
    assert (found.cause, found.overrides) == ("temperature_or_truncation", ("sampling.logprobs=sampled",))


def test_a_gap_that_closes_as_the_policy_grows_sure_shows_in_the_first_steps(make, finding, silent):
    """Of 3.5 nats of entropy all are lost between steps 10 and 30: over 50 steps the gap is no level."""
    made = make(8)
    entropy = 3.5 * np.interp(np.arange(made.n), [10, 30], [1.0, 0.001])
    made.put("entropy", entropy, "nats/token", "exact")
    sample(made, 0.9, noise=0.001)
    made.settings |= {"temperature": 0.7}
    silent(warped_sampling, made)
    made.settings |= {"logprobs": "raw"}
    assert finding(warped_sampling, made).since_step is None


def test_a_measured_gap_of_nothing_overrules_the_settings(make):
    made = make(5)
    made.settings |= {"logprobs": "raw", "temperature": 0.7}
    assert said(warped_sampling(made.run())) == []


def test_entropies_that_count_padding_do_not_tell(make, unclear):
    made = make(6)
    sample(made, 0.5)
    made.trainer = "trl-ppo"
    unclear(warped_sampling, made)


def test_one_entropy_alone_does_not_tell(make, unclear):
    made = make(7)
    made.curves.pop(("entropy", "nats/token", "sampled"))
    unclear(warped_sampling, made)


def test_a_sampler_that_differs_from_the_first_step_on_is_another_precision(make, finding):
    made = make(0)
    made.put("sampler_gap", 0.004 * np.exp(0.1 * made.noise()))
    assert finding(sampler_mismatch, made).cause == "precision"


def test_the_same_gap_is_usual_with_another_engine(make):
    made = make(0)
    made.trainer = "trl-grpo"
    made.put("sampler_gap", 0.02 * np.exp(0.1 * made.noise()))
    assert said(sampler_mismatch(made.run())) == []


def test_a_gap_of_the_size_of_one_update_means_stale_weights(make, finding):
    made = make(1)
    gap = 0.8 * np.sqrt(2 * made.curves[("kl_old", "nats/token", "k3")])
    gap[0] = 1e-6
    made.put("sampler_gap", gap)
    found = finding(sampler_mismatch, made)
    assert found.cause == "stale_weights"


def test_a_gap_that_the_entropy_shows_too_is_warped_sampling(make, finding):
    made = make(2)
    made.put("sampler_gap", 0.4)
    sample(made, 0.71)
    found = finding(sampler_mismatch, made)
    assert (found.cause, nearest(found)) == ("warped_sampling", "warped_sampling")


def test_a_tiny_importance_weight_means_other_weights_altogether(make, finding):
    made = make(3)
    made.put("importance", 0.03 + 0.002 * made.noise())
    found = finding(sampler_mismatch, made)
    assert (found.cause, found.severity) == ("stale_weights", "critical")


def test_rollouts_ahead_differ_as_they_are_asked_to_and_are_judged_by_their_weights(make, finding):
    made = make(3)
    made.put("sampler_gap", 0.3)
    made.settings["ahead"] = 4
    assert said(sampler_mismatch(made.run())) == []
    made.put("importance", 0.3)
    assert "importance 0.3, outside" in finding(sampler_mismatch, made).evidence[0]


def test_rounding_that_the_loss_corrects_for_is_no_mismatch_and_more_is(make, finding):
    made = make(3)
    made.put("sampler_gap", 0.01)
    assert finding(sampler_mismatch, made).cause == "precision"
    made.put("correction_weight", 1.0)
    assert said(sampler_mismatch(made.run())) == []
    made.put("sampler_gap", 0.1)
    assert finding(sampler_mismatch, made).cause == "precision"


def test_a_correction_that_drops_most_tokens_is_told_and_one_that_drops_some_is_not(make, finding):
    made = make(3)
    made.put("sampler_gap", 0.3)
    made.settings |= {"ahead": 1, "correction": "geometric"}
    made.put("correction_masked", 0.26)
    assert said(sampler_mismatch(made.run())) == []
    made.put("correction_masked", np.where(np.arange(200) < 20, 0.1, 0.75))
    found = finding(sampler_mismatch, made)
    assert (found.cause, found.since_step, found.overrides) == ("correction", 20, ("update.correction=token",))


def test_a_kl_between_sampler_and_trainer_is_a_mismatch(make, finding):
    made = make(4)
    made.put("kl_sampler", 0.3 + 0.01 * made.noise(), "nats/token", "k3")
    assert finding(sampler_mismatch, made).cause == "precision"


def test_more_surprise_than_there_is_entropy_means_tokens_that_were_never_drawn(make, finding):
    made = make(0)
    sample(made, 3.5)
    found = finding(warped_sampling, made)
    assert found.cause == "pad_leak"
    assert "end-of-sequence" in found.remedy
    assert found.overrides == ()


def test_a_kl_before_any_update_beside_the_gap_is_noise_in_the_policys_own_pass(make, finding):
    made = make(1)
    made.put("sampler_gap", 0.3)
    exact = made.curves[("kl_ref", "nats/token", "exact")]
    made.put("kl_ref", exact + 0.2, "nats/token", "exact")
    found = finding(sampler_mismatch, made)
    assert (found.cause, found.since_step) == ("policy_noise", 0)
    assert "0.2 before any update" in found.evidence[1]


def test_a_gap_that_closes_is_a_gap(make, finding):
    made = make(7, n=60)
    made.put("entropy", 1.5 + 0.05 * made.noise(), "nats/token", "exact")
    made.put("entropy", 1.5 + np.linspace(12.0, 1.0, 60) + 0.3 * made.noise(), "nats/token", "sampled")
    found = finding(warped_sampling, made)
    assert (found.cause, found.since_step) == ("pad_leak", 0)


def test_a_gap_that_opens_is_dated(make, finding):
    made = make(8)
    made.settings["temperature"] = 1.0
    sampled = made.curves[("entropy", "nats/token", "sampled")]
    made.put("entropy", sampled + 0.4 * (np.arange(200) >= 100), "nats/token", "sampled")
    found = finding(warped_sampling, made)
    assert found.cause == "stale_weights"
    assert 96 <= found.since_step <= 100
