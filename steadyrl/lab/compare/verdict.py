"""Judges whether the second subject is better than the first, from paired numbers on the same problems.

A problem is the unit: its samples are averaged first, and the bootstrap draws problems. More samples make a problem's
mean more precise, but they do not count as more problems. Every difference is second minus first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from steadyrl.core.errors import DataError
from steadyrl.core.stats import (
    LEAST_DIFFERING,
    UNSEEN,
    Decision,
    Word,
    answers_are,
    decide,
    digits_of,
    largest_difference,
    mcnemar_exact,
    smallest_detectable,
)
from steadyrl.core.words import percent

MOST_SAID = 1_000_000  # problems: a larger number is given in words

Samples = Sequence[Sequence[float]]  # of each problem, the values of its samples


@dataclass(frozen=True)
class Verdict(Decision):
    """The result of comparing two subjects on a set of problems: the decision on the second, and what surrounds it."""

    wins: int
    ties: int
    losses: int
    """Problems on which the second is above, equal, below."""
    pass_fail: bool
    """True if every sample is 0 or 1."""
    mcnemar: float | None
    """McNemar's exact p-value of wins and losses for pass and fail; of several samples of a problem the passes are
    compared. None for other metrics."""
    smallest: float | None
    """The smallest true difference that such a set shows in 4 of 5 cases; None if all values are equal."""
    needed: int | None
    """Number of such problems that would show the observed difference; None for a difference of 0, or if ``smallest``
    is not known."""
    noise: float | None
    """Share of the differences' variance that comes from sampling, which more samples would lower; None if problems
    have one sample each."""
    sparse: bool
    """True if fewer than 6 problems differ. The interval then allows for differing problems that were not seen."""
    margin: float | None
    """Differences smaller than this do not matter; None for no margin."""


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
    decision = decide(before, after, span, margin, seed)
    change = decision.change
    smallest = smallest_detectable(change.standard_error, change.n) if span else None
    if smallest is not None and sparse:
        # So few differing problems have no usable spread, but at least six would have to differ by the largest amount.
        smallest = max(smallest, min(1.0, LEAST_DIFFERING / change.n) * span)
    # Sample s of both has the same seed, so their noise can be correlated: it is measured on differences per s.
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if len(a) == len(b) > 1]
    spread, noise = float(differences.var(ddof=1)), None
    if pairs and spread:
        variances = [float(np.var(np.subtract(b, a), ddof=1)) / len(a) for a, b in pairs]
        noise = min(1.0, float(np.mean(variances)) / spread)
    needed = None
    if smallest is not None and change.difference:  # the standard error falls with the root of the number of problems
        needed = math.ceil(change.n * (smallest / abs(change.difference)) ** 2)
    return Verdict(
        **vars(decision),
        wins=wins,
        ties=change.n - wins - losses,
        losses=losses,
        pass_fail=pass_fail,
        mcnemar=mcnemar_exact(wins, losses) if pass_fail else None,
        smallest=smallest,
        needed=needed,
        noise=noise,
        sparse=sparse,
        margin=margin,
    )


def is_pass_fail(first: Samples, second: Samples) -> bool:
    """Return whether every sample of both is 0 or 1."""
    return all(value in (0.0, 1.0) for values in (*first, *second) for value in values)


def span_of(first: Samples, second: Samples) -> float:
    """Return the largest possible difference between two problems, as far as it is known; 0 if all means are equal."""
    return 1.0 if is_pass_fail(first, second) else largest_difference(_problem_means(first), _problem_means(second))


@dataclass(frozen=True)
class Conclusion:
    """What several ways of answering and the doctor say of a policy together."""

    word: Word
    """Of the answers as they will be used."""
    deploy: str
    """How that is: "sampled" or "greedy"."""
    reason: str
    doubts: tuple[str, ...]
    """What speaks against the word: answers drawn in another way that say something else, and what the doctor calls
    sick."""

    @property
    def sentence(self) -> str:
        """The whole in one line."""
        return with_doubts(f"{self.word} by {self.deploy} answers, because {self.reason}", self.doubts)


def conclude(decided: Mapping[str, tuple[Word, str]], deploy: str, harms: Mapping[str, Sequence[str]]) -> Conclusion:
    """Judge a policy by the way it will be used (evaluate.deploy), and name what contradicts that."""
    word, reason = decided[deploy]
    contradictions = [
        answers_are(name, differing_word, differing_reason)
        for name, (differing_word, differing_reason) in decided.items()
        if differing_word not in (word, "undecided")
    ]
    sick = [f"the doctor calls {run} sick: {', '.join(checks)}" for run, checks in harms.items() if checks]
    return Conclusion(word, deploy, reason, (*contradictions, *sick))


def with_doubts(verdict: str, doubts: Sequence[str]) -> str:
    """Return the line of a verdict with what speaks against it."""
    return f"{verdict}; but {'; and '.join(doubts)}" if doubts else verdict


def in_words(verdict: Verdict, first: str, second: str, metric: str) -> list[str]:
    """Return a verdict on what is called ``first`` and ``second`` as plain sentences, the most important first."""
    change, n = verdict.change, verdict.change.n
    digits = digits_of(change)
    numbers = (
        f"{metric} {change.mean_before:.{digits}f} -> {change.mean_after:.{digits}f}, difference "
        f"{change.difference:+.{digits}f}, {change.interval}, {n} problems"
    )
    opening = {
        "better": f"{second} is better than {first}",
        "worse": f"{second} is worse than {first}",
        "equal": f"{second} and {first} are equal within {verdict.margin}",
        "undecided": "undecided",
    }[verdict.word]
    sentences = [f"{opening}: {numbers}"]
    if verdict.word == "undecided":
        sentences.append(f"undecided because {verdict.reason}")
    if verdict.smallest is None:
        return sentences
    could_not = f"this set could not have shown less than {verdict.smallest:.{digits}f} (80 % power)"
    if verdict.word == "undecided":
        sentences[0] = f"{opening}, and {could_not}: {numbers}"
        if verdict.needed is not None and verdict.needed > n:
            count = "more than a million" if verdict.needed > MOST_SAID else f"about {rounded_up(verdict.needed)}"
            sentences.append(f"to show a true difference as small as the one seen takes {count} such problems")
        if verdict.noise is not None:
            sentences.append(
                f"sampling makes {percent(verdict.noise)} of the spread: that share falls with more samples, the rest "
                "falls only with more problems"
            )
    else:
        sentences.append(could_not)
    if verdict.sparse:
        differing = f"only {verdict.wins + verdict.losses} of {n} problems differ"
        sentences.append(f"{differing}; the interval allows for {UNSEEN:g} more that may differ unseen")
    return sentences


def rounded_up(count: int) -> int:
    """Return a count rounded up to two significant digits."""
    unit: int = 10 ** max(0, len(str(count)) - 2)
    return -(-count // unit) * unit


def _problem_means(samples: Samples) -> np.ndarray:
    """Return the mean of each problem's samples, [n] float64."""
    empty = sum(len(values) == 0 for values in samples)
    if empty:
        raise DataError(
            f"got {empty} of {len(samples)} problems without a sample, expected none; leave them out of both"
        )
    return np.array([math.fsum(values) / len(values) for values in samples], dtype=np.float64)
