"""The results of a comparison: the verdict, every part, results by difficulty, and examples of answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from steadyrl.core.errors import DataError
from steadyrl.core.stats import paired_difference, pass_rates, widened
from steadyrl.core.types import Problem
from steadyrl.core.words import counted
from steadyrl.lab.compare.answers import Answers
from steadyrl.lab.compare.verdict import Samples, in_words, judge, span_of

TOTAL = "reward"  # the name of the weighted sum of all parts
MEASURED = ("tokens", "truncated")  # of every answer, beside its reward parts
DIFFICULTY = ("difficulty", "level")  # columns of a problem that may contain it
MOST_LEVELS, BANDS = 8, 4  # of difficulty: numbers with more different values are grouped into this many bands
ROW_RESAMPLES = 2_000  # of the intervals beside the verdict, of which there are many
WINS_AND_LOSSES, TIES = 8, 2  # examples: the largest wins, as many of the largest losses, and some of the rest

Record = Mapping[str, Any]  # of one answer, see answers.py


def sample_value(record: Record, name: str) -> float | None:
    """Return a measurement of an answer (total, reward part, tokens, truncated), or None if it is unknown."""
    value = record[name] if name in (TOTAL, *MEASURED) else record["parts"].get(name)
    # A number that is not finite is stored as text.
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def part_names(records: Iterable[Record]) -> list[str]:
    """Return every reward part that some answer has, sorted."""
    return sorted({name for record in records for name in record["parts"]})


def findings(
    problems: Sequence[Problem],
    answers: tuple[Answers, Answers],
    metric: str,
    margin: float | None,
    called: tuple[str, str],
    solved: float = 1.0,
) -> dict[str, Any]:
    """Compare the answers of two subjects; docs/compare.md describes the result.

    Args:
        problems: The problems that were asked. One without a number from either subject is left out and counted.
        answers: Of the first and of the second subject.
        metric: What is compared.
        margin: Differences smaller than this do not matter; None for no margin.
        called: The names of the two in sentences.
        solved: The value of the metric from which on an answer counts as solved, for pass@k of several answers.

    Raises:
        DataError: Fewer than two problems were measured for both.
    """
    first, second = ({p.id: _values(by_problem[p.id], metric) for p in problems} for by_problem in answers)
    shared = [problem for problem in problems if first[problem.id] and second[problem.id]]
    if len(shared) < 2:
        raise DataError(
            f"{metric} was measured for both on {len(shared)} of {counted(len(problems), 'problem')}, expected at "
            "least 2; fix the reason why the others are unscored"
        )
    before, after = ([values[p.id] for p in shared] for values in (first, second))
    verdict = judge(before, after, margin)
    means = [(float(np.mean(b)), float(np.mean(a))) for b, a in zip(before, after, strict=True)]
    return {
        "verdict": asdict(verdict),
        "sentences": in_words(verdict, *called, metric),
        "left_out": len(problems) - len(shared),
        "same_answers": sum(len({tuple(r["text"] for r in side[p.id]) for side in answers}) == 1 for p in shared),
        "parts": [
            *(_pass_rows(before, after, solved) if metric not in MEASURED else ()),
            *_part_rows(shared, answers, metric),
        ],
        "difficulty": _by_difficulty(shared, means, span_of(before, after)),
        "problems": [{"problem": p.id, "a": b, "b": a} for p, (b, a) in zip(shared, means, strict=True)],
        "examples": _examples(shared, answers, [a - b for b, a in means], metric),
    }


def metric_row(judged: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """Return the row of the metric for a table of every measurement, from what ``findings`` returned."""
    change, has_spread = judged["verdict"]["change"], judged["verdict"]["smallest"] is not None
    return {
        "name": metric,
        "n": change["n"],
        "a": change["mean_before"],
        "b": change["mean_after"],
        "difference": change["difference"],
        "interval": [change["low"], change["high"]] if has_spread else None,
    }


def _values(records: Iterable[Record], name: str) -> list[float]:
    values = (sample_value(record, name) for record in records)
    return [value for value in values if value is not None]


def _pass_rows(first: Samples, second: Samples, solved: float) -> list[dict[str, Any]]:
    """Return a row for each pass@k, over the problems with as many scored answers from both; none of single answers."""
    samples = max(len(values) for values in (*first, *second))
    rates = [[pass_rates(values, solved, samples) for values in side] for side in (first, second)]
    rows = []
    for name in dict.fromkeys(name for rate in rates[0] for name in rate if samples > 1):
        pairs = [(b[name], a[name]) for b, a in zip(*rates, strict=True) if name in b and name in a]
        if pairs:
            same = len({rate for pair in pairs for rate in pair}) == 1
            rows.append({"name": name, **_change(pairs, 0.0 if same else 1.0)})  # a probability spans 1
    return rows


def _part_rows(problems: Sequence[Problem], answers: tuple[Answers, Answers], metric: str) -> list[dict[str, Any]]:
    """Return a row for every other measurement, over the problems for which both have it."""
    names = part_names(record for by_problem in answers for p in problems for record in by_problem[p.id])
    rows = []
    for name in [TOTAL, *names, *MEASURED]:
        if name == metric:
            continue
        pairs = [tuple(_values(by_problem[p.id], name) for by_problem in answers) for p in problems]
        complete_pairs = [(b, a) for b, a in pairs if b and a]
        if complete_pairs:
            means = [(float(np.mean(b)), float(np.mean(a))) for b, a in complete_pairs]
            before, after = zip(*complete_pairs, strict=True)
            rows.append({"name": name, **_change(means, span_of(before, after))})
    return rows


def _by_difficulty(
    problems: Sequence[Problem], means: Sequence[tuple[float, float]], span: float
) -> list[dict[str, Any]]:
    """Return a row for every level of difficulty, the easiest first, or none if problems have no difficulty."""
    levels = [next((p.columns[name] for name in DIFFICULTY if p.columns.get(name) is not None), None) for p in problems]
    if len(set(map(str, levels))) < 2:
        return []
    rows = []
    for label, members in _groups(levels):
        pairs = [means[i] for i in members]
        gains = [after - before for before, after in pairs]
        won, lost = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
        rows.append({"level": label, **_change(pairs, span), "wins": won, "losses": lost})
    return rows


def _groups(levels: Sequence[Any]) -> list[tuple[str, list[int]]]:
    """Return (label, indices) of every level in order. Many different numbers form bands of equal counts."""
    numbers = [float(v) for v in levels if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) == len(levels) and len(set(numbers)) > MOST_LEVELS:
        order = sorted(range(len(numbers)), key=lambda i: numbers[i])
        bands = [list(band) for band in np.array_split(order, BANDS)]
        return [(f"{numbers[band[0]]:g} to {numbers[band[-1]]:g}", [int(i) for i in band]) for band in bands]
    by_level: dict[Any, list[int]] = {}
    for i, level in enumerate(levels):
        by_level.setdefault(level if isinstance(level, int | float | str) else str(level), []).append(i)
    texts = [level for level in by_level if isinstance(level, str)]
    ordered = [*sorted(level for level in by_level if not isinstance(level, str)), *sorted(texts)]
    return [(f"{level}", by_level[level]) for level in ordered]


def _change(pairs: Sequence[tuple[float, float]], span: float) -> dict[str, Any]:
    """Return n, both means, the difference and its interval; None for the interval where there is no spread."""
    first, second = zip(*pairs, strict=True)
    row = {"n": len(pairs), "a": float(np.mean(first)), "b": float(np.mean(second))}
    if len(pairs) == 1 or span == 0:  # a span of 0: all values are equal
        return {**row, "difference": row["b"] - row["a"], "interval": None}
    differing = sum(after != before for before, after in pairs)
    # As wide as a verdict's.
    change = widened(paired_difference(first, second, resamples=ROW_RESAMPLES), differing, span)
    return {**row, "difference": change.difference, "interval": [change.low, change.high]}


def _examples(
    problems: Sequence[Problem], answers: tuple[Answers, Answers], gains: Sequence[float], metric: str
) -> list[dict[str, Any]]:
    """Return the largest wins, the largest losses, and some problems without a difference, evenly spaced.

    Each names the sample that shows its difference best.
    """

    def clearest_sample(i: int) -> int:
        """Return the sample whose two answers differ most in the direction of the problem's difference."""
        values = [[sample_value(record, metric) for record in by_problem[problems[i].id]] for by_problem in answers]
        return int(
            np.argmax([0.0 if b is None or a is None else (a - b) * gains[i] for b, a in zip(*values, strict=True)])
        )

    order = sorted(range(len(problems)), key=lambda i: -gains[i])
    wins = [i for i in order if gains[i] > 0][:WINS_AND_LOSSES]
    losses = [i for i in reversed(order) if gains[i] < 0][:WINS_AND_LOSSES]
    ties = [i for i in range(len(problems)) if gains[i] == 0]
    spread = [ties[int(i)] for i in np.linspace(0, len(ties) - 1, min(TIES, len(ties))).round()]
    return [
        {
            "problem": problems[i].id,
            "why": kind,
            "difference": gains[i],
            "prompt": problems[i].prompt,
            "sample": clearest_sample(i),
            "a": list(answers[0][problems[i].id]),
            "b": list(answers[1][problems[i].id]),
        }
        for kind, indices in (("win", wins), ("loss", losses), ("tie", spread))
        for i in indices
    ]
