import numpy as np
import pytest

from steadyrl.doctor.checks.kl import kl_runaway, kl_zero
from tests.doctor.checks.series_for_values import make_run, nearest, said, series


def run_away(made, to=80.0, since=60):
    """Let the KL rise from 2 to ``to`` nats per sequence."""
    t = np.arange(made.n)
    kl = np.where(t < since, 2.0 * t / since, 2.0 + (to - 2.0) * (t - since) / (made.n - since))
    made.kl(kl * np.exp(0.05 * made.noise()))


@pytest.mark.parametrize("seed", range(5))
def test_large_updates_are_what_drives_it_away(seed, make, finding):
    made = make(seed)
    run_away(made)
    made.curves[("kl_old", "nats/token", "k3")][60:] = 0.4
    found = finding(kl_runaway, made)
    assert (found.cause, found.severity, nearest(found)) == ("learning_rate", "warning", "learning_rate_too_high")
    assert found.overrides == ("update.learning_rate=2e-05", "update.epochs=1")  # a 9th
    assert 85 < found.since_step < 120  # 20 nats per sequence are reached near step 92


def test_a_collapse_that_truncated_sampling_hides_is_seen_in_the_whole_vocabulary(make, finding):
    made = make(0)
    made.kl(np.zeros(made.n))
    full = np.where(np.arange(made.n) < 100, 0.05, 6.0)
    made.put("kl_ref_full", full, "nats/token", "exact")
    made.settings |= {"top_p": 0.9, "top_k": 50}
    found = finding(kl_runaway, made)
    assert (found.cause, found.severity, found.since_step) == ("truncation", "warning", 100)
    assert "kl_ref_full is 6 nats per token, kl_ref 0" in found.message
    assert found.overrides == ("sampling.top_p=1", "sampling.top_k=0")


def test_what_truncation_cuts_from_the_start_is_no_drift(make, finding):
    """A flat policy under a low top_k has much outside of it, and a policy that learns has it in both KLs."""
    made = make(0)
    kl = np.linspace(0.0, 0.5, made.n)
    made.kl(kl * 40)
    made.put("kl_ref_full", kl + 1.5, "nats/token", "exact")
    assert [one.state for one in kl_runaway(made.run())] == ["ok"]


@pytest.mark.parametrize(
    ("full", "kl", "causes"),
    [
        # Measured by bench/truncated_kl.py, nats per token at steps of equal distance. Collapses under top_p = 0.9:
        ([0.07, 3.35, 6.45, 6.18, 6.91, 6.71, 6.48], [0.0, 3.01, 0.45, 0.0, 0.0, 0.0, 0.0], ["truncation"]),
        ([0.10, 0.26, 0.59, 1.31, 2.13, 3.32, 3.67], [0.0, 0.05, 0.24, 0.65, 0.82, 0.45, 0.19], ["truncation"]),
        # Learning under top_p = 0.9, of the base model and of the toy backend:
        ([0.07, 0.49, 0.76, 1.36, 1.73, 0.89, 1.10], [0.0, 0.41, 0.49, 1.15, 0.73, 0.58, 0.70], []),
        ([0.10, 0.33, 0.72, 1.02, 1.14, 1.45, 1.55], [0.0, 0.13, 0.34, 0.46, 0.50, 0.60, 0.61], []),
    ],
)
def test_a_hidden_collapse_is_told_in_measured_runs_and_learning_is_not(full, kl, causes, make):
    made = make(0)
    over = np.linspace(0.0, 6.0, made.n)
    made.kl(6.0 * np.interp(over, range(7), kl))  # of six tokens
    made.curves[("kl_ref", "nats/token", "exact")] = np.interp(over, range(7), kl)
    made.put("kl_ref_full", np.interp(over, range(7), full), "nats/token", "exact")
    assert [one.cause for one in kl_runaway(made.run()) if one.state == "found"] == causes


def test_a_coefficient_of_zero_is_no_penalty(make, finding):
    made = make(0)
    run_away(made)
    made.put("kl_coef", 0.0)
    assert finding(kl_runaway, made).cause == "weak_penalty"
    made.put("reward", 0.3 + 0.02 * made.noise())
    assert finding(kl_runaway, made).overrides == ("algorithm.args.kl_coef=0.05",)


def test_the_remedy_starts_from_the_coefficient_that_the_run_has(make, finding):
    made = make(0)
    run_away(made)
    made.put("kl_coef", 0.02)
    found = finding(kl_runaway, made)
    assert found.remedy.startswith("Raise the coefficient from 0.02 to 0.04, or let it adapt to a target")
    assert "from 0 " not in found.remedy
    assert found.overrides == ()  # the reward rises: it is what the distance was paid for
    made.put("reward", 0.3 + 0.02 * made.noise())
    assert finding(kl_runaway, made).overrides == ("algorithm.args.kl_coef=0.04",)


def test_a_constant_coefficient_is_no_controller(make, finding):
    made = make(1)
    run_away(made)
    assert finding(kl_runaway, made).cause == "weak_penalty"


def test_a_coefficient_that_hardly_moves_is_slow(make, finding):
    made = make(2)
    run_away(made)
    made.put("kl_coef", 0.05 * 1.00128 ** np.arange(made.n))  # doubles in 542 steps, of 200
    found = finding(kl_runaway, made)
    assert (found.cause, nearest(found)) == ("controller_slow", "kl_controller")


def test_an_unknown_coefficient_leaves_the_cause_unknown(make, finding):
    made = make(3)
    run_away(made)
    made.drop("kl_coef")
    del made.settings["kl_coef"]
    assert finding(kl_runaway, made).cause == "unknown"


def test_a_large_kl_at_the_first_step_is_another_reference(make, finding):
    made = make(4)
    made.kl(30.0 * np.exp(0.05 * made.noise()))
    found = finding(kl_runaway, made)
    assert (found.cause, found.since_step) == ("reference_mismatch", 0)


@pytest.mark.parametrize(("to", "severity"), [(0.8, "info"), (-0.3, "warning")])
def test_returns_that_rise_show_that_another_reference_does_no_harm(to, severity, make, finding):
    made = make(4)
    made.trainer = "trl-ppo-old"
    made.kl(30.0 * np.exp(0.05 * made.noise()))
    made.drop("reward", "reward_std")
    made.put("return_mean", np.linspace(-0.3, to, made.n) + 0.1 * made.noise(), "reward")
    assert finding(kl_runaway, made).severity == severity


def test_a_falling_reward_at_three_nats_per_token_is_beyond_doubt(make, finding):
    made = make(5)
    run_away(made, to=120.0)
    made.put("reward", np.linspace(0.5, 0.1, made.n) + 0.02 * made.noise())
    assert finding(kl_runaway, made).severity == "critical"


def test_a_high_kl_that_no_longer_rises_is_information(make, finding):
    made = make(6)
    t = np.arange(made.n)
    made.kl(np.minimum(t, 30.0) * np.exp(0.03 * made.noise()))
    assert finding(kl_runaway, made).severity == "info"


def test_long_completions_have_healthily_more_per_sequence(make):
    made = make(7)
    made.put("length", 1000.0)
    kl = np.minimum(np.arange(made.n) / 2, 60.0)
    made.kl(kl)
    for key in [k for k in made.curves if k[:2] == ("kl_ref", "nats/token")]:
        made.curves[key] = kl / 1000
    assert said(kl_runaway(made.run())) == []


def test_three_times_a_target_in_the_same_unit_is_a_runaway(make, finding):
    made = make(8)
    run_away(made, to=19.0)
    made.settings |= {"kl_target": 3.0, "kl_target_unit": "nats/sequence", "kl_adaptive": True}
    found = finding(kl_runaway, made)
    assert "3 times the target of 3" in found.evidence[0]


def test_a_kl_without_a_unit_is_never_held_against_a_number_while_the_reward_rises(make, finding):
    made = make(9)
    made.drop("kl_ref", "kl_ref_se")
    made.put("kl_ref", np.linspace(0, 500, made.n))
    found = finding(kl_runaway, made)
    assert (found.cause, found.severity) == ("unit_unknown", "info")


def stand_still(made):
    for key in made.curves:
        if key[0] == "kl_ref":
            made.curves[key] = np.zeros(made.n)


def test_a_learning_rate_of_zero_makes_no_update(make, finding):
    made = make(0)
    stand_still(made)
    made.put("learning_rate", 0.0)
    found = finding(kl_zero, made)
    assert (found.cause, found.severity, found.since_step) == ("no_update", "critical", 1)


def test_no_gradient_makes_no_update(make, finding):
    made = make(0)
    stand_still(made)
    made.put("grad_norm", 0.0)
    assert finding(kl_zero, made).cause == "no_update"


def test_groups_of_equal_rewards_make_no_advantage(make, finding):
    made = make(1)
    stand_still(made)
    made.put("grad_norm", 0.0)
    made.put("no_signal", 1.0)
    assert finding(kl_zero, made).cause == "no_advantage"


def test_a_policy_that_moves_against_itself_is_the_same_object(make, finding):
    made = make(2)
    stand_still(made)
    found = finding(kl_zero, made)
    assert (found.cause, found.severity) == ("not_compared", "warning")
    assert "clip fraction" in " ".join(found.evidence)


def rest(made):
    """Take away what would show that the policy moves."""
    stand_still(made)
    made.drop("kl_old", "clip_fraction")
    made.put("entropy", 2.0 + 0.02 * made.noise(), "nats/token", "exact")


def test_small_updates_of_bfloat16_weights_are_rounded_away(make, finding):
    made = make(3)
    rest(made)
    made.settings |= {"dtype": "bfloat16", "learning_rate": 1e-6}
    made.put("learning_rate", 1e-6)
    found = finding(kl_zero, made)
    assert (found.cause, found.overrides) == ("bf16_rounding", ("update.learning_rate=1e-05",))


def test_gradients_that_are_not_finite_skip_the_update(make, finding):
    made = make(4)
    rest(made)
    made.put("grad_norm", np.inf)
    assert finding(kl_zero, made).cause == "no_update"


def test_nothing_that_tells_leaves_it_unknown(make, finding):
    made = make(5)
    rest(made)
    assert finding(kl_zero, made).cause == "unknown"


def test_a_warm_up_that_ends_is_information(make, finding):
    made = make(6)
    for key in made.curves:
        if key[0] == "kl_ref":
            made.curves[key][:10] = 0.0
    made.curves[("learning_rate", "", "")][:10] = 0.0
    found = finding(kl_zero, made)
    assert (found.cause, found.severity) == ("no_update", "info")


def test_a_small_kl_is_not_zero(make):
    made = make(7)
    made.kl(1e-6 * np.exp(made.noise()))
    assert said(kl_zero(made.run())) == []


def test_our_own_first_step_shows_another_reference_however_small_the_kl(make, finding):
    """It is measured before any update, so that 0.01 nats are no update's."""
    made = make(3)
    exact = made.curves[("kl_ref", "nats/token", "exact")]
    made.put("kl_ref", exact + 0.01, "nats/token", "exact")
    found = finding(kl_runaway, made)
    assert (found.cause, found.since_step) == ("reference_mismatch", 0)


def test_a_rising_kl_under_a_fixed_coefficient_is_the_price_of_a_rising_reward(make, finding):
    made = make(4)
    made.kl(np.linspace(0.0, 80.0, made.n))
    made.curves = {key: value for key, value in made.curves.items() if key[0] not in ("kl_old", "clip_fraction")}
    found = finding(kl_runaway, made)
    assert (found.cause, found.severity) == ("weak_penalty", "info")
    made.put("reward", 0.2, "reward", "")
    assert finding(kl_runaway, made).severity in ("warning", "critical")


def in_no_unit(values, reward, steps=None):
    columns = {"kl_ref": series("kl_ref", values, steps, unit="", estimator="")}
    return make_run({**columns, "reward": series("reward", reward, steps)}, "grpo", "unknown")


def test_a_kl_of_unknown_unit_that_grows_to_what_is_high_in_any_unit_is_named_unless_the_reward_rises():
    steps = np.arange(8) * 25
    found = kl_runaway(in_no_unit(np.geomspace(0.05, 40.0, 8), np.full(8, 0.5), steps))[0]
    assert (found.state, found.severity, found.since_step) == ("found", "warning", 175)
    assert "grew from" in found.message and "to 40 " in found.message
    assert kl_runaway(in_no_unit(np.geomspace(0.05, 4.0, 8), np.full(8, 0.5), steps))[0].state == "unknown"
    paid = kl_runaway(in_no_unit(np.geomspace(0.05, 40.0, 80), np.linspace(0, 1, 80)))[0]
    assert (paid.cause, paid.severity) == ("unit_unknown", "info")
    assert kl_runaway(in_no_unit(np.geomspace(0.05, 9.0, 80), np.linspace(0, 1, 80)))[0].state == "unknown"


def test_two_rows_show_a_kl_that_came_to_hundreds_and_not_one_that_began_there():
    found = kl_runaway(in_no_unit(np.array([0.9, 310.0]), np.array([0.5, 0.5])))[0]
    assert (found.state, found.severity, found.since_step) == ("found", "warning", 1)
    assert "grew from 0.9 to 310 and the reward gained nothing by it" in found.message
    assert kl_runaway(in_no_unit(np.array([240.0, 310.0]), np.array([0.5, 0.5])))[0].state == "unknown"


def test_a_row_of_a_hundred_times_the_usual_kl_is_a_spike_in_any_unit():
    values = np.full(30, 0.3)
    values[12] = 45.0
    found = kl_runaway(in_no_unit(values, np.linspace(0.0, 1.0, 30)))[0]
    assert (found.cause, found.severity, found.since_step) == ("spikes", "warning", 12)
    assert "0.3 in most rows, up to 45 in 1 of 30" in found.message


def test_what_truncation_hides_of_a_policy_that_solves_its_task_changes_no_setting(make, finding):
    made = make(0)
    made.kl(np.zeros(made.n))
    made.put("kl_ref_full", np.where(np.arange(made.n) < 100, 0.05, 4.0), "nats/token", "exact")
    made.settings["top_p"] = 0.7
    made.put("reward", np.minimum(0.1 + 0.01 * np.arange(made.n), 1.0))
    made.put("reward_max", 1.0, "reward")
    found = finding(kl_runaway, made)
    assert (found.cause, found.severity, found.overrides) == ("truncation", "info", ())


def test_a_kl_of_0_between_policies_that_truncation_leaves_one_token_is_no_fault(make, silent):
    made = make(2)
    stand_still(made)
    made.put("entropy", 0.0, "nats/token", "exact")
    assert [result.state for result in kl_zero(made.run())] == ["ok"]


@pytest.mark.parametrize(("rate", "overrides"), [(0.0, ("update.learning_rate=0.0003", "autopilot.mode=act"))])
def test_a_rate_of_0_becomes_the_default_and_a_search(rate, overrides, make, finding):
    """A policy that never moved does not tell how far a rate moves it."""
    made = make(0)
    stand_still(made)
    made.settings |= {"learning_rate": rate, "autopilot": "off"}
    made.put("learning_rate", rate)
    assert finding(kl_zero, made).overrides == overrides
    made.settings["autopilot"] = "act"
    assert finding(kl_zero, made).overrides == overrides[:1]
