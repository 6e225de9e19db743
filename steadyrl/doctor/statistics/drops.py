"""A level that was lost at once and for good: one change point, found at any length of a run from four rows on.

Windows of ten steps miss a policy that breaks within seven of them, and a short log has no windows. One split into two
levels has no width: it is where the squared distances from the two means add up to the least.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steadyrl.doctor.series import Series

AFTER = 3  # points at the new level, at least: one bad batch is no loss
CLEAR = 4.0  # scatters about the two levels that lie between them, with three points or more before
CLEAR_FROM_FEW = 8.0  # with fewer, whose own scatter is hardly known
ROUNDING = 1e-9


@dataclass(frozen=True)
class Drop:
    """Where a series fell: the first step at the lower level, and both levels."""

    step: int
    before: float
    after: float


def drop(series: Series) -> Drop | None:
    """Return where a series fell from one level to a lower one and stayed, or None.

    A steady decline is split in the middle by the same arithmetic; its distances from the two levels are too large.

    Args:
        series: Finite values; fewer than four show nothing.
    """
    x, n = series.values, len(series)
    if n < AFTER + 1:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        sums, squares = np.cumsum(x), np.cumsum(x * x)
        k = np.arange(1, n - AFTER + 1)  # points before
        first, second = sums[k - 1] / k, (sums[-1] - sums[k - 1]) / (n - k)
        errors = squares[-1] - k * first * first - (n - k) * second * second
    if not np.isfinite(errors).all():
        return None
    at = int(errors.argmin())
    before, after = float(first[at]), float(second[at])
    scatter = float(np.sqrt(max(errors[at], 0.0) / max(n - 2, 1)))
    least = (CLEAR if k[at] >= AFTER else CLEAR_FROM_FEW) * max(scatter, ROUNDING * max(abs(before), abs(after)))
    return Drop(int(series.steps[k[at]]), before, after) if before - after > least else None
