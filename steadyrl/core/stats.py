"""Statistics for comparing evaluations and for reading noisy training curves.

``scipy.special`` is imported where it is needed: it takes longer than all that the doctor needs of this module.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike

from steadyrl.core.errors import DataError
from steadyrl.core.words import counted

_WINDOW_VALUES = 1 << 22  # of windows that are sorted at once
BOOTSTRAP_CHUNK = 1_000_000  # drawn numbers held at once: about 12 MB of indices and values
EXACT_SIGNS = 12  # differences whose signs are all tried, 4096 ways; of more, as many are drawn as a bootstrap has
CLOSED_FORM = 30  # degrees of freedom of Student's t
MAD_TO_STD = 1.4826  # a normal distribution's standard deviation in units of its median absolute deviation
WINDOW_SHARE = 1 / 15  # of the steps under one rolling median
MIN_WINDOW = 5  # steps; with fewer than twice as many, every step is drawn as it is
MIN_BLOCKS = 3  # two block means fix a line and leave nothing to judge it by
SIGNIFICANT = 0.05  # the level that matches a 95 % interval
SOLVED_EPS = 1e-9  # 0.7 + 0.2 + 0.1 is less than 1 in floating point
LEAST_DIFFERING = 6  # problems that differ: five of five in one direction still happen by chance 1 time in 16
UNSEEN = 3.0  # over n: share of problems that may differ when none of n did, with 95 % confidence (-log 0.05)

Word = Literal["better", "worse", "equal", "undecided"]


@dataclass(frozen=True)
class PairedDifference:
    """How a measurement changed on the same problems."""

    n: int
    """Problems."""
    mean_before: float
    mean_after: float
    """Means over the problems."""
    difference: float
    """mean_after - mean_before."""
    low: float
    high: float
    """Bounds of the confidence interval of the difference."""
    standard_error: float
    """Of the difference."""

    @property
    def interval(self) -> str:
        """Return the bounds of a 95 % interval in words."""
        digits = digits_of(self)
        return f"95 % interval [{self.low:+.{digits}f}, {self.high:+.{digits}f}]"


@dataclass(frozen=True)
class Decision:
    """Whether a second measurement of the same problems is better than the first."""

    word: Word
    """"better" and "worse" need the whole interval on one side of 0 and ``p_value`` below 0.05; "equal" the whole
    interval within the margin; "undecided" is everything else."""
    reason: str
    """What the word follows from."""
    change: PairedDifference
    """Means, their paired difference, its 95 % interval and standard error, over problems. With fewer than 6 that
    differ the interval allows for problems that were not seen."""
    p_value: float
    """Of flipping the signs of the differences, see ``sign_flip_p_value``."""


@dataclass(frozen=True)
class Slope:
    """The trend of a series, with the bounds of its confidence interval; all in units of the value per step."""

    per_step: float
    low: float
    high: float


def pass_at_k(samples: int, solved: int, k: int) -> float:
    """Estimate the probability that one or more of k answers to a problem solve it, without bias.

        1 - C(n - c, k) / C(n, k)

    This is the share of all choices of k of the n samples in which a solved one is.

    Args:
        samples: n >= 1, answers that were scored.
        solved: c in [0, n], those of them that solve the problem.
        k: In [1, n].

    Source:
        Chen et al., "Evaluating Large Language Models Trained on Code" (arXiv 2107.03374), equation 1.
    """
    assert 0 <= solved <= samples and 1 <= k <= samples, f"{solved} of {samples} solved, and k = {k}"
    choices = math.comb(samples, k)
    return (choices - math.comb(samples - solved, k)) / choices


def pass_rates(values: Sequence[float], solved: float, samples: int) -> dict[str, float]:
    """Return pass@k of one problem for k = 1, 2, 4, ... and ``samples``, by name ("pass@4").

    Args:
        values: [n] of the answers that were scored; for a k above n nothing is known.
        solved: The value from which on an answer counts as solved; rounding does not count.
        samples: Answers that were drawn.
    """
    passed = sum(value >= solved - SOLVED_EPS for value in values)
    sizes = sorted({samples, *(2**i for i in range(samples.bit_length()))})
    return {f"pass@{k}": pass_at_k(len(values), passed, k) for k in sizes if k <= len(values)}


def paired_difference(
    before: ArrayLike, after: ArrayLike, seed: int = 0, resamples: int = 10_000, confidence: float = 0.95
) -> PairedDifference:
    """Compare two evaluations on the same problems, with an expanded percentile bootstrap over problems.

    Pairing removes the differences in difficulty between problems, usually most of the variance. The interval is
    about problems only: two training runs with other seeds may differ by more. Several samples of a problem are
    averaged first: they are one draw of a problem, not several.

    The percentiles are taken further out than the confidence says, by what Student's t adds to the normal
    distribution and by the bootstrap's own lack of spread, sqrt((n - 1) / n): without that the interval of 10
    problems covers the truth in 90 % of the cases, not in 95 %.

    Args:
        before: [n], one number per problem.
        after: [n], the same problems in the same order.
        seed: Equal seeds give equal intervals.
        resamples: >= 1, bootstrap samples.
        confidence: In (0, 1).

    Raises:
        DataError: Unequal lengths, fewer than two problems, or a value that is not finite.

    Source:
        Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), chapter 13; on the narrowness of percentile
        intervals in small samples: Hesterberg, "What Teachers Should Know About the Bootstrap" (arXiv 1411.5279).
    """
    assert resamples >= 1 and 0 < confidence < 1, f"resamples {resamples}, confidence {confidence} out of range"
    first, second = _paired(before, after)
    differences = second - first  # [n]
    rng = np.random.default_rng(seed)
    rows = max(1, BOOTSTRAP_CHUNK // len(differences))
    means = np.empty(resamples)
    for start in range(0, resamples, rows):
        stop = min(start + rows, resamples)
        indices = rng.integers(len(differences), size=(stop - start, len(differences)), dtype=np.int32)  # [rows, n]
        means[start:stop] = differences[indices].mean(axis=1)
    means = np.sort(means)
    n = len(differences)
    tail = 0.5 * math.erfc(math.sqrt(n / (n - 1) / 2.0) * student_quantile(n - 1, 0.5 + confidence / 2.0))
    # The same number of means from either end: swapping before and after turns the interval round exactly.
    cut = int(tail * (resamples - 1))
    low, high = means[cut], means[resamples - 1 - cut]
    return PairedDifference(
        n=n,
        mean_before=float(first.mean()),
        mean_after=float(second.mean()),
        difference=float(differences.mean()),
        low=float(low),
        high=float(high),
        standard_error=float(differences.std(ddof=1)) / math.sqrt(n),
    )


def sign_flip_p_value(differences: ArrayLike, seed: int = 0, resamples: int = 10_000) -> float:
    """Test whether paired differences could as well have the opposite signs, two-sided.

    The chance of a mean as far from 0, if for each problem a coin had decided which of the two is which. It holds for
    any distribution, also where few problems differ and a bootstrap of them promises too much. For differences of one
    size it is McNemar's exact test.

    Args:
        differences: [n] finite numbers, one per problem.
        seed: Equal seeds give equal values.
        resamples: >= 1, sign patterns drawn where there are too many to try all.

    Returns:
        In (0, 1].

    Source:
        Fisher, "The Design of Experiments" (1935), chapter III; drawn patterns count the one seen: Phipson and Smyth,
        "Permutation P-values Should Never Be Zero" (2010).
    """
    assert resamples >= 1, f"resamples {resamples} out of range"
    moved = np.asarray(differences, dtype=np.float64)
    moved = moved[moved != 0]  # a problem without a difference has no sign to flip
    count = len(moved)
    if count == 0:
        return 1.0
    observed = abs(float(moved.sum())) * (1.0 - 1e-12)  # sums of one set of numbers differ by rounding
    if count <= EXACT_SIGNS:
        sums = np.zeros(1)  # of all patterns of signs of the differences so far
        for difference in moved:
            sums = np.concatenate((sums - difference, sums + difference))
        return float((np.abs(sums) >= observed).mean())
    rng = np.random.default_rng(seed)
    rows = max(1, BOOTSTRAP_CHUNK // count)
    further = 0
    for start in range(0, resamples, rows):
        size = (min(rows, resamples - start), count)
        signs = 2.0 * rng.integers(2, size=size, dtype=np.int8) - 1.0
        further += int((np.abs(signs @ moved) >= observed).sum())
    return (further + 1) / (resamples + 1)


def decide(before: ArrayLike, after: ArrayLike, span: float, margin: float | None = None, seed: int = 0) -> Decision:
    """Decide whether the second of two measurements of the same problems is better: all verdicts come from here.

    Args:
        before: [n], one number per problem.
        after: [n], the same problems in the same order.
        span: The largest possible difference between two problems, see ``largest_difference``.
        margin: > 0, in units of the values: what counts as equal. None for no margin.
        seed: Of the bootstrap; equal seeds give equal decisions.

    Raises:
        DataError: Unequal lengths, fewer than two problems, or a value that is not finite.
    """
    first, second = _paired(before, after)
    differing = int((first != second).sum())
    change = widened(paired_difference(first, second, seed), differing, span)
    p_value = sign_flip_p_value(second - first, seed)
    bounds = f"the {change.interval} over {counted(change.n, 'problem')}"
    word: Word = "undecided"
    if span == 0:
        reason = f"all answers to {counted(change.n, 'problem')} have one value, which says nothing about the two"
    elif margin is not None and -margin <= change.low and change.high <= margin:
        word, reason = "equal", f"{bounds} lies within {margin:g} of 0"
    elif differing < LEAST_DIFFERING:
        differ = f"{differing} of {counted(change.n, 'problem')} differ"
        reason = f"{differ}, and fewer than {LEAST_DIFFERING} may do so by chance"
    elif change.low <= 0 <= change.high:
        reason = f"{bounds} contains 0"
    elif p_value >= SIGNIFICANT:
        reason = f"{bounds} excludes 0, but with signs flipped at random p = {p_value:.3f}, not below {SIGNIFICANT:g}"
    else:
        word, side = ("better", "above") if change.low > 0 else ("worse", "below")
        reason = f"{bounds} lies {side} 0"
    return Decision(word, reason, change, p_value)


def answers_are(way: str, word: str, reason: str) -> str:
    """Say what a way of answering decides: the clause of comparisons, reports and findings."""
    return f"{way} answers are {word}, because {reason}"


def largest_difference(first: np.ndarray, second: np.ndarray) -> float:
    """Return the largest possible difference between two problems, as far as two measurements [n] of them tell it.

    That is 1 for pass and fail, and 0 if all have one value.
    """
    measured = np.concatenate([first, second])
    return 1.0 if np.isin(measured, (0.0, 1.0)).all() else float(np.ptp(measured))


def widened(change: PairedDifference, differing: int, span: float) -> PairedDifference:
    """Widen the interval of a set in which fewer than 6 problems differ, to allow for problems that were not seen.

    Args:
        change: Of the set.
        differing: Problems that differ in it.
        span: The largest possible difference between two problems.
    """
    if differing >= LEAST_DIFFERING:
        return change
    reach = min(1.0, UNSEEN / change.n) * span
    return replace(change, low=min(change.low, -reach), high=max(change.high, reach))


def digits_of(change: PairedDifference) -> int:
    """Return how many decimals to print: two digits of half the interval's width, plus one."""
    half = (change.high - change.low) / 2.0
    if half == 0:
        return 3
    return int(min(max(2 - math.floor(math.log10(half)), 1), 8))


def mcnemar_exact(gained: int, lost: int) -> float:
    """Test whether as many problems were lost as gained, two-sided: McNemar's exact test.

    Args:
        gained: Problems that only the second passes, >= 0.
        lost: Problems that only the first passes, >= 0.

    Returns:
        In (0, 1]: twice the chance of so few heads among gained + lost throws of a coin, at most 1.

    Source:
        McNemar, "Note on the sampling error of the difference between correlated proportions" (1947), with the
        binomial distribution in place of its normal approximation.
    """
    assert gained >= 0 and lost >= 0, f"gained {gained} and lost {lost} are counts"
    from scipy.special import bdtr  # type: ignore[import-untyped]  # scipy ships no types

    return min(1.0, 2.0 * float(bdtr(min(gained, lost), gained + lost, 0.5)))


def smallest_detectable(standard_error: float, n: int) -> float:
    """Return the true difference that a set of this size and spread shows, by a 95 % interval, in 4 of 5 cases.

        (t(0.975) + t(0.8)) * standard error, with n - 1 degrees of freedom; 2.8 errors for large n

    Args:
        standard_error: Of the paired difference, >= 0.
        n: Problems, >= 2.

    Source:
        Bloom, "Minimum Detectable Effects" (Evaluation Review 19, 1995), as a multiple of the standard error.
    """
    assert n >= 2, f"{n} problems"
    return (student_quantile(n - 1, 0.975) + student_quantile(n - 1, 0.8)) * standard_error


def _paired(before: ArrayLike, after: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return both evaluations as float64 [n], or raise DataError where they do not pair."""
    first, second = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    if first.ndim != 1 or first.shape != second.shape:
        raise DataError(
            f"got measurements of shapes {first.shape} and {second.shape}, expected two lists of one length; "
            "evaluate both on the same problems and leave out those that only one has measured"
        )
    if len(first) < 2:
        raise DataError(f"got {counted(len(first), 'problem')}, expected at least 2; evaluate on more problems")
    if unknown := int((~(np.isfinite(first) & np.isfinite(second))).sum()):
        raise DataError(
            f"got {unknown} of {counted(len(first), 'problem')} with a value that is not finite, expected none; "
            "leave out problems that were not measured both times"
        )
    return first, second


def difference_of_means(
    first: ArrayLike, second: ArrayLike, confidence: float = 0.95
) -> tuple[float, float, float] | None:
    """Compare the means of two series of independent values that need not vary alike.

    Args:
        first: [n], entries that are not finite are left out.
        second: [m], likewise.
        confidence: In (0, 1).

    Returns:
        mean(second) - mean(first) and the bounds of its interval; None with fewer than two values on either side.

    Source:
        Welch, "The Generalization of 'Student's' Problem when Several Different Population Variances are Involved"
        (Biometrika, 1947), with Satterthwaite's degrees of freedom.
    """
    assert 0 < confidence < 1, f"confidence {confidence} out of range"
    sides = [np.asarray(side, dtype=np.float64) for side in (first, second)]
    sides = [side[np.isfinite(side)] for side in sides]
    if min(len(side) for side in sides) < 2:
        return None
    errors = np.array([side.var(ddof=1) / len(side) for side in sides])  # squared
    difference, total = float(sides[1].mean() - sides[0].mean()), float(errors.sum())
    if total == 0:
        return difference, difference, difference
    freedom = total**2 / float((errors**2 / [len(side) - 1 for side in sides]).sum())
    reach = student_quantile(freedom, 0.5 + confidence / 2.0) * math.sqrt(total)
    return difference, difference - reach, difference + reach


def block_mean_slope(values: ArrayLike, blocks: int = 10, confidence: float = 0.95) -> Slope | None:
    """Fit a line through the means of consecutive blocks.

    Neighbouring steps of a training curve are alike, so a line through single steps claims far more certainty than
    there is. Means of blocks longer than that memory are nearly independent.

    Args:
        values: [n], one per step; entries that are not finite are left out, the others keep their steps.
        blocks: Of nearly equal numbers of values; fewer if there are fewer values.
        confidence: In (0, 1).

    Returns:
        Least-squares slope with a t-interval (blocks - 2 degrees of freedom); None with fewer than 3 blocks.
    """
    assert 0 < confidence < 1, f"confidence {confidence} out of range"
    series = np.asarray(values, dtype=np.float64)  # [n]
    finite = np.flatnonzero(np.isfinite(series))
    count = min(blocks, len(finite))
    if count < MIN_BLOCKS:
        return None
    starts = block_starts(len(finite), count)
    sizes = np.diff(starts, append=len(finite))
    steps = np.add.reduceat(finite, starts) / sizes  # [count]
    means = np.add.reduceat(series[finite], starts) / sizes  # [count]
    centred = steps - steps.mean()
    spread = float(centred @ centred)
    per_step = float(centred @ (means - means.mean())) / spread
    residuals = means - means.mean() - per_step * centred
    error = math.sqrt(float(residuals @ residuals) / (count - 2) / spread)
    reach = student_quantile(count - 2, 0.5 + confidence / 2.0) * error
    return Slope(per_step, per_step - reach, per_step + reach)


@lru_cache(maxsize=256)
def window(steps: int) -> int:
    """Return the number of steps in one rolling median: odd, and 1 for a run that is too short to smooth."""
    if steps < 2 * MIN_WINDOW:
        return 1
    return max(MIN_WINDOW, int(steps * WINDOW_SHARE)) // 2 * 2 + 1


def block_starts(points: int, count: int) -> np.ndarray:
    """Return where each of ``count`` blocks of so many points begins, [count]: the first may have one point more.

    Args:
        points: >= count.
        count: >= 1.
    """
    sizes = points // count + (np.arange(count) < points % count)
    starts: np.ndarray = np.cumsum(sizes) - sizes
    return starts


def rolling_median(values: np.ndarray, width: int) -> np.ndarray:
    """Return the median of ``width`` values around each, [n]; fewer at the ends.

    At the start as many values count after a value as before it, so that the first is itself: a policy can collapse
    within a few steps, and the median of half a window would hide where it came from.
    """
    reach, count = width // 2, len(values)
    medians = np.empty(count)
    # Windows at the ends are shorter, and are taken one by one; all others have one width.
    for i in (*range(min(reach, count)), *range(max(reach, count - reach), count)):
        medians[i] = _median_around(values, i, reach)
    if count > 2 * reach:
        windows = sliding_window_view(values, 2 * reach + 1)
        size = max(1, _WINDOW_VALUES // (2 * reach + 1))
        for start in range(0, len(windows), size):
            medians[reach + start : reach + start + size][: len(windows[start : start + size])] = np.median(
                windows[start : start + size], axis=1
            )
    return medians


def _median_around(values: np.ndarray, i: int, reach: int) -> float:
    return float(np.median(values[max(0, i - reach) : i + min(i, reach) + 1]))


def smoothed(values: ArrayLike) -> np.ndarray:
    """Return a curve [n] as the report's pictures smooth it."""
    curve = np.asarray(values, np.float64)
    return rolling_median(curve, window(len(curve)))


def steps_to_hold(steps: int) -> int:
    """Return for how many steps a run of so many has to hold its target: a tenth of them."""
    return -(-steps // 10)


def holds_target(rewards: ArrayLike, target: float, steps: int) -> bool:
    """Return whether the smoothed reward has been at its target or above it for a tenth of a run's steps.

    Args:
        rewards: [n], of the steps so far, all known.
        target: In units of the reward.
        steps: Of the whole run.
    """
    curve, min_steps = np.asarray(rewards, np.float64), steps_to_hold(steps)
    reach, newest_first = window(len(curve)) // 2, range(len(curve) - 1, len(curve) - 1 - min_steps, -1)
    return len(curve) >= min_steps and all(_median_around(curve, i, reach) >= target for i in newest_first)


@lru_cache(maxsize=1024)
def student_quantile(freedom: float, probability: float) -> float:
    """Return the number below which Student's t stays with a probability.

    Args:
        freedom: > 0. Up to 30 whole degrees have a closed form, which is inverted by bisection.
        probability: In [0.5, 1).

    Source:
        Abramowitz and Stegun, "Handbook of Mathematical Functions" (1964), 26.7.3 and 26.7.4.
    """
    if freedom > CLOSED_FORM or freedom != int(freedom):
        from scipy.special import stdtrit

        return float(stdtrit(freedom, probability))
    low, high = 0.0, math.pi / 2.0
    # It ends where no float lies between the two bounds.
    while (middle := (low + high) / 2.0) not in (low, high):
        is_below = _central_probability(middle, int(freedom)) < 2.0 * probability - 1.0
        low, high = (middle, high) if is_below else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _central_probability(angle: float, freedom: int) -> float:
    """Return the chance that |t| < sqrt(freedom) * tan(angle)."""
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(1 + odd, freedom - 2, 2):
        term = term * math.cos(angle) ** 2 * k / (k + 1)
        total += term
    sine_sum = math.sin(angle) * total
    return 2.0 / math.pi * (angle + sine_sum) if odd else sine_sum
