"""Limits that take away what they should bound, and limits in use."""

import numpy as np
import pytest

from steadyrl.doctor.checks.limits import LIMITS, limit_too_narrow
from steadyrl.loop.preflight.trial_updates import limits


@pytest.mark.parametrize(
    ("settings", "cause", "overrides"),
    [
        ({"max_grad_norm": 1e-9}, "gradient", ("update.max_grad_norm=1",)),
        ({"reward_limit": 1e-9}, "rewards", ("update.reward_limit=0.8",)),
        ({"kl_old_limit": 1e-7}, "step", ("update.kl_old_limit=0.05",)),
        ({"kl_old_limit": 1e-6, "epochs": 6}, "step", ("update.kl_old_limit=0.05", "update.epochs=2")),
        ({"kl_band": [1e-12, 1e-11], "autopilot": "act"}, "band", ("autopilot.kl_band=[0.06, 0.3]",)),
    ],
)
def test_a_limit_below_a_thousandth_of_what_it_bounds_is_named(settings, cause, overrides, make, finding):
    """The gradient's norm is 1 in the median; rewards differ by 0.2, and the limit should be four times that."""
    made = make(0)
    made.put("reward_std", 0.2)
    made.settings |= settings
    found = finding(limit_too_narrow, made)
    assert (found.cause, found.severity, found.overrides) == (cause, "warning", overrides)


@pytest.mark.parametrize(
    "settings",
    [
        {
            "max_grad_norm": 0.01,
            "reward_limit": 0.01,
            "kl_old_limit": 0.001,
            "kl_band": [0.06, 0.3],
            "autopilot": "act",
        },
        {"kl_band": [1e-12, 1e-11], "autopilot": "off"},
        {"max_grad_norm": 0.0, "reward_limit": 0.0},
    ],
)
def test_limits_that_are_in_use_or_not_in_force_are_no_fault(settings, make, silent):
    made = make(0)
    made.settings |= settings
    silent(limit_too_narrow, made)


def test_a_gradient_that_is_cut_to_nothing_in_some_rows_only_is_no_fault(make, silent):
    made = make(0)
    made.settings["max_grad_norm"] = 1e-4
    made.put("grad_norm", np.where(np.arange(made.n) % 5 == 0, 0.01, 10.0))
    silent(limit_too_narrow, made)


@pytest.mark.parametrize("check", [limit_too_narrow, limits])
def test_the_doctor_and_the_preflight_know_a_cause_for_each_limit(check):
    assert set(LIMITS) <= {cause.name for cause in check.causes}
