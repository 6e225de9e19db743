import numpy as np
import pytest

from steadyrl.doctor.checks.kl_control import coefficient_moves, kl_controller, kl_unit_clash
from tests.doctor.checks.series_for_values import said


def control(made, target, unit, level, **settings):
    """Give a run an adaptive controller and a KL at ``level`` nats per sequence."""
    made.settings |= {"kl_adaptive": True, "kl_target": target, "kl_target_unit": unit, **settings}
    made.kl(np.minimum(np.arange(made.n) / 10.0, 1.0) * level * np.exp(0.05 * made.noise()))


def test_a_target_per_token_held_against_a_sum_is_a_clash(make, finding):
    made = make(0)
    control(made, 0.1, "nats/sequence", 2.2)  # 20 tokens: 0.11 per token
    found = finding(kl_unit_clash, made)
    assert found.cause == "target_per_token"
    assert found.overrides == ("algorithm.args.kl_target=2",)


def test_a_target_per_sequence_held_against_a_mean_is_a_clash(make, finding):
    made = make(1)
    control(made, 6.0, "nats/token", 6.5)
    assert finding(kl_unit_clash, made).cause == "target_per_sequence"


def test_a_target_that_no_policy_keeps_is_a_clash_where_it_drives_the_coefficient(make, finding, silent):
    made = make(4)
    control(made, 0.1, "nats/sequence", 10.0)  # 0.5 per token: near neither
    made.put("kl_coef", 0.01 * 1.01 ** np.arange(made.n))
    found = finding(kl_unit_clash, made)
    assert (found.cause, found.severity) == ("target_per_token", "warning")
    (advised,) = found.overrides  # the KL that the policy has come to: 0.1 times 20 tokens would be off again
    assert float(advised.split("=")[1]) == pytest.approx(10.0, rel=0.02)
    made.put("kl_coef", 0.01 * 1.00001 ** np.arange(made.n))  # it has done nothing yet
    silent(kl_unit_clash, made)


@pytest.mark.parametrize(("target", "level"), [(6.0, 6.5), (6.0, 60.0), (0.1, 200.0)])
def test_a_kl_near_its_target_or_off_in_both_units_is_no_clash(target, level, make):
    made = make(2)
    control(made, target, "nats/sequence", level)
    assert said(kl_unit_clash(made.run())) == []


def test_without_a_target_or_lengths_a_clash_cannot_be_told(make, unclear):
    made = make(3)
    made.settings["kl_adaptive"] = True
    unclear(kl_unit_clash, made)
    control(made, 0.1, "nats/sequence", 2.2)
    made.curves = {
        key: v for key, v in made.curves.items() if key[0] != "length" and key[:2] != ("kl_ref", "nats/token")
    }
    unclear(kl_unit_clash, made)


def test_a_constant_coefficient_far_from_the_target_is_no_controller(make, finding):
    made = make(0)
    control(made, 6.0, "nats/sequence", 40.0)
    found = finding(kl_controller, made)
    assert found.cause == "absent"
    assert 4 <= found.since_step <= 6  # above 18 nats, at 4 a step with noise


def test_the_published_horizon_is_slow_by_its_moves(make, finding):
    made = make(1)
    control(made, 6.0, "nats/sequence", 40.0)
    made.put("kl_coef", 0.05 * (1 + 0.2 * 64 / 10_000) ** np.arange(made.n))
    found = finding(kl_controller, made)
    assert found.cause == "slow"
    assert "moves by 0.128% a step, so that it doubles in 542 steps; the run has 200" in " ".join(found.evidence)
    # 0.2 x 128 x 20 / ln 2
    assert "=739" in found.overrides[0]


@pytest.mark.parametrize(
    ("target", "level", "advised"),
    [(0.3, 8.0, 8.0), (0.3, 40.0, 20.0), (0.45, 3.0, 3.0), (6.0, 40.0, None)],
)
def test_a_controller_that_is_slow_and_too_narrow_gets_a_target_that_can_be_kept(target, level, advised, make, finding):
    """It is the KL that the policy has come to, 20 nats at most."""
    made = make(9)
    control(made, target, "nats/sequence", level)
    made.put("kl_coef", 0.05 * (1 + 0.2 * 64 / 10_000) ** np.arange(made.n))
    _, *target_override = finding(kl_controller, made).overrides
    values = [float(override.removeprefix("algorithm.args.kl_target=")) for override in target_override]
    assert values == ([] if advised is None else [pytest.approx(advised, rel=0.05)])


@pytest.mark.parametrize(("gain", "advised"), [(2.0, []), (4.0, [20.0])])
def test_a_target_below_what_the_gain_took_is_raised_with_the_pace(gain, advised, make, finding):
    """A gain of 4 standard deviations takes 8 nats, which a target of 6 has not; one of 2 takes 2."""
    made = make(9)
    control(made, 6.0, "nats/sequence", 40.0)
    made.put("reward", np.where(np.arange(made.n) < 100, 0.0, 0.5 * gain))
    made.put("reward_std", 0.5)
    made.put("kl_coef", 0.05 * (1 + 0.2 * 64 / 10_000) ** np.arange(made.n))
    _, *target_override = finding(kl_controller, made).overrides
    assert [float(override.split("=")[1]) for override in target_override] == advised


def test_a_pace_of_almost_nothing_is_given_with_its_digits(make, finding):
    made = make(1)
    control(made, 6.0, "nats/sequence", 40.0)
    made.put("kl_coef", 0.05 * (1 + 2.5e-6) ** np.arange(made.n))
    assert "moves by 0.00025% a step" in " ".join(finding(kl_controller, made).evidence)


def test_the_published_horizon_is_slow_by_its_settings(make, finding):
    made = make(2)
    control(made, 6.0, "nats/sequence", 40.0, kl_horizon=10_000, kl_horizon_unit="samples", batch_size=64)
    made.drop("kl_coef")
    assert "needs 542 steps to double" in finding(kl_controller, made).evidence[1]


def test_a_controller_that_reaches_its_target_is_healthy(make):
    made = make(5)
    control(made, 6.0, "nats/sequence", 7.0)
    made.put("kl_coef", 0.05 * np.exp(0.1 * made.noise()))
    assert said(kl_controller(made.run())) == []


def test_a_coefficient_that_was_chosen_fixed_is_no_broken_controller(make):
    made = make(6)
    control(made, 6.0, "nats/sequence", 40.0, kl_adaptive=False)
    assert said(kl_controller(made.run())) == []


def test_without_a_target_the_controller_cannot_be_judged(make, unclear):
    made = make(7)
    made.settings["kl_adaptive"] = True
    unclear(kl_controller, made)


def test_moves_are_counted_per_step_and_not_per_logged_point(make):
    made = make(8, 50)
    made.put("kl_coef", 1.02 ** np.arange(50))
    run = made.run()
    for series in run.series["kl_coef"]:
        series.steps[:] = 10 * series.steps
    assert coefficient_moves(run).doubling == pytest.approx(350, rel=0.01)  # 35 points of 10 steps


def test_a_kl_of_one_step_tells_no_clash_of_units(make, unclear):
    made = make(0, 1)
    made.settings |= {"kl_adaptive": True, "kl_target": 0.1, "kl_target_unit": "nats/sequence"}
    unclear(kl_unit_clash, made)


@pytest.mark.parametrize(("level", "advised"), [(0.7, 10), (14.0, 14), (19.0, 19)])
def test_a_target_that_no_policy_could_keep_is_raised_to_where_one_can_learn(level, advised, make, finding):
    """A controller that holds the policy at 0.7 nats keeps its KL below what it would have to move by."""
    made = make(3)
    control(made, 0.01, "nats/sequence", level)
    made.put("kl_coef", 0.05 * 1.01 ** np.arange(made.n))
    found = finding(kl_unit_clash, made)
    assert found.cause == "target_per_token"
    assert float(found.overrides[0].removeprefix("algorithm.args.kl_target=")) == pytest.approx(advised, rel=0.1)
