"""Compares two arms over seeds: interquartile means, and the interval of their difference.

A seed is the unit. Steps of one run are not independent, so a run gives one number, whatever its length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from steadyrl.core.stats import student_quantile

LEAST_SEEDS = 2  # of each arm: one number has no spread
LEAST_PAIRS = 3  # of two pairs the interval alone would leave 0 out in 5 % of identical arms, and the shorter in more
SHORTER = 0.8  # of the interval without pairs: one of pairs that is longer is not taken
ROUNDING = 1e-6  # likewise: pairs that all differ alike are the rounding of a count, and no certainty
RESAMPLES = 2000
POWER = 0.8  # chance with which the smallest detectable difference is found

Word = Literal["supported", "refuted", "undecided"]


@dataclass(frozen=True)
class Difference:
    """The second arm against the first."""

    first: float
    second: float
    """Interquartile means over seeds."""
    seeds: tuple[int, int]
    """Of the first and of the second."""
    change: float
    """second - first."""
    low: float | None
    high: float | None
    """Of its interval; None with fewer than two seeds of either."""
    smallest: float | None
    """The true difference that so many seeds of such spread show in 4 of 5 studies; None likewise."""
    paired: bool = False
    """True if the interval is that of differences between runs of equal seeds."""


def interquartile_mean(values: ArrayLike) -> np.ndarray:
    """Return the mean of the middle half of the values, along the last axis.

    The two values at the ends of the middle half count with the part of them that lies inside: of 3 values the middle
    one has two thirds of the weight, and each of the others a sixth.

    Args:
        values: [..., n], n >= 1.

    Source:
        Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (arXiv 2108.13264),
        section 4.3.
    """
    ordered = np.sort(np.asarray(values, np.float64), axis=-1)
    n = ordered.shape[-1]
    rank = np.arange(n)
    inside = np.clip(np.minimum(rank + 1, 0.75 * n) - np.maximum(rank, 0.25 * n), 0.0, None)  # [n]
    means: np.ndarray = ordered @ (inside / inside.sum())
    return means


def interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Return the interval of the interquartile mean of one arm; None with fewer than two seeds."""
    if len(values) < LEAST_SEEDS:
        return None
    centre = float(interquartile_mean(values))
    reach = student_quantile(len(values) - 1, 0.5 + confidence / 2) * math.sqrt(_squared_error(values, seed=0))
    return centre - reach, centre + reach


def difference(
    first: Sequence[float], second: Sequence[float], confidence: float = 0.95, seed: int = 0
) -> Difference | None:
    """Compare two arms; None if one of them has no value.

    The standard error is that of a bootstrap over the seeds of each arm, corrected for its own lack of spread by
    n / (n - 1). The interval reaches as far as Student's t says for so few seeds. A percentile bootstrap of 3 seeds
    would reach no further than the seeds themselves, which is far too short.

    Args:
        first: One number per seed.
        second: Likewise; the seeds need not be the same.
        confidence: In (0, 1).
        seed: Of the bootstrap.

    Source:
        Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), chapter 12, with Welch's degrees of freedom.
    """
    if not len(first) or not len(second):
        return None
    before, after = float(interquartile_mean(first)), float(interquartile_mean(second))
    sides = (len(first), len(second))
    if min(sides) < LEAST_SEEDS:
        return Difference(before, after, sides, after - before, None, None, None)
    errors = np.array([_squared_error(first, seed), _squared_error(second, seed + 1)])  # [2]
    total = float(errors.sum())
    freedom = total**2 / float((errors**2 / (np.array(sides) - 1)).sum()) if total else 1.0
    return _with_interval(before, after, sides, total, freedom, confidence)


def difference_of_pairs(
    first: Sequence[float], second: Sequence[float], confidence: float = 0.95, seed: int = 0
) -> Difference | None:
    """Compare two arms whose runs have equal seeds; None if they have no value.

    Runs of one seed meet the same problems in the same order, so a part of the chance is common to both. A bootstrap
    that draws seeds, each with both of its runs, leaves that part out. It has half the degrees of freedom of
    ``difference``, and is the longer one where nothing is common. It is taken where it is clearly the shorter: each of
    the two leaves 0 out in so few of identical arms that this choice stays below 5 % (bench/study_verdicts.py).

    Args:
        first: One number per seed.
        second: Likewise, the seeds in the same order.
        confidence: In (0, 1).
        seed: Of the bootstrap.
    """
    assert len(first) == len(second), f"{len(first)} and {len(second)} runs are no pairs"
    apart = difference(first, second, confidence, seed)
    if apart is None or len(first) < LEAST_PAIRS:
        return apart
    n = len(first)
    resampled = np.asarray([first, second], np.float64)[:, _resamples(n, seed)]  # [2, resamples, n]
    before, after = interquartile_mean(resampled)
    squared = float((after - before).var()) * n / (n - 1)
    pairs = _with_interval(apart.first, apart.second, apart.seeds, squared, n - 1.0, confidence)
    share = _reach(pairs) / _reach(apart) if apart.low != apart.high else math.inf
    return replace(pairs, paired=True) if ROUNDING < share < SHORTER else apart


def _with_interval(
    before: float, after: float, sides: tuple[int, int], squared: float, freedom: float, confidence: float
) -> Difference:
    """Return the difference with the interval of a squared standard error."""
    change, error = after - before, math.sqrt(squared)
    reach = student_quantile(freedom, 0.5 + confidence / 2) * error
    smallest = reach + student_quantile(freedom, POWER) * error
    return Difference(before, after, sides, change, change - reach, change + reach, smallest)


def _reach(difference: Difference) -> float:
    assert difference.low is not None and difference.high is not None, "there are two seeds or more"
    return difference.high - difference.low


def judge(difference: Difference, be: str, margin: float) -> Word:
    """Say whether the second is what it should be of the first.

    "higher" is refuted where the second is certainly not higher by the margin, and "lower" is its mirror image. "same"
    is a difference that is certainly within the margin, and is refuted where the difference is certainly beyond it.
    """
    if difference.low is None or difference.high is None:
        return "undecided"
    change, low, high = difference.change, difference.low, difference.high
    if be == "same":
        if -margin <= low and high <= margin:
            return "supported"
        return "refuted" if low > margin or high < -margin else "undecided"
    if be == "lower":
        change, low, high = -change, -high, -low
    if low > 0 and change >= margin:
        return "supported"
    return "refuted" if high < margin or (high <= 0 and low < 0) else "undecided"


def _squared_error(values: Sequence[float], seed: int) -> float:
    """Return the squared standard error of the interquartile mean."""
    sample = np.asarray(values, np.float64)
    n = len(sample)
    resampled = interquartile_mean(sample[_resamples(n, seed)])  # [resamples]
    return float(resampled.var()) * n / (n - 1)  # a bootstrap of n seeds has (n - 1) / n of their spread


def _resamples(n: int, seed: int) -> np.ndarray:
    """Return the seeds that each resample draws, [resamples, n]: every possible one where there are few, else some."""
    if n**n <= RESAMPLES:
        return np.indices((n,) * n).reshape(n, -1).T
    return np.random.default_rng(seed).integers(n, size=(RESAMPLES, n))
