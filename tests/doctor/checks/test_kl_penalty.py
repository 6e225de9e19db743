import numpy as np

from steadyrl.doctor.checks.kl_penalty import kl_penalty_off


def grouped(made, measured, **settings):
    """Give a run a penalty in its loss: the policy's part plus ``measured`` times the KL."""
    made.algorithm = "grpo"
    made.drop("kl_coef")
    made.settings |= {"kl_place": "loss", "kl_coef": 0.05, **settings}
    kl = made.curves[("kl_ref", "nats/token", "k3")]
    made.put("loss", made.curves[("loss_policy", "", "")] + measured * kl)


def test_a_coefficient_that_falls_to_nothing_at_once_was_switched_off(make, finding):
    made = make(0)
    made.put("kl_coef", np.where(made.t < 0.4, 0.05, 0.0))
    found = finding(kl_penalty_off, made)
    assert (found.cause, found.severity, found.since_step) == ("penalty_switched_off", "warning", 80)
    assert found.overrides == ("algorithm.args.kl_coef=0.05",)


def test_a_coefficient_that_is_lowered_step_by_step_is_a_schedule(make, silent):
    made = make(0)
    made.put("kl_coef", 0.05 * np.maximum(1.0 - made.t, 0.0))
    silent(kl_penalty_off, made)
    made.put("kl_coef", 0.05 * 0.9 ** np.arange(made.n))
    silent(kl_penalty_off, made)


def test_a_coefficient_of_0_from_the_start_was_chosen(make, silent):
    made = make(0)
    made.put("kl_coef", 0.0)
    made.settings["kl_coef"] = 0.0
    silent(kl_penalty_off, made)


def test_a_loss_that_loses_its_penalty_shows_it(make, finding):
    made = make(1)
    grouped(made, np.where(made.t < 0.4, 0.05, 0.0))
    found = finding(kl_penalty_off, made)
    assert (found.cause, found.since_step) == ("penalty_switched_off", 80)


def test_a_loss_that_never_held_a_penalty_does_not_apply_it(make, finding):
    made = make(2)
    grouped(made, 0.0)
    assert finding(kl_penalty_off, made).cause == "not_applied"


def test_a_penalty_that_is_there_is_healthy(make, silent):
    for seed in range(5):
        made = make(seed)
        grouped(made, 0.05 * np.exp(0.3 * made.noise()))
        silent(kl_penalty_off, made)
    silent(kl_penalty_off, make(0))


def test_a_value_loss_hides_what_the_loss_holds_of_the_penalty(make, unclear):
    made = make(3)
    grouped(made, 0.0)
    made.put("loss_value", 0.1)
    assert unclear(kl_penalty_off, made).would_tell == ("kl_coef", "loss", "loss_policy")
