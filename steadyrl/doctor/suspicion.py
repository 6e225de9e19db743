"""What a run may suffer from that its log is too short, or too noisy, to show: signs that no check may act on.

A suspicion is no finding: it says where to look first, and what makes it one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from steadyrl.core.types import Finding
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.statistics.levels import order
from steadyrl.doctor.statistics.readings import learns, number
from steadyrl.doctor.statistics.signals import block_medians

MOSTLY = 0.5  # of the rows
FLAT_FROM = 100  # steps, from which a reward that does not rise weighs more than what is only worth knowing
FALLS = "a reward that falls"
CUT = 0.15  # share of the completions
THIRD = 0.1  # of the level of the first third, by which the last one differs
FEWEST = 6  # rows that a course is seen in


def suspicion(run: Run, findings: Sequence[Finding]) -> str:
    """Return the likeliest fault of a run that could not be judged, with what points to it; "" where nothing does."""
    reward, norm, cut = run.get("reward"), run.get("grad_norm"), run.get("truncated")
    if reward is not None and not reward.values.any():
        return f"a reward that never pays: it is 0 in {len(reward)} of {len(reward)} rows"
    if reward is not None and (idle := float(np.mean(reward.values == 0))) > MOSTLY:
        return f"problems that are too hard: the reward is 0 in {idle:.0%} of the {len(reward)} rows"
    if norm is not None and (idle := float(np.mean(norm.values == 0))) > 0:
        return f"groups without a signal: the gradient is 0 in {idle:.0%} of the {len(norm)} rows"
    if cut is not None and float(cut.values.mean()) > CUT:
        return f"answers without an end: {float(cut.values.mean()):.0%} are cut off in the mean"
    course = "" if reward is None or len(reward) < FEWEST or learns(run) else _course(reward)
    if course and (FALLS in course or run.covers(run.needed("reward")) >= FLAT_FROM or not findings):
        return course
    return f"{findings[0].check}: {findings[0].message}" if findings else ""


def _course(reward: Series) -> str:
    """Return by how much a reward falls, or that it does not rise, with how often chance orders a log so; or ""."""
    first, *_, last = (float(part.mean()) for part in np.array_split(reward.values, 3))
    medians = block_medians(reward)[1]
    chance = math.ceil(50.0 * math.erfc(-min(order(medians), 0.0) / math.sqrt(2.0)))
    if last < first - THIRD * abs(first):
        shown = f"from {number(first)} to {number(last)} by thirds"
        return f"{FALLS}, {shown}; in {chance} of 100 logs without a course noise falls so steadily"
    if last <= first + THIRD * abs(first):
        return f"a reward that does not rise, {number(first)} and {number(last)} by thirds, which noise could hide"
    return ""
