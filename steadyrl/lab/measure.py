"""Makes one number of a run's curve, and says where a rule would have ended the run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from steadyrl.core.metrics import finite_mean, finite_number, series
from steadyrl.core.rundir import RunDir
from steadyrl.lab.study.file import HELDOUT, MINUS, Rule, Stop, Take

WINDOWS = 10  # a run is cut into so many windows, each pooled
LEAST_BEFORE, MOST_BEFORE = 5, 100  # steps that make the level before a spike; the doctor's check takes as many
_ERROR = "_se"  # the name of a metric's standard error


def measure(run: RunDir, records: Sequence[Mapping[str, Any]], metric: str, take: Take, rule: Rule) -> float | None:
    """Return the number of a run, or None where it has none.

    Args:
        run: Finished or not.
        records: Its metrics, read once for all the numbers that are made of them.
        metric: Of metrics.jsonl; or "after/PART" (or "before/PART"), the mean of the held-out evaluation, where
            "after/metric" is the task's own; "after/SET/PART" of a set of ``evaluate.sets``.
        take: What is made of the curve; of an evaluation only "last" and "gain" (after - before).
        rule: Says how many steps "last" and "first" average.
    """
    when, _, part = metric.partition("/")
    if when in HELDOUT:
        now = heldout_mean(run, when, part)
        if take != "gain":
            return now
        before = heldout_mean(run, "before", part)
        return None if now is None or before is None else now - before
    values = curve(records, metric)
    if take == "lowest_z":
        return lowest_z(values, curve(records, metric + _ERROR))
    return summary(values, take, rule)


def heldout_mean(run: RunDir, when: str, part: str) -> float | None:
    """Return the mean of a part over a held-out evaluation, of the answers that count; None if none was measured."""
    heldout_set, slash, of_set = part.partition("/")
    if not slash or heldout_set not in run.heldout_sets():
        heldout_set, of_set = "", part
    lines = run.evaluations(heldout_set).get(when, [])
    answers = [line.get("answers", {}).get(run.deploy, {}) for line in lines]
    measurements = answers if of_set in ("metric", "reward") else [answer.get("parts", {}) for answer in answers]
    return finite_mean(series(measurements, of_set))


def curve(records: Sequence[Mapping[str, Any]], metric: str) -> np.ndarray:
    """Return a metric over the steps, [S], or the difference of two ("A - B"); NaN where it was not measured."""
    if MINUS in metric:
        first, _, second = metric.partition(MINUS)
        difference: np.ndarray = curve(records, first) - curve(records, second)
        return difference
    return series(records, metric)


def summary(values: np.ndarray, take: Take, rule: Rule) -> float | None:
    """Return one number of a curve [S]; steps that were not measured are left out."""
    measured = values[np.isfinite(values)]
    if not measured.size:
        return None
    if take == "spike":
        return highest_spike(measured)
    opening, closing = (max(1, round(share * len(measured))) for share in (rule.start, rule.share))
    first, last = float(measured[:opening].mean()), float(measured[-closing:].mean())
    summaries: dict[Take, float | None] = {
        "last": last,
        "first": first,
        "mean": float(measured.mean()),
        "min": float(measured.min()),
        "max": float(measured.max()),
        "gain": last - first,
        "ratio": last / first if first else None,
        "below_zero": float((measured < 0).mean()),
    }
    return summaries[take]


def highest_spike(values: np.ndarray) -> float | None:
    """Return the highest step over the level before it, the median of up to 100 steps; None where there is no level.

    The median of the whole run would call a smooth fall a spike: the loss of a fresh value head begins at the mean
    squared return, and falls far below a tenth of that.

    Args:
        values: [S], all measured.
    """
    ratios = []
    for step in range(LEAST_BEFORE, len(values)):
        level = float(np.median(values[max(0, step - MOST_BEFORE) : step]))
        if level > 0:
            ratios.append(float(values[step]) / level)
    return max(ratios, default=None)


def lowest_z(values: np.ndarray, errors: np.ndarray) -> float | None:
    """Return the lowest mean of a window of the run, in units of its standard error.

    Single steps are noisy: a true KL of 0 is estimated below -2 standard errors in 2 % of the steps. A mean over a
    window has a smaller error, so a bias shows in it that no single step shows.

    Args:
        values: [S], estimates of the steps.
        errors: [S], their standard errors.
    """
    measured_steps = np.flatnonzero(np.isfinite(values) & np.isfinite(errors) & (errors > 0))
    if not measured_steps.size:
        return None
    windows = np.array_split(measured_steps, min(WINDOWS, measured_steps.size))
    return min(float(values[w].sum() / math.sqrt(float((errors[w] ** 2).sum()))) for w in windows)


def ended_by(rules: Sequence[Stop], records: Sequence[Mapping[str, Any]]) -> tuple[int, Stop] | None:
    """Return the step after which a rule ends the run, and the rule; None where none does."""
    earliest: tuple[int, Stop] | None = None
    for rule in rules:
        count = 0
        for record in records:
            value = finite_number(record.get(rule.metric))
            beyond = value is not None and (
                (rule.below is not None and value < rule.below) or (rule.above is not None and value > rule.above)
            )
            count = count + 1 if beyond else 0
            if count == rule.steps:
                if earliest is None or record["step"] < earliest[0]:
                    earliest = int(record["step"]), rule
                break
    return earliest
