"""Statistics that survive the noise of RL metrics: levels by blocks, spikes by median distance.

Rolling means and single-step tests raise false alarms on the correlated noise of a healthy run; see
docs/doctor/statistics.md for the measured rates. A level is the median of a block of steps.
"""

from __future__ import annotations

import numpy as np

from steadyrl.core.stats import MAD_TO_STD
from steadyrl.doctor.series import Series

BLOCKS = 10
LASTING = 5  # steps in a row: single large updates occur in every healthy run
MIN_STEPS = 20  # fewer steps than this tell of hard invariants only
SPIKE_WINDOW = 100
SPIKE_Z = 6.0
SPIKE_RENEWALS = 10_000  # of what is usual, at most: more take longer than a check may
BURSTS_FROM = 30  # earlier points: what 20 points with a memory call usual is too narrow
MANY_SPIKES, MANY_SPIKES_SHARE = 3, 0.005  # so many, and that share of the points, count without neighbours


def head(series: Series, share: float = 0.1, least: int = 5) -> float:
    """Return the median of the first steps, a third of a short log at most: the level a run started from."""
    return float(np.median(series.values[: end_rows(series, share, least)]))


def tail(series: Series, share: float = 0.1, least: int = 5) -> float:
    """Return the median of the last steps, a third of a short log at most: the level a run ended at."""
    return float(np.median(series.values[-end_rows(series, share, least) :]))


def end_rows(series: Series, share: float, least: int) -> int:
    """Return how many rows an end of a log is; the two ends of a short one share none."""
    return max(min(least, len(series) // 3), int(share * len(series)), 1)


def block_medians(series: Series) -> tuple[np.ndarray, np.ndarray]:
    """Return (first step of each block, its median); fewer blocks where there are fewer values."""
    blocks = np.array_split(np.arange(len(series)), min(BLOCKS, len(series)))
    return series.steps[[rows[0] for rows in blocks]], np.array([np.median(series.values[rows]) for rows in blocks])


def first_lasting(series: Series, bad: np.ndarray, lasting: int = 3) -> int | None:
    """Return the first step from which ``bad`` holds ``lasting`` times in a row, or None.

    Args:
        series: Whose steps.
        bad: [n] bool.
        lasting: >= 1.
    """
    if len(bad) < lasting:
        return None
    runs = np.lib.stride_tricks.sliding_window_view(bad, lasting).all(axis=1)
    return int(series.steps[int(runs.argmax())]) if runs.any() else None


def strays(series: Series) -> np.ndarray:
    """Return the indices of points far above or far below what the points before them make usual.

    Distance is from the median of the 100 points before, in units of 1.4826 times their median absolute deviation, on
    the logarithm of positive metrics. Median and scale are renewed every 10 points, less often in runs of more than
    100,000.
    """
    if len(series) < MIN_STEPS:
        return np.zeros(0, np.int64)
    excess, scale = _against_usual(series)
    return np.flatnonzero(np.isfinite(excess) & (np.abs(excess) > SPIKE_Z * scale))


def bursts(series: Series, factor: float) -> np.ndarray:
    """Return the indices of spikes that count: ``factor`` times the usual level, and not alone.

    A spike counts where two of three neighbouring points are one, or where the run has several: one bad batch is no
    illness, and heavy-tailed noise gives single spikes only. The first 30 points are not judged.

    Args:
        series: Finite values; those that are not above 0 are passed over.
        factor: > 1, times the median of the 100 points before.
    """
    positive = np.flatnonzero(series.values > 0)
    if len(positive) <= BURSTS_FROM:
        return np.zeros(0, np.int64)
    excess, scale = _against_usual(series.select(positive))
    spikes = np.flatnonzero((excess > SPIKE_Z * scale) & (excess > np.log(factor)))
    spikes = spikes[spikes >= BURSTS_FROM]
    adjacent = np.diff(spikes) <= 2
    confirmed = np.append(adjacent, False) | np.insert(adjacent, 0, False) if len(spikes) else np.zeros(0, bool)
    numerous = len(spikes) >= max(MANY_SPIKES, MANY_SPIKES_SHARE * len(positive))
    return positive[spikes if numerous else spikes[confirmed]]


def _against_usual(series: Series) -> tuple[np.ndarray, np.ndarray]:
    """Return each point's distance above the median before it, and the scale to judge it by; [n] each, see strays."""
    x = series.values
    if (x > 0).all():
        x = np.log(x)
    stride = max(10, len(x) // SPIKE_RENEWALS)
    starts = np.arange(MIN_STEPS // 2, len(x), stride)  # judged: x[s : s + stride], by x[max(0, s - window) : s]
    padded = np.concatenate([np.full(SPIKE_WINDOW, np.nan), x])
    earlier = np.lib.stride_tricks.sliding_window_view(padded, SPIKE_WINDOW)[starts]  # [m, window]
    centre = np.nanmedian(earlier, axis=1)  # the first windows are not whole
    scale = np.nanmedian(np.abs(earlier - centre[:, None]), axis=1)
    floor = 1e-3 * np.maximum(np.abs(centre), 1e-12)  # a series that hardly moved has no scale of its own
    scale = np.maximum(MAD_TO_STD * scale, floor)
    times = np.full(len(starts), stride)
    times[0] += starts[0]
    times[-1] += len(x) - times.sum()
    excess = x - np.repeat(centre, times)
    excess[: starts[0]] = -np.inf
    return excess, np.repeat(scale, times)


def long_run_error(values: np.ndarray) -> float:
    """Return the standard error of a mean of correlated values, as of an AR(1) process.

    The lag-1 correlation of n values comes out too low by about (1 + 3 rho) / n, which is put back; a negative one
    counts as 0.

    Args:
        values: [n], n >= 2, without a trend.
    """
    n = len(values)
    centred = values - values.mean()
    power = float(centred @ centred)
    if power == 0.0:
        return 0.0
    rho = float(centred[1:] @ centred[:-1]) / power
    rho = min(max(rho + (1.0 + 3.0 * rho) / n, 0.0), 0.95)
    return float(np.sqrt(power / (n - 1) / n * (1.0 + rho) / (1.0 - rho)))
