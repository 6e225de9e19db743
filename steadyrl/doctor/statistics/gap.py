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
from steadyrl.doctor.statistics.levels import about_lines, likeness

BLOCKS, LEAST_BLOCK = 5, 16  # blocks at most; points in each at least, for a line and the likeness of neighbours
FEWEST = 10  # points
ODD = 9.0  # times the median of squares: two standard deviations
SHORT = 5  # steps within which brief noise has come and gone
SURE = 1.6  # standard errors, of 95 % on one side: noise that remembers looks like a difference
KEPT_LEAST = 0.3  # share of the variance that a line within a block is taken to leave at least
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
    n, most = len(difference), float(np.abs(difference).max(initial=0.0))
    if n < FEWEST or not most or not np.isfinite(most):
        return None
    difference, floor = difference / most, floor / most  # a diverged run logs 1e300, which has no square
    count = max(min(BLOCKS, n // LEAST_BLOCK), 1)
    size = n // count
    rows = difference[n - size * count :].reshape(count, size)
    each = [series[n - size * count :].reshape(count, size) / most for series in (first, second)]
    sigma, alike, freedom = _brief_noise(difference) if brief else _noise(rows, each)
    sigma = max(sigma, floor)
    error = sigma * np.sqrt(alike / size)  # of a block's mean
    limit = student_quantile(freedom, 1.0 - risk / (2.0 * (count + 2)))
    means = rows.mean(axis=1)
    at = np.arange(count * size) - (count * size - 1) / 2.0
    slope = float(at @ rows.ravel()) / (sigma * np.sqrt(alike) * float(np.sqrt(at @ at)))
    tests = [*(means / error), means.mean() / error * np.sqrt(count), slope]
    if np.abs(tests).max() <= limit:
        return None
    return _onset(difference, size, error, limit, sigma**2 * alike)


def _onset(x: np.ndarray, size: int, error: float, limit: float, variance: float) -> Gap:
    """Return from where on x [n] is not 0: the likeliest split before the end of the first window that shows it."""
    sums = np.concatenate([[0.0], np.cumsum(x)])
    windows = np.abs(sums[size:] - sums[:-size]) / size / error
    # Where no single window shows it, the series as a whole does.
    stop = min(int(windows.argmax() if windows.max() <= limit else (windows > limit).argmax()) + size, len(x))
    after = np.arange(stop, 0, -1)
    # Squared distances from 0 before the split, and from their own mean after it, but for what all splits share.
    errors = -((sums[stop] - sums[:stop]) ** 2) / after
    likely = np.flatnonzero(errors <= errors.min() + LIKELIHOOD * variance)
    return Gap(int(errors.argmin()), int(likely[0]), int(likely[-1]), stop)


def unevenness(difference: np.ndarray) -> float:
    """Return by how much the noise of a difference [n >= 10] changes along it: its greatest power over a usual one."""
    power = np.array([np.var(np.diff(part)) for part in np.array_split(difference, BLOCKS)])
    return float(power.max() / max(float(np.median(power)), 1e-300))


def _noise(rows: np.ndarray, each: Sequence[np.ndarray]) -> tuple[float, float, int]:
    """Return the noise of ``rows`` about a line in each.

    Args:
        rows: [count, size], the difference: runs that see the same prompts share noise, which falls out of it.
        each: Both series, [count, size] each, which tell the correlation of neighbours better than their difference.

    Returns:
        The standard deviation of a point, how many neighbouring points tell as much as an independent one (AR(1) noise
        assumed), and the degrees of freedom that are left.
    """
    count, size = rows.shape
    total = float((about_lines(rows) ** 2).sum())
    if total <= 0.0:
        return 0.0, 1.0, max(count * (size - 2), 1)
    alike = likeness([line for series in each for line in about_lines(series)], 2.0, SURE)
    fewer = (1.0 + alike) / (1.0 - alike)
    variance = total / (count * size) / max(1.0 - 2.0 * fewer / size, KEPT_LEAST)
    return float(np.sqrt(variance)), fewer, max(int(count * (size - 2) / fewer), 2)


def _brief_noise(difference: np.ndarray) -> tuple[float, float, int]:
    """Return as ``_noise`` does the noise of [n] points, by how they differ from those up to SHORT steps later."""
    n = len(difference)
    squares = [(difference[k:] - difference[:-k]) ** 2 for k in range(1, SHORT + 1)]
    # A collapse within a few steps is no noise, and would hide that it happened.
    apart = [0.0, *(float(np.minimum(x, ODD * np.median(x) or np.inf).mean()) / 2.0 for x in squares)]
    if not apart[-1]:
        return 0.0, 1.0, n
    fewer = max(1.0 + 2.0 * sum(1.0 - power / apart[-1] for power in apart[1:SHORT]), 1.0)
    return float(np.sqrt(apart[-1])), fewer, max(int(2.0 * n / 3.0 / float(np.sqrt(fewer))), 2)
