"""Compares two arms over seeds: interquartile means, and the interval of their difference.

A seed is the unit. Steps of one run are not independent, so a run gives one number, whatever its length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from steadyrl.stats import student_quantile

LEAST_SEEDS = 2  # of each arm: one number has no spread
RESAMPLES = 2000
POWER = 0.8  # chance with which the smallest detectable difference is found

Word = Literal["supported", "refuted", "undecided"]


@dataclass(frozen=True)
class Difference:
    """The second arm against the first.

    Attributes:
        first, second: Interquartile means over seeds.
        seeds: Of the first and of the second.
        change: second - first.
        low, high: Of its interval; None with fewer than two seeds of either.
        smallest: The true difference that so many seeds of such spread show in 4 of 5 studies; None likewise.
    """

    first: float
    second: float
    seeds: tuple[int, int]
    change: float
    low: float | None
    high: float | None
    smallest: float | None


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
    place = np.arange(n)
    inside = np.clip(np.minimum(place + 1, 0.75 * n) - np.maximum(place, 0.25 * n), 0.0, None)  # [n]
    found: np.ndarray = ordered @ (inside / inside.sum())
    return found


def interval(values: Sequence[float], confidence: float = 0.95, seed: int = 0) -> tuple[float, float] | None:
    """Return the interval of the interquartile mean of one arm; None with fewer than two seeds."""
    if len(values) < LEAST_SEEDS:
        return None
    centre = float(interquartile_mean(values))
    reach = student_quantile(len(values) - 1, 0.5 + confidence / 2) * math.sqrt(_squared_error(values, seed))
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
    errors = np.array([_squared_error(first, seed), _squared_error(second, seed + 1)])
    total = float(errors.sum())
    if total == 0:
        return Difference(before, after, sides, after - before, after - before, after - before, 0.0)
    freedom = total**2 / float((errors**2 / (np.array(sides) - 1)).sum())
    reach = student_quantile(freedom, 0.5 + confidence / 2) * math.sqrt(total)
    smallest = reach + student_quantile(freedom, POWER) * math.sqrt(total)
    change = after - before
    return Difference(before, after, sides, change, change - reach, change + reach, smallest)


def judge_higher(found: Difference, margin: float) -> Word:
    """Say whether the second is higher than the first; certainly not by the margin refutes it."""
    if found.low is None or found.high is None:
        return "undecided"
    if found.low > 0 and found.change >= margin:
        return "supported"
    return "refuted" if found.high < margin or (found.high <= 0 and found.low < 0) else "undecided"


def judge_lower(found: Difference, margin: float) -> Word:
    """Say whether the second is lower than the first; the mirror image of ``judge_higher``."""
    low, high = (None, None) if found.low is None or found.high is None else (-found.high, -found.low)
    return judge_higher(
        Difference(-found.first, -found.second, found.seeds, -found.change, low, high, found.smallest), margin
    )


def judge_same(found: Difference, margin: float) -> Word:
    """Say whether the difference is certainly within the margin, or certainly beyond it."""
    if found.low is None or found.high is None:
        return "undecided"
    if -margin <= found.low and found.high <= margin:
        return "supported"
    return "refuted" if found.low > margin or found.high < -margin else "undecided"


def _squared_error(values: Sequence[float], seed: int) -> float:
    """Return the squared standard error of the interquartile mean."""
    known = np.asarray(values, np.float64)
    n = len(known)
    drawn = known[np.random.default_rng(seed).integers(n, size=(RESAMPLES, n))]
    return float(interquartile_mean(drawn).var()) * n / (n - 1)
