"""Levels that change from one step to the next: what a policy that learns by small updates does not do.

A jump is told from learning by what happens next to it. Learning takes its time: of a change between two windows of ten
points, the three points on either side of the middle show a third. A jump shows all of it there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steadyrl.core.stats import MAD_TO_STD
from steadyrl.doctor.series import Series
from steadyrl.doctor.statistics.levels import variance_inflation

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
        points_per_mean = -(-len(x) // MOST_POINTS)
        covered = len(x) - len(x) % points_per_mean
        x, steps = x[:covered].reshape(-1, points_per_mean).mean(axis=1), steps[:covered:points_per_mean]
    n = len(x)
    if n < 2 * WINDOW + WINDOW // 2:
        return []
    starts = np.arange(WINDOW, n - WINDOW + 1)  # [n - 19], first points of the later windows
    windows = np.lib.stride_tricks.sliding_window_view(x, WINDOW)
    means, spread = windows.mean(axis=1), windows.var(axis=1, ddof=1)  # [n - 9] each
    change = means[starts] - means[starts - WINDOW]
    noise = np.sqrt((spread[starts] + spread[starts - WINDOW]) / 2.0)
    floor = ROUNDING * np.maximum(np.abs(means[starts]) + np.abs(means[starts - WINDOW]), ROUNDING)
    # The median of each three successive points, [n - 2]: one outlier does not make a step.
    medians = np.maximum(np.minimum(x[:-2], x[1:-1]), np.minimum(np.maximum(x[:-2], x[1:-1]), x[2:]))
    near = medians[starts] - medians[starts - NEAR]
    inflation = variance_inflation(x[n % WINDOW :].reshape(-1, WINDOW))
    above_noise = np.abs(change) > np.maximum(BEYOND_NOISE * noise * np.sqrt(2.0 * inflation / WINDOW), floor)
    share_at_once = near / np.where(np.abs(change) > 0, change, np.inf)
    clear_at_once = above_noise & (share_at_once >= AT_ONCE[0]) & (share_at_once <= AT_ONCE[1])
    candidates = np.flatnonzero(clear_at_once)
    clarity = np.abs(change[candidates]) / np.maximum(noise[candidates], floor[candidates])
    candidates = candidates[np.argsort(-clarity, kind="stable")]
    if n >= LONG:  # a few windows more or less do not change what is usual: one answer for all
        candidates = candidates[np.abs(change[candidates]) > BEYOND_DRIFT * _usual(change)]
    selected: list[Jump] = []
    while len(candidates) and len(selected) < MOST:
        i = int(candidates[0])
        nearby = slice(max(0, i - WINDOW + 1), i + WINDOW)
        if n < LONG and abs(change[i]) <= BEYOND_DRIFT * _usual(np.delete(change, nearby)):
            candidates = candidates[1:]
            continue
        selected.append(Jump(int(steps[starts[i]]), float(means[starts[i] - WINDOW]), float(means[starts[i]])))
        candidates = candidates[np.abs(candidates - i) >= WINDOW]
    return selected


def _usual(change: np.ndarray) -> float:
    return MAD_TO_STD * float(np.median(np.abs(change))) if len(change) else 0.0


def has_jump_form_at(series: Series, step: int) -> bool:
    """Return True if a series has a step there that is a jump's by its form, and half as clear as one has to be.

    Enough to confirm a jump of something that the series is made of, not to tell one alone.
    """
    index = int(np.searchsorted(series.steps, step))
    before, after = series.values[max(0, index - WINDOW) : index], series.values[index : index + WINDOW]
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
