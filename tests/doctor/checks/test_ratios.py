import numpy as np
import pytest

from steadyrl.doctor.checks.ratios import clip_fraction_high, policy_loss_spikes, ratio_off
from tests.doctor.checks.series_for_values import said


def test_a_mean_ratio_that_is_off_from_the_first_step_blames_the_old_logprobs(make, finding):
    made = make(0)
    made.put("ratio_mean", 1.4 + 0.02 * made.noise())
    found = finding(ratio_off, made)
    assert (found.cause, found.severity, found.since_step) == ("old_logprobs", "warning", 0)


@pytest.mark.parametrize("seed", range(5))
def test_a_mean_ratio_that_goes_off_with_large_updates_blames_the_learning_rate(seed, make, finding):
    made = make(seed)
    made.curves[("ratio_mean", "", "")][80:] *= 2.0
    made.curves[("kl_old", "nats/token", "k3")][78:] = 0.3
    found = finding(ratio_off, made)
    assert (found.cause, found.since_step) == ("learning_rate", 80)


def test_a_single_batch_above_ten_is_told(make, finding):
    made = make(1)
    made.curves[("ratio_mean", "", "")][120] = 37.0
    found = finding(ratio_off, made)
    assert (found.cause, found.since_step) == ("learning_rate", 120)


def test_single_tokens_above_a_hundred_are_told_where_they_last(make, finding):
    made = make(2)
    made.curves[("ratio_max", "", "")][50:60] = 400.0
    assert finding(ratio_off, made).since_step == 50
    made.curves[("ratio_max", "", "")][51:60] = 3.0
    assert said(ratio_off(made.run())) == []


@pytest.mark.parametrize("seed", range(5))
def test_many_passes_with_a_large_step_blame_the_epochs(seed, make, finding):
    made = make(seed)
    made.put("clip_fraction", 0.3 + 0.02 * made.noise())
    made.put("kl_old", 0.06)
    made.settings["epochs"] = 8
    found = finding(clip_fraction_high, made)
    assert (found.cause, found.overrides) == ("epochs", ("update.epochs=3",))  # 0.06 is 12 times 0.005: 8 / 3.5


def test_of_a_run_that_learns_nothing_one_pass_is_left(make, finding):
    made = make(3)
    made.put("clip_fraction", 0.3 + 0.02 * made.noise())
    made.put("kl_old", 0.06)
    made.put("reward", 0.4 + 0.01 * made.noise())
    made.settings["epochs"] = 8
    assert finding(clip_fraction_high, made).overrides == ("update.epochs=1",)


def test_few_passes_with_a_large_step_blame_the_learning_rate(make, finding):
    made = make(1)
    made.put("clip_fraction", 0.3 + 0.02 * made.noise())
    made.put("kl_old", 0.06)
    found = finding(clip_fraction_high, made)
    assert (found.cause, found.overrides) == ("learning_rate", ("update.learning_rate=5e-05",))


def test_one_update_per_batch_can_clip_nothing(make, finding):
    made = make(2)
    made.put("updates", 1.0)
    made.put("clip_fraction", 0.3)
    assert finding(clip_fraction_high, made).cause == "old_logprobs"


def test_clipping_at_the_start_of_a_warm_up_blames_the_old_logprobs(make, finding):
    made = make(3)
    made.put("clip_fraction", 0.3)
    made.put("learning_rate", 1e-4 * np.minimum((np.arange(made.n) + 1) / 20, 1.0))
    assert finding(clip_fraction_high, made).cause == "old_logprobs"


def test_a_first_step_that_really_moves_the_policy_does_not_blame_the_old_logprobs(make, finding):
    made = make(3)
    made.put("clip_fraction", 0.5)
    made.put("kl_old", 1.4)
    made.put("learning_rate", 1e-2 * np.minimum((np.arange(made.n) + 1) / 20, 1.0))
    made.kl(np.minimum(np.arange(made.n) * 20.0, 140.0))  # 7 nats per token within ten steps
    assert finding(clip_fraction_high, made).cause == "learning_rate"


def test_a_small_step_leaves_the_cause_of_clipping_unknown(make, finding):
    made = make(4)
    made.put("clip_fraction", 0.3)
    assert finding(clip_fraction_high, made).cause == "unknown"


def test_the_onset_is_the_tenth_of_the_run_that_is_first_above(make, finding):
    made = make(5)
    made.put("clip_fraction", np.where(np.arange(made.n) < 100, 0.1, 0.3))
    assert finding(clip_fraction_high, made).since_step == 100


@pytest.mark.parametrize("algorithm", ["gspo", "cispo"])
def test_algorithms_that_clip_by_design_are_not_judged(algorithm, make):
    made = make(6)
    made.algorithm = algorithm
    made.put("clip_fraction", 0.6)
    assert said(clip_fraction_high(made.run())) == []


@pytest.mark.parametrize(("updates", "found"), [(2.0, 1), (4.0, 0)])
def test_group_relative_algorithms_with_few_updates_have_a_lower_limit(updates, found, make):
    made = make(7)
    made.algorithm = "grpo"
    made.put("updates", updates)
    made.put("clip_fraction", 0.15)
    assert len(said(clip_fraction_high(made.run()))) == found


SPIKES = [60, 100, 140]


def spike(made, **at_spikes):
    """Let the policy loss jump at three steps, and other metrics with it."""
    made.curves[("loss_policy", "", "")][SPIKES] = 2.0
    for quantity, value in at_spikes.items():
        key = next(key for key in made.curves if key[0] == quantity)
        made.curves[key][SPIKES] = value


@pytest.mark.parametrize("seed", range(5))
def test_a_ratio_that_blows_up_is_named(seed, make, finding):
    made = make(seed)
    spike(made, ratio_max=80.0)
    found = finding(policy_loss_spikes, made)
    assert (found.cause, found.severity, found.since_step) == ("learning_rate", "warning", 60)
    assert found.evidence[0] == "steps 60, 100, 140"


def test_advantages_that_jump_are_named(make, finding):
    made = make(1)
    made.put("advantage_std", np.exp(0.1 * made.noise()))
    spike(made, ratio_max=80.0, advantage_std=20.0)
    assert finding(policy_loss_spikes, made).cause == "advantages"


def test_a_large_step_without_ratios_blames_the_learning_rate(make, finding):
    made = make(3)
    made.drop("ratio_mean", "ratio_max")
    spike(made, kl_old=0.6)
    assert finding(policy_loss_spikes, made).cause == "learning_rate"


def test_spikes_of_the_loss_alone_mean_nothing(make):
    made = make(4)
    spike(made)
    assert said(policy_loss_spikes(made.run())) == []


def test_one_spike_is_information(make, finding):
    made = make(5)
    made.curves[("loss_policy", "", "")][60] = 2.0
    made.curves[("ratio_max", "", "")][60] = 80.0
    assert finding(policy_loss_spikes, made).severity == "info"


def test_without_ratios_a_loss_does_not_tell(make, unclear):
    made = make(6)
    made.drop("ratio_mean", "ratio_max", "kl_old")
    unclear(policy_loss_spikes, made)


@pytest.mark.parametrize(("clip", "cause"), [(0.02, "narrow_range"), (0.1, "unknown")])
def test_much_clipping_of_small_steps_blames_a_narrow_range(clip, cause, make, finding):
    made = make(1)
    made.put("clip_fraction", 0.4 + 0.02 * made.noise())
    made.put("kl_old", 0.001)
    made.settings |= {"clip": clip, "clip_low": clip}
    found = finding(clip_fraction_high, made)
    advised = ("algorithm.args.clip_high=0.2", "algorithm.args.clip_low=0.2")
    assert (found.cause, found.overrides) == (cause, advised if cause == "narrow_range" else ())
