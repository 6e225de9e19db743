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
    courses = [evaluation for evaluation in run.evaluations if evaluation.course]
    if not courses:
        return Unknown("the log has no sentence on how a metric went", ("courses",))
    for course in courses:
        if cause := _fault(course):
            level = "is NaN" if math.isnan(course.after) else f"stays at {number(course.before)}"
            values = level if course.stages == STAYED else f"{number(course.before)} -> {number(course.after)}"
            return Found(cause, "warning", None, f"the text says so: {course.name} {values}")
    return None


def _fault(course: Evaluation) -> str:
    """Return the cause that a stated course shows, or ""."""
    if math.isnan(course.after):
        return "non_finite"
    if course.stages == STAYED:
        return "" if any(low <= course.after <= high for low, high in SOLVED) else "reward_flat"
    before, after = course.before, course.after
    for cause, (name, factor) in (FALLS | RISES).items():
        if not re.search(name, course.name, re.IGNORECASE):
            continue
        fell = cause in FALLS and before > 0 and after <= factor * before
        rose = cause in RISES and after >= factor * abs(before) and (cause != "kl_runaway" or after >= LEAST_KL)
        if fell or rose:
            return cause
    return ""
