"""Whether two series differ beyond their noise, by level or by trend, and from where on.

The noise is that within blocks of successive steps, about a straight line in each: a gap between two runs that opens,
or closes again, is no noise. One run of each kind is compared, so another seed may differ as much; what is tested is
whether these two do.

Measured on AR(1) noise, 2,000 pairs each of 12 to 400 steps with correlations up to 0.8: at a risk of 1 in 100 equal
series differ in at most 7 of 1000 pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steadyrl.core.stats import student_quantile
from steadyrl.doctor.statistics.levels import LEAST_RESIDUAL_SHARE, detrended_rows, neighbour_correlation

BLOCKS, LEAST_BLOCK = 5, 16  # blocks at most; points in each at least, for a line and the likeness of neighbours
FEWEST = 10  # points
ODD = 9.0  # times the median of squares: two standard deviations
SHORT = 5  # steps within which brief noise has come and gone
SURE = 1.6  # standard errors, of 95 % on one side: noise that remembers looks like a difference
LIKELIHOOD = 3.84  # of chi-squared with one degree of freedom, 95 %


@dataclass(frozen=True)
class Gap:
    """Where two series differ."""

    start: int
    """Index of the first point from which they do."""
    earliest: int
    latest: int
    """The 95 % interval of it, as indices."""
    stop: int
    """Index after the points that first show it."""


def gap(first: np.ndarray, second: np.ndarray, risk: float, floor: float = 0.0, brief: bool = False) -> Gap | None:
    """Return where two series part beyond their noise, or None where they do not.

    Args:
        first: [n], at successive steps that both have.
        second: [n], likewise.
        risk: Of an answer other than None for two series that are equal but for noise, over all tests made here.
        floor: The least noise of a single point, such as rounding.
        brief: Whether only what comes and goes within SHORT steps is noise. What lasts longer, such as the drift of
            another seed, then counts as a difference: of AR(1) noise with a correlation of 0.5, up to
            10 in 100 pairs.
    """
    difference = first - second
    n, scale = len(difference), float(np.abs(difference).max(initial=0.0))
    if n < FEWEST or not scale or not np.isfinite(scale):
        return None
    difference, floor = difference / scale, floor / scale  # a diverged run logs 1e300, which has no square
    count = max(min(BLOCKS, n // LEAST_BLOCK), 1)
    size = n // count
    rows = difference[n - size * count :].reshape(count, size)  # the first points are left out where n does not divide
    both_rows = [series[n - size * count :].reshape(count, size) / scale for series in (first, second)]
    sigma, inflation, freedom = _brief_noise(difference) if brief else _noise(rows, both_rows)
    sigma = max(sigma, floor)
    error = sigma * np.sqrt(inflation / size)  # of a block's mean
    # Bonferroni, on two sides: the mean of each block, that of all, and the slope.
    limit = student_quantile(freedom, 1.0 - risk / (2.0 * (count + 2)))
    means = rows.mean(axis=1)
    t = np.arange(count * size) - (count * size - 1) / 2.0
    slope = float(t @ rows.ravel()) / (sigma * np.sqrt(inflation) * float(np.sqrt(t @ t)))
    tests = [*(means / error), means.mean() / error * np.sqrt(count), slope]
    if np.abs(tests).max() <= limit:
        return None
    return _onset(difference, size, error, limit, sigma**2 * inflation)


def _onset(x: np.ndarray, size: int, error: float, limit: float, variance: float) -> Gap:
    """Return from where on x [n] is not 0: the likeliest split before the end of the first window that shows it."""
    sums = np.concatenate([[0.0], np.cumsum(x)])
    windows = np.abs(sums[size:] - sums[:-size]) / size / error
    # Where no single window shows it, the series as a whole does.
    stop = min(int(windows.argmax() if windows.max() <= limit else (windows > limit).argmax()) + size, len(x))
    later_points = np.arange(stop, 0, -1)
    # Squared distances from 0 before the split, and from their own mean after it, but for what all splits share.
    errors = -((sums[stop] - sums[:stop]) ** 2) / later_points
    likely_starts = np.flatnonzero(errors <= errors.min() + LIKELIHOOD * variance)
    return Gap(int(errors.argmin()), int(likely_starts[0]), int(likely_starts[-1]), stop)


def unevenness(difference: np.ndarray) -> float:
    """Return by how much the noise of a difference [n >= 10] changes along it: its greatest power over a usual one."""
    power = np.array([np.var(np.diff(block)) for block in np.array_split(difference, BLOCKS)])
    return float(power.max() / max(float(np.median(power)), 1e-300))


def _noise(rows: np.ndarray, both_rows: Sequence[np.ndarray]) -> tuple[float, float, int]:
    """Return the noise of ``rows`` about a line in each.

    Args:
        rows: [count, size], the difference: runs that see the same prompts share noise, which falls out of it.
        both_rows: Both series, [count, size] each; they tell the correlation of neighbours better than the difference.

    Returns:
        The standard deviation of a point, how many neighbouring points tell as much as an independent one (AR(1) noise
        assumed), and the degrees of freedom that are left.
    """
    count, size = rows.shape
    total = float((detrended_rows(rows) ** 2).sum())
    if total <= 0.0:
        return 0.0, 1.0, max(count * (size - 2), 1)
    rho = neighbour_correlation([line for series in both_rows for line in detrended_rows(series)], 2.0, SURE)
    inflation = (1.0 + rho) / (1.0 - rho)
    variance = total / (count * size) / max(1.0 - 2.0 * inflation / size, LEAST_RESIDUAL_SHARE)
    return float(np.sqrt(variance)), inflation, max(int(count * (size - 2) / inflation), 2)


def _brief_noise(difference: np.ndarray) -> tuple[float, float, int]:
    """Return as ``_noise`` does the noise of [n] points, by how they differ from those up to SHORT steps later."""
    n = len(difference)
    squares = [(difference[k:] - difference[:-k]) ** 2 for k in range(1, SHORT + 1)]
    # A collapse within a few steps is no noise, and would hide that it happened.
    semivariances = [0.0, *(float(np.minimum(x, ODD * np.median(x) or np.inf).mean()) / 2.0 for x in squares)]
    if not semivariances[-1]:
        return 0.0, 1.0, n
    inflation = max(1.0 + 2.0 * sum(1.0 - power / semivariances[-1] for power in semivariances[1:SHORT]), 1.0)
    return float(np.sqrt(semivariances[-1])), inflation, max(int(2.0 * n / 3.0 / float(np.sqrt(inflation))), 2)
