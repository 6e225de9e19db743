"""Judges whether the second subject is better than the first, from paired numbers on the same problems.

A problem is the unit: its samples are averaged first, and the bootstrap draws problems. More samples make a problem's
mean more precise, but they do not count as more problems. Every difference is second minus first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from steadyrl.errors import DataError
from steadyrl.stats import (
    PairedDifference,
    mcnemar_exact,
    paired_difference,
    sign_flip_p_value,
    smallest_detectable,
)

SIGNIFICANT = 0.05  # the level that matches a 95 % interval
LEAST_DIFFERING = 6  # problems that differ: five of five in one direction still happen by chance 1 time in 16
MOST_SAID = 1_000_000  # problems: a larger number is given in words
UNSEEN = 3.0  # over n: share of problems that may differ when none of n did, with 95 % confidence (-log 0.05)

Word = Literal["better", "worse", "equal", "undecided"]
Samples = Sequence[Sequence[float]]  # of each problem, the values of its samples


@dataclass(frozen=True)
class Verdict:
    """The result of comparing two subjects on a set of problems.

    Attributes:
        word: Of the second against the first. "better" and "worse" need the whole interval on one side of 0 and
            ``p_value`` below 0.05; "equal" the whole interval within the margin; "undecided" is everything else.
        change: Means, their paired difference, its 95 % interval and standard error, over problems.
        p_value: Of flipping the signs of the differences, see ``stats.sign_flip_p_value``.
        wins, ties, losses: Problems on which the second is above, equal, below.
        pass_fail: True if every sample is 0 or 1.
        mcnemar: McNemar's exact p-value of wins and losses for pass and fail; of several samples of a problem the
            passes are compared. None for other metrics.
        smallest: The smallest true difference that such a set shows in 4 of 5 cases; None if all values are equal.
        needed: Number of such problems that would show the observed difference; None for a difference of 0, or if
            ``smallest`` is not known.
        noise: Share of the differences' variance that comes from sampling, which more samples would lower; None if
            problems have one sample each.
        sparse: True if fewer than 6 problems differ. The interval then allows for differing problems that were not
            seen.
        margin: Differences smaller than this do not matter; None for no margin.
    """

    word: Word
    change: PairedDifference
    p_value: float
    wins: int
    ties: int
    losses: int
    pass_fail: bool
    mcnemar: float | None
    smallest: float | None
    needed: int | None
    noise: float | None
    sparse: bool
    margin: float | None


def judge(first: Samples, second: Samples, margin: float | None = None, seed: int = 0) -> Verdict:
    """Compare two subjects on the same problems.

    Args:
        first: [n] lists of numbers, the samples of each problem; at least one each, not necessarily equally many.
        second: The same problems in the same order.
        margin: > 0, in units of the values: what counts as equal.
        seed: Of the bootstrap; equal seeds give equal verdicts.

    Raises:
        DataError: Fewer than two problems, a problem without a sample, or a value that is not finite.
    """
    assert margin is None or margin > 0, f"margin {margin} must be above 0"
    before, after = _problem_means(first), _problem_means(second)
    differences = after - before  # [n]
    wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
    pass_fail, span = is_pass_fail(first, second), span_of(first, second)
    sparse = wins + losses < LEAST_DIFFERING
    change = widened(paired_difference(before, after, seed), wins + losses, span)
    p_value = sign_flip_p_value(differences, seed)
    smallest = _smallest(change, span, sparse)
    return Verdict(
        word=_word(change, p_value, margin) if span > 0 else "undecided",
        change=change,
        p_value=p_value,
        wins=wins,
        ties=change.n - wins - losses,
        losses=losses,
        pass_fail=pass_fail,
        mcnemar=mcnemar_exact(wins, losses) if pass_fail else None,
        smallest=smallest,
        needed=_needed(change, smallest),
        noise=_sampling_noise(first, second, differences),
        sparse=sparse,
        margin=margin,
    )


def is_pass_fail(first: Samples, second: Samples) -> bool:
    """Return whether every sample of both is 0 or 1."""
    return all(value in (0.0, 1.0) for values in (*first, *second) for value in values)


def span_of(first: Samples, second: Samples) -> float:
    """Return the largest possible difference between two problems, as far as it is known; 0 if all means are equal."""
    if is_pass_fail(first, second):
        return 1.0
    means = [*_problem_means(first), *_problem_means(second)]
    return float(max(means) - min(means))


def widened(change: PairedDifference, differing: int, span: float) -> PairedDifference:
    """Widen the interval of a set in which fewer than 6 problems differ, to allow for problems that were not seen.

    Args:
        change: Of the set.
        differing: Problems that differ in it.
        span: The largest possible difference between two problems, see ``span_of``.
    """
    if differing >= LEAST_DIFFERING:
        return change
    reach = min(1.0, UNSEEN / change.n) * span
    return replace(change, low=min(change.low, -reach), high=max(change.high, reach))


def in_words(verdict: Verdict, first: str, second: str, metric: str) -> list[str]:
    """Return the verdict as plain sentences with its numbers, the most important first.

    Args:
        verdict: See ``judge``.
        first: What to call the first.
        second: What to call the second.
        metric: What to call the number that was compared.
    """
    change, n = verdict.change, verdict.change.n
    digits = digits_of(change)
    numbers = (
        f"{metric} {change.mean_before:.{digits}f} -> {change.mean_after:.{digits}f}, difference "
        f"{change.difference:+.{digits}f}, 95 % interval [{change.low:+.{digits}f}, {change.high:+.{digits}f}], "
        f"{n} problems"
    )
    opening = {
        "better": f"{second} is better than {first}",
        "worse": f"{second} is worse than {first}",
        "equal": f"{second} and {first} are equal within {verdict.margin}",
        "undecided": "undecided",
    }[verdict.word]
    sentences = [f"{opening}: {numbers}"]
    if verdict.smallest is None:
        sentences.append("all answers of both got the same value: this set says nothing about the two")
        return sentences
    could_not = f"this set could not have shown less than {verdict.smallest:.{digits}f} (80 % power)"
    if verdict.word == "undecided":
        sentences[0] = f"{opening}, and {could_not}: {numbers}"
        if verdict.needed is not None and verdict.needed > n:
            count = "more than a million" if verdict.needed > MOST_SAID else f"about {rounded_up(verdict.needed)}"
            sentences.append(f"to show a true difference as small as the one seen takes {count} such problems")
        if verdict.noise is not None:
            sentences.append(
                f"sampling makes {verdict.noise:.0%} of the spread: that share falls with more samples, the rest falls "
                "only with more problems"
            )
    else:
        sentences.append(could_not)
    sentences += _doubts(verdict)
    return sentences


def digits_of(change: PairedDifference) -> int:
    """Return how many decimals to print: two digits of half the interval's width, plus one."""
    half = (change.high - change.low) / 2.0
    if half == 0:
        return 3
    return int(min(max(2 - math.floor(math.log10(half)), 1), 8))


def rounded_up(count: int) -> int:
    """Return a count rounded up to two significant digits."""
    unit: int = 10 ** max(0, len(str(count)) - 2)
    return -(-count // unit) * unit


def _doubts(verdict: Verdict) -> list[str]:
    """Return caveats about the verdict."""
    differing = verdict.wins + verdict.losses
    if verdict.sparse:
        return [
            f"only {differing} of {verdict.change.n} problems differ; the interval allows for "
            f"{UNSEEN:g} more that may differ unseen"
        ]
    excluded = verdict.change.low > 0 or verdict.change.high < 0
    if verdict.word == "undecided" and excluded:
        return [
            f"the interval excludes 0, but chance alone gives such a difference in {verdict.p_value:.0%} of the cases"
        ]
    return []


def _problem_means(samples: Samples) -> np.ndarray:
    """Return the mean of each problem's samples, [n] float64."""
    empty = sum(len(values) == 0 for values in samples)
    if empty:
        raise DataError(
            f"got {empty} of {len(samples)} problems without a sample, expected none; leave them out of both"
        )
    return np.array([math.fsum(values) / len(values) for values in samples], dtype=np.float64)


def _sampling_noise(first: Samples, second: Samples, differences: np.ndarray) -> float | None:
    """Return the share of the variance of the problems' differences [n] that comes from sampling alone.

    Sample s of both has the same seed, so their noise can be correlated. It is therefore measured on differences per s.
    """
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if len(a) == len(b) > 1]
    spread = float(differences.var(ddof=1))
    if not pairs or spread == 0:
        return None
    variances = [float(np.var(np.subtract(b, a), ddof=1)) / len(a) for a, b in pairs]
    return min(1.0, float(np.mean(variances)) / spread)


def _word(change: PairedDifference, p_value: float, margin: float | None) -> Word:
    if margin is not None and -margin <= change.low and change.high <= margin:
        return "equal"
    if p_value < SIGNIFICANT and change.low > 0:
        return "better"
    if p_value < SIGNIFICANT and change.high < 0:
        return "worse"
    return "undecided"


def _smallest(change: PairedDifference, span: float, sparse: bool) -> float | None:
    if span == 0:
        return None
    shown = smallest_detectable(change.standard_error, change.n)
    # So few differing problems have no usable spread, but at least six would have to differ by the largest amount.
    return max(shown, min(1.0, LEAST_DIFFERING / change.n) * span) if sparse else shown


def _needed(change: PairedDifference, smallest: float | None) -> int | None:
    """Return how many problems show the observed difference: the standard error falls with the root of their number."""
    if smallest is None or change.difference == 0:
        return None
    return math.ceil(change.n * (smallest / abs(change.difference)) ** 2)
