import numpy as np

from steadyrl.doctor.checks.gradient import grad_norm
from steadyrl.doctor.checks.kl import kl_zero
from steadyrl.doctor.checks.non_finite import non_finite
from tests.doctor.checks.series_for_values import finding, healthy, noise, said

N = 100


def broken_from(step, n=N, value=np.nan, until=None):
    values = 1.0 + noise(np.random.default_rng(0), n, 0.1)
    values[step:until] = value
    return values


def test_what_broke_first_is_the_cause_and_the_others_are_listed_in_order():
    run = healthy(n=N, kl_ref=broken_from(60), loss=broken_from(61), grad_norm=broken_from(61))
    found = finding(non_finite(run))
    assert (found.cause, found.severity, found.since_step) == ("log_probs", "critical", 60)
    names = [run.series[name][0].source for name in ("kl_ref", "loss", "grad_norm")]
    assert [line.split(" is ")[0] for line in found.evidence] == names
    assert found.message.startswith(f"{names[0]} is not finite from step 60 to the end")
    assert f"{names[1]} is not finite in 39 rows, first at step 61" in found.evidence


def test_of_several_in_one_step_the_one_that_enters_the_others_is_the_cause():
    run = healthy(n=N, grad_norm=broken_from(50), loss=broken_from(50), loss_value=broken_from(50))
    assert finding(non_finite(run)).cause == "values"


def test_a_scorer_that_returns_nan_is_named():
    run = healthy(n=N, grad_norm=broken_from(50), reward=broken_from(50))
    assert finding(non_finite(run)).cause == "reward"


def test_each_cause_has_a_remedy_of_its_own():
    still = np.where(np.arange(N) < 50, noise(np.random.default_rng(1), N, 0.1), 0.3)
    broken = {
        "reward": {"reward": broken_from(50)},
        "log_probs": {"kl_ref": broken_from(50)},
        "values": {"loss_value": broken_from(50)},
        "gradient": {"grad_norm": broken_from(50)},
        "loss": {"loss": broken_from(50)},
        "hidden": {"loss": still, "grad_norm": broken_from(50)},
        "skipped_steps": {"grad_norm": broken_from(50, until=51)},
    }
    found = {cause: finding(non_finite(healthy(n=N, **columns))) for cause, columns in broken.items()}
    assert {cause: one.cause for cause, one in found.items()} == {cause: cause for cause in broken}
    assert len({one.remedy for one in found.values()}) == len(broken)
    # What scores the texts is at fault: neither a smaller step nor another number format mends it.
    reward = found["reward"].remedy
    assert "return None (unscored)" in reward and "divisions" in reward
    assert "third" not in reward and "precision" not in reward
    assert "third of the learning rate" in found["log_probs"].remedy
    assert "reward function" not in found["log_probs"].remedy


def test_a_finite_loss_with_a_broken_gradient_is_the_backward_pass():
    assert finding(non_finite(healthy(n=N, grad_norm=broken_from(50, value=np.inf)))).cause == "gradient"


def test_a_loss_that_stands_still_while_the_gradient_is_nan_was_replaced():
    loss = broken_from(0, value=0.3)
    loss[:50] = noise(np.random.default_rng(1), 50, 0.1)
    found = finding(non_finite(healthy(n=N, loss=loss, grad_norm=broken_from(50))))
    assert (found.cause, found.severity) == ("hidden", "critical")
    assert "logging_nan_inf_filter" in found.source


def test_single_infinite_gradients_are_skipped_steps():
    norm = broken_from(50, until=51, value=np.inf)
    norm[70] = np.inf
    found = finding(non_finite(healthy(n=N, grad_norm=norm)))
    assert (found.cause, found.severity) == ("skipped_steps", "info")


def test_a_loss_that_recovers_is_a_warning():
    found = finding(non_finite(healthy(n=N, loss=broken_from(50, until=53))))
    assert (found.severity, found.since_step) == ("warning", 50)
    assert "finite numbers follow" in found.message


def test_an_undefined_explained_variance_is_no_fault():
    assert said(non_finite(healthy(n=N, explained_variance=broken_from(10, until=12, value=-np.inf)))) == []


def test_finite_numbers_are_silent():
    assert said(non_finite(healthy(n=N))) == []


def test_names_are_those_of_the_log_and_of_a_loss_that_is_not_logged_nothing_is_said():
    unlogged = ("loss", "loss_policy")
    found = finding(non_finite(healthy(n=N, without=unlogged, grad_norm=broken_from(70))))
    assert found.cause == "gradient" and found.message.startswith("log/grad_norm is not finite")
    assert "loss was finite" not in found.message and "no loss is read" in found.message
    assert "loss was finite" in finding(non_finite(healthy(n=N, grad_norm=broken_from(70)))).message


def test_what_is_logged_and_never_finite_is_not_called_unlogged():
    run = healthy(n=N, grad_norm=np.full(N, np.nan), kl_ref=np.full(N, np.nan))
    assert [result.message for result in grad_norm(run)] == ["no gradient norm of the log is finite"]
    assert [result.message for result in kl_zero(run)] == ["the log has no finite KL to the reference"]
