"""A run epoch by epoch: reward, loss, variance and time of each pass over the problems, from the metrics only.

A step belongs to the pass that contains most of its problems. Changes and trends come with an interval. An arrow would
claim a direction even if noise of the same size goes the other way in the next epoch.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.core.metrics import finite_mean, finite_number, series
from steadyrl.core.stats import block_mean_slope, difference_of_means
from steadyrl.core.types import Finding

Records = Sequence[Mapping[str, Any]]

MOST_ROWS = 14  # of the table; in longer runs a row is several epochs
LEAST_EPOCHS = 2  # fewer are no series
EPOCHS: Mapping[str, Mapping[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
MEANS, SQUARES = EPOCHS["means"], EPOCHS["squares"]  # the metric of each column
TRENDS = tuple("reward loss loss_policy loss_nll loss_reward_nll loss_kl loss_value variance gap grad_norm".split())
WORST = ("critical", "warning")


@dataclass(frozen=True)
class _Notice:
    check: str
    severity: str
    steps: tuple[float, ...]  # at which it shows or was raised
    end: float | None = None  # the step after which it held no longer; None if it holds at the end


def epoch_table(
    metrics: Records, findings: Sequence[Finding], live: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any] | None:
    """Return a run's epochs as plain data, or None if they cannot be told apart, see ``split``.

    Returns:
        "rows" (a dict per epoch: name, first and last step, means by column, changes of the reward and of the loss with
        their bounds, seconds, status, and the doctor's findings that begin or were raised there) and "trends" (column
        -> change per epoch with its bounds). Unknown is None. The status is the worst severity of these findings,
        "nothing new" if an earlier one still holds, and otherwise "fine".
    """
    epochs = split(metrics)
    if epochs is None:
        return None
    # What the doctor found at the end stands at the step where it begins, or at the first if it holds throughout.
    begun = [
        (finding, metrics[0]["step"] if finding.since_step is None else finding.since_step) for finding in findings
    ]
    notices = [
        _Notice(finding.check, finding.severity, (step,)) for finding, step in begun if finding.severity in WORST
    ]
    notices += _live_notices(live)
    before = [None, *(records for _, records in epochs[:-1])]
    rows = [_row(name, records, last, notices) for (name, records), last in zip(epochs, before, strict=True)]
    passes = float(series(metrics, "data_epoch")[-1])
    return {"rows": rows, "trends": {name: _trend(metrics, name, passes) for name in TRENDS}}


def split(metrics: Records) -> list[tuple[str, Records]] | None:
    """Return the epochs of a run by name ("3", or "3-4" where a row is several) with their steps.

    None for too few epochs, and where a step takes more than one: its numbers are of several at once.
    """
    ends = series(metrics, "data_epoch")
    if not len(ends) or not np.isfinite(ends).all() or ends[-1] < LEAST_EPOCHS:
        return None
    starts = np.concatenate([[0.0], ends[:-1]])
    if (ends - starts).max() > 1 + 1e-9:  # a difference of two fractions is rounded
        return None
    epochs = np.floor((starts + ends) / 2 + 1e-9).astype(int)  # from 0
    width = -(-(int(epochs[-1]) + 1) // MOST_ROWS)
    by_row: dict[int, list[Mapping[str, Any]]] = {}
    for epoch, record in zip(epochs.tolist(), metrics, strict=True):
        by_row.setdefault(epoch // width, []).append(record)
    last = int(epochs[-1]) + 1
    ends_of = {row: (row * width + 1, min((row + 1) * width, last)) for row in by_row}
    names = {row: f"{a}" if a == b else f"{a}-{b}" for row, (a, b) in ends_of.items()}
    return [(names[row], records) for row, records in by_row.items()]


def values_of(metrics: Records, column: str) -> np.ndarray:
    """Return a column of the table step by step, [S]; NaN if it was not measured."""
    if column == "gap":
        return np.asarray(series(metrics, "groups/best") - series(metrics, "reward/mean"))
    return np.square(series(metrics, SQUARES[column])) if column in SQUARES else series(metrics, MEANS[column])


def _live_notices(live: Sequence[Mapping[str, Any]]) -> Iterator[_Notice]:
    """Place what was raised while the run went on: where it was raised, and where it begins."""
    for i, line in enumerate(live):
        step, start = (finite_number(line.get(key)) for key in ("step", "since_step"))
        if step is None or line.get("state") != "raised" or line.get("severity") not in WORST:
            continue
        name = (line.get("check"), line.get("cause"))
        same = (later for later in live[i + 1 :] if (later.get("check"), later.get("cause")) == name)
        end = next((finite_number(later.get("step")) for later in same if later.get("state") == "cleared"), None)
        yield _Notice(str(name[0]), str(line["severity"]), (step,) if start is None else (start, step), end)


def _row(name: str, records: Records, before: Records | None, notices: Sequence[_Notice]) -> dict[str, Any]:
    first, last = records[0]["step"], records[-1]["step"]
    new = [notice for notice in notices if any(first <= step <= last for step in notice.steps)]
    old = any(min(n.steps) < first and (n.end is None or n.end >= first) for n in notices)
    quiet = "nothing new" if old else "fine"
    seconds = series(records, "time/step")
    return {
        "name": name,
        "first": first,
        "last": last,
        "steps": len(records),
        **{column: finite_mean(values_of(records, column)) for column in (*MEANS, *SQUARES, "gap")},
        "change": _change(before, records, "reward"),
        "loss_change": _change(before, records, "loss"),
        "seconds": float(seconds.sum()) if np.isfinite(seconds).all() else None,
        "status": next((word for word in WORST if any(notice.severity == word for notice in new)), quiet),
        "findings": list(dict.fromkeys(notice.check for notice in new)),
    }


def _change(before: Records | None, records: Records, column: str) -> list[float] | None:
    if before is None:
        return None
    change = difference_of_means(values_of(before, column), values_of(records, column))
    return None if change is None else list(change)


def _trend(metrics: Records, column: str, passes: float) -> list[float] | None:
    """Return the change of a column per epoch and the bounds of its 95 % interval."""
    slope = block_mean_slope(values_of(metrics, column))
    if slope is None:
        return None
    per_epoch = len(metrics) / passes
    return [slope.per_step * per_epoch, slope.low * per_epoch, slope.high * per_epoch]
