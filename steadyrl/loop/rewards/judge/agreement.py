"""How far tests and a judge agree on the same answers, with intervals over problems.

Answers to one problem are not independent, so that the bootstrap draws problems. It takes percentiles; with fewer than
some 20 problems such an interval is too narrow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

_RESAMPLES, _CONFIDENCE = 2000, 0.95


@dataclass(frozen=True)
class Estimate:
    """A number with the bounds of its 95 % interval, and how many problems are behind it."""

    value: float
    low: float
    high: float
    problems: int


# For each problem two arrays of one length: what tests say of its answers, and what the judge says.
Measured = Sequence[tuple[np.ndarray, np.ndarray]]


def concordance(measured: Measured) -> Estimate | None:
    """Return how often the judge prefers what the tests prefer, among pairs of answers to one problem.

    Pairs that the tests do not tell apart are left out; where the judge does not, it counts a half. With answers that
    are right or wrong this is the area under the ROC curve, within problems. 0.5 is chance.

    Returns:
        None if the tests tell no two answers apart.
    """
    counts = np.array([_pairs(tests, judge) for tests, judge in measured]).reshape(-1, 2)
    counts = counts[counts[:, 1] > 0]  # [P, 2]: agreeing pairs, pairs
    if not len(counts):
        return None
    return _bootstrap(len(counts), lambda rows: float(counts[rows, 0].sum() / counts[rows, 1].sum()))


def rank_correlation(measured: Measured) -> Estimate | None:
    """Return Spearman's correlation over the answers to all problems; ties share their mean rank.

    Returns:
        None if tests or judge say the same of every answer.
    """
    nonempty = [values for values in measured if len(values[0])]
    problem = np.repeat(np.arange(len(nonempty)), [len(tests) for tests, _ in nonempty])
    rank_indices = [np.unique(np.concatenate(side), return_inverse=True)[1] for side in zip(*nonempty, strict=True)]

    def correlation(rows: np.ndarray) -> float:
        times = np.bincount(rows, minlength=len(nonempty))[problem]  # that each answer was drawn
        counts = [np.bincount(index, times) for index in rank_indices]
        ranks = [(n.cumsum() - (n - 1) / 2)[index] for n, index in zip(counts, rank_indices, strict=True)]
        (first, shared), (_, second) = np.cov(ranks, fweights=times, ddof=0)
        with np.errstate(invalid="ignore"):  # NaN where one side is all ties
            return float(shared / np.sqrt(first * second))

    if not nonempty or np.isnan(correlation(np.arange(len(nonempty)))):
        return None
    return _bootstrap(len(nonempty), correlation)


def mean(values: Sequence[float]) -> Estimate | None:
    """Return the mean of one value for each problem."""
    x = np.array(values)
    return _bootstrap(len(x), lambda rows: float(x[rows].mean())) if len(x) else None


def _pairs(tests: np.ndarray, judge: np.ndarray) -> tuple[float, float]:
    first, second = np.triu_indices(len(tests), 1)
    truth, judged = np.sign(tests[first] - tests[second]), np.sign(judge[first] - judge[second])
    untied = truth != 0
    return float(((truth * judged + 1) / 2)[untied].sum()), float(untied.sum())


def _bootstrap(problems: int, statistic: Callable[[np.ndarray], float]) -> Estimate:
    generator = np.random.default_rng(0)
    resampled = [statistic(generator.integers(problems, size=problems)) for _ in range(_RESAMPLES)]
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.nanquantile(resampled, [tail, 1 - tail])
    return Estimate(statistic(np.arange(problems)), float(low), float(high), problems)
