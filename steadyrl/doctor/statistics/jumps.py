"""Levels that change from one step to the next: what a policy that learns by small updates does not do.

A jump is told from learning by what happens next to it. Learning takes its time: of a change between two windows of ten
points, the three points on either side of the middle show a third. A jump shows all of it there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steadyrl.core.stats import MAD_TO_STD
from steadyrl.doctor.series import Series
from steadyrl.doctor.statistics.levels import per_independent

WINDOW = 10  # points on either side
NEAR = 3  # points on either side that have to show the change already
AT_ONCE = (0.6, 1.7)  # of the change between the windows, shown by the nearest points
# Healthy runs of the fault benchmark that thresholds may be tuned on: 4 at most for rewards, their parts and spread.
BEYOND_NOISE = 7.0  # errors of the difference, from the scatter within the two windows
BEYOND_DRIFT = 4.0  # usual differences between neighbouring windows elsewhere in the run: memory and drift
MOST = 10  # jumps that are told of
LONG = 1000  # points
MOST_POINTS = 50_000  # more take longer than a check may
ROUNDING = 1e-9  # relative: differences below it are no scatter


@dataclass(frozen=True)
class Jump:
    """A level that changed at once and stayed."""

    step: int
    """The first one at the new level."""
    before: float
    after: float
    """Means of the ten points on either side; of logarithms, where those were taken."""

    @property
    def change(self) -> float:
        """After less before."""
        return self.after - self.before


def jumps(series: Series, logarithm: bool = False) -> list[Jump]:
    """Return the jumps of a series, the largest first, none within ten points of another.

    Args:
        series: Finite values; fewer than 25 show nothing, of more than 50,000 successive ones are averaged.
        logarithm: Of the logarithm of the values; those at or below 0 count as the least one above.
    """
    x, steps = series.values, series.steps
    if logarithm:
        x = np.log(np.maximum(x, x[x > 0].min() if (x > 0).any() else 1.0))
    if len(x) > MOST_POINTS:
        every = -(-len(x) // MOST_POINTS)
        covered = len(x) - len(x) % every
        x, steps = x[:covered].reshape(-1, every).mean(axis=1), steps[:covered:every]
    n = len(x)
    if n < 2 * WINDOW + WINDOW // 2:
        return []
    at = np.arange(WINDOW, n - WINDOW + 1)  # first points of the later windows
    windows = np.lib.stride_tricks.sliding_window_view(x, WINDOW)
    means, spread = windows.mean(axis=1), windows.var(axis=1, ddof=1)  # [n - 9] each
    change = means[at] - means[at - WINDOW]
    noise = np.sqrt((spread[at] + spread[at - WINDOW]) / 2.0)
    floor = ROUNDING * np.maximum(np.abs(means[at]) + np.abs(means[at - WINDOW]), ROUNDING)
    few = np.maximum(np.minimum(x[:-2], x[1:-1]), np.minimum(np.maximum(x[:-2], x[1:-1]), x[2:]))  # medians of three
    near = few[at] - few[at - NEAR]
    alike = per_independent(x[n % WINDOW :].reshape(-1, WINDOW))
    clear = np.abs(change) > np.maximum(BEYOND_NOISE * noise * np.sqrt(2.0 * alike / WINDOW), floor)
    shown = near / np.where(np.abs(change) > 0, change, np.inf)
    open_ = clear & (shown >= AT_ONCE[0]) & (shown <= AT_ONCE[1])
    left = np.flatnonzero(open_)
    left = left[np.argsort(-np.abs(change[left]) / np.maximum(noise[left], floor[left]), kind="stable")]
    if n >= LONG:  # a few windows more or less do not change what is usual: one answer for all
        left = left[np.abs(change[left]) > BEYOND_DRIFT * _usual(change)]
    selected: list[Jump] = []
    while len(left) and len(selected) < MOST:
        i = int(left[0])
        nearby = slice(max(0, i - WINDOW + 1), i + WINDOW)
        if n < LONG and abs(change[i]) <= BEYOND_DRIFT * _usual(np.delete(change, nearby)):
            left = left[1:]
            continue
        selected.append(Jump(int(steps[at[i]]), float(means[at[i] - WINDOW]), float(means[at[i]])))
        left = left[np.abs(left - i) >= WINDOW]
    return selected


def _usual(change: np.ndarray) -> float:
    return MAD_TO_STD * float(np.median(np.abs(change))) if len(change) else 0.0


def shows_at(series: Series, step: int) -> bool:
    """Return True if a series has a step there that is a jump's by its form, and half as clear as one has to be.

    Enough to confirm a jump of something that the series is made of, not to tell one alone.
    """
    at = int(np.searchsorted(series.steps, step))
    before, after = series.values[max(0, at - WINDOW) : at], series.values[at : at + WINDOW]
    if min(len(before), len(after)) < WINDOW:
        return False
    change = float(after.mean() - before.mean())
    noise = float(np.sqrt((before.var(ddof=1) + after.var(ddof=1)) / 2.0))
    near = float(np.median(after[:NEAR]) - np.median(before[-NEAR:]))
    clear = abs(change) > BEYOND_NOISE / 2.0 * noise * np.sqrt(2.0 / WINDOW)
    return clear and AT_ONCE[0] <= near / change <= AT_ONCE[1]


def jumps_at(series: Series | None, step: int, within: int, logarithm: bool = False) -> bool:
    """Return True if a series has a jump at most so many steps from ``step``; None has none."""
    return series is not None and any(abs(jump.step - step) <= within for jump in jumps(series, logarithm))
