"""What sentences say of the course of a metric, such as "the entropy fell from 0.8 to 0.05"."""

from __future__ import annotations

import math
import re

from steadyrl.doctor.check import Found, Result, Unknown, check
from steadyrl.doctor.series import STAYED, Evaluation, Run
from steadyrl.doctor.statistics.readings import number

# By cause: of which metric, and how many times its first value the last one is at most, or at least, to be a fault.
FALLS = {
    "entropy_collapse": ("entropy|熵", 0.2),
    "length_collapse": ("length", 0.1),
    "reward_falling": ("reward|score|奖励|獎勵", 0.4),
}
RISES = {"kl_runaway": (r"(?<![a-z])kl", 10.0), "loss_explosion": ("loss", 100.0), "gradient": ("grad", 100.0)}
LEAST_KL = 5.0  # at the end: a KL that begins at 0 rises any number of times
SOLVED = ((0.9, 1.0), (90.0, 100.0))  # shares of which nothing is wrong if they stay


@check("stated_course")
def stated_course(run: Run) -> Result:
    stated = [of for of in run.evaluations if of.course]
    if not stated:
        return Unknown("no sentence says how a metric began and ended", ("evaluations",))
    for of in stated:
        if cause := _fault(of):
            level = "is NaN" if math.isnan(of.after) else f"stays at {number(of.before)}"
            course = level if of.stages == STAYED else f"{number(of.before)} -> {number(of.after)}"
            return Found(cause, "warning", None, f"the text says so: {of.name} {course}", ())
    return None


def _fault(of: Evaluation) -> str:
    """Return the cause that a stated course shows, or ""."""
    if math.isnan(of.after):
        return "non_finite"
    if of.stages == STAYED:
        return "" if any(low <= of.after <= high for low, high in SOLVED) else "reward_flat"
    fallen = [cause for cause, (name, most) in FALLS.items() if _is(of, name) and of.after <= most * of.before]
    risen = [cause for cause, (name, least) in RISES.items() if _is(of, name) and of.after >= least * abs(of.before)]
    risen = [cause for cause in risen if cause != "kl_runaway" or of.after >= LEAST_KL]
    return next(iter([*(fallen if of.before > 0 else []), *risen]), "")


def _is(of: Evaluation, name: str) -> bool:
    return re.search(name, of.name, re.IGNORECASE) is not None
