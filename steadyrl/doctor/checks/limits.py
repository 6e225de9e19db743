"""Limits that leave next to nothing of what they bound, in every row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steadyrl.doctor.check import Found, Result, check
from steadyrl.doctor.remedies import Value, default
from steadyrl.doctor.series import Run
from steadyrl.doctor.statistics.readings import cut_away, number, setting

LEAST_STEP = 1e-3  # nats per token: what the updates of a healthy run's step come to at least
WIDE = 4.0  # standard deviations of the rewards


@dataclass(frozen=True)
class Limit:
    """A setting that bounds something, and how large that is where nothing bounds it."""

    setting: str
    """A setting by its canonical name."""
    bounds: str
    """What is bounded, in words."""
    quantity: str = ""
    """The series that measures it before it is bounded; "" for the KL of a step, which is measured after it."""
    better: float = 0.0
    """The value that is advised; 0 for a few times what is measured, and for none where nothing is measured."""


LIMITS = {
    "gradient": Limit("max_grad_norm", "the norm of the gradient", "grad_norm", better=1.0),
    "rewards": Limit("reward_limit", "the standard deviation of the rewards", "reward_std"),
    "step": Limit("kl_old_limit", "the KL of a healthy step", better=0.05),
    "band": Limit("kl_band", "the KL of a healthy step"),
}


def value_of(run: Run, limit: Limit) -> float | None:
    """Return what a limit is set to, of a band its upper end; None where it is not set, or not in use."""
    value = run.settings.get(limit.setting)
    if not isinstance(value, list):
        return setting(run, limit.setting)
    return float(value[-1]) if run.settings.get("autopilot") == "act" else None


@check("limit_too_narrow", when=lambda run: any(value_of(run, limit) for limit in LIMITS.values()))
def limit_too_narrow(run: Run) -> list[Result]:
    results: list[Result] = []
    for cause, limit in LIMITS.items():
        value, measured = value_of(run, limit), run.get(limit.quantity) if limit.quantity else None
        sizes = np.array([LEAST_STEP]) if measured is None else measured.values
        if not value or (limit.quantity and measured is None) or not cut_away(sizes, value):
            continue
        usual, name = float(np.median(sizes)), run.keys.get(limit.setting, limit.setting)
        better = limit.better or (0.0 if measured is None else float(f"{WIDE * usual:.2g}"))
        change: dict[str, Value] | None = {limit.setting: better} if better else None
        passes, usual_passes = setting(run, "epochs"), default(run, "epochs")
        if change and cause == "step" and passes and usual_passes and passes > usual_passes:
            change["epochs"] = int(usual_passes)  # the limit left out what would go too far without it
        message = f"{name} = {value:g}, and {limit.bounds} is {number(usual)}: {number(usual / value)} times as much"
        results.append(Found(cause, "warning", None, message, change=change))
    return results
