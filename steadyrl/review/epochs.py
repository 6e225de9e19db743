"""A run epoch by epoch: reward, loss, variance and time of each pass over the problems, from the metrics only.

A step belongs to the pass that contains most of its problems. Changes and trends come with an interval. An arrow would
claim a direction even if noise of the same size goes the other way in the next epoch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from steadyrl.stats import block_mean_slope, difference_of_means
from steadyrl.types import Finding

Records = Sequence[Mapping[str, Any]]

MOST_ROWS = 14  # of the table; in longer runs a row is several epochs
LEAST_EPOCHS = 2  # fewer are no series
# Column of the table -> metric. Likelihoods have a column of their own: they replace the policy loss.
MEANS = {
    "reward": "reward/mean",
    "loss": "loss/total",
    "loss_policy": "loss/policy",
    "loss_nll": "loss/nll",
    "loss_kl": "loss/kl",
    "loss_value": "loss/value",
    "best": "groups/best",
    "grad_norm": "grad_norm",
}
SQUARES = {"variance": "reward/std", "within": "reward/std_within", "between": "groups/mean_std"}
TRENDS = ("reward", "loss", "loss_policy", "loss_nll", "loss_kl", "loss_value", "variance", "gap", "grad_norm")
WORST = ("critical", "warning")


def epoch_table(metrics: Records, findings: Sequence[Finding]) -> dict[str, Any] | None:
    """Return a run's epochs as plain data, or None if it has fewer than two or did not count them.

    Args:
        metrics: One record per step.
        findings: What the doctor found in the run.

    Returns:
        "rows" (a dict per epoch: name, first and last step, means by column, change of the reward with its bounds,
        seconds, the doctor's status and its findings that begin there) and "trends" (column -> change per epoch with
        its bounds). Unknown is None.
    """
    parts = split(metrics)
    if parts is None:
        return None
    rows: list[dict[str, Any]] = []
    for names, records in parts:
        before = rows[-1]["_rewards"] if rows else None
        rows.append(_row(names, records, before, findings))
    for row in rows:
        del row["_rewards"]
    passes = passes_at_end(metrics)
    return {"rows": rows, "trends": {name: _trend(metrics, name, passes) for name in TRENDS}}


def passes_at_end(metrics: Records) -> float:
    """Return how many passes over its problems a run had made at its last step; NaN where it did not count."""
    counted = series(metrics, "data_epoch")
    return float(counted[-1]) if len(counted) else math.nan


def split(metrics: Records) -> list[tuple[str, Records]] | None:
    """Return the epochs of a run by name ("3", or "3-4" where a row is several) with their steps; None for too few."""
    ends = series(metrics, "data_epoch")
    if not len(ends) or not np.isfinite(ends).all() or ends[-1] < LEAST_EPOCHS:
        return None
    starts = np.concatenate([[0.0], ends[:-1]])
    epochs = np.floor((starts + ends) / 2 + 1e-9).astype(int)  # from 0
    width = -(-(int(epochs[-1]) + 1) // MOST_ROWS)
    by_row: dict[int, list[Mapping[str, Any]]] = {}
    for epoch, record in zip(epochs.tolist(), metrics, strict=True):
        by_row.setdefault(epoch // width, []).append(record)
    last = int(epochs[-1]) + 1
    return [(_name(row * width + 1, min((row + 1) * width, last)), records) for row, records in by_row.items()]


def values_of(metrics: Records, column: str) -> np.ndarray:
    """Return a column of the table step by step, [S]; NaN if it was not measured."""
    if column == "gap":
        gap: np.ndarray = series(metrics, "groups/best") - series(metrics, "reward/mean")
        return gap
    if column in SQUARES:
        variance: np.ndarray = series(metrics, SQUARES[column]) ** 2
        return variance
    return series(metrics, MEANS[column])


def _name(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first}-{last}"


def _row(name: str, records: Records, before: np.ndarray | None, findings: Sequence[Finding]) -> dict[str, Any]:
    first, last = records[0]["step"], records[-1]["step"]
    rewards = values_of(records, "reward")
    begun = [f for f in findings if f.since_step is not None and first <= f.since_step <= last and f.severity in WORST]
    change = None if before is None else difference_of_means(before, rewards)
    seconds = series(records, "time/step")
    return {
        "name": name,
        "first": first,
        "last": last,
        "steps": len(records),
        **{column: _mean(values_of(records, column)) for column in (*MEANS, *SQUARES, "gap")},
        "change": None if change is None else list(change),
        "seconds": float(seconds.sum()) if np.isfinite(seconds).all() else None,
        "status": next((word for word in WORST if any(f.severity == word for f in begun)), "fine"),
        "findings": [f.check for f in begun],
        "_rewards": rewards,
    }


def _mean(values: np.ndarray) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else None


def _trend(metrics: Records, column: str, passes: float) -> list[float] | None:
    """Return the change of a column per epoch and the bounds of its 95 % interval."""
    slope = block_mean_slope(values_of(metrics, column))
    if slope is None:
        return None
    per_epoch = len(metrics) / passes
    return [slope.per_step * per_epoch, slope.low * per_epoch, slope.high * per_epoch]


def finite_number(value: Any) -> float | None:
    """Return a finite number, or None for anything else, such as an integer that no float holds."""
    if not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def series(metrics: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    """Return a metric over the steps, [S] float64; NaN if it is missing, null or not finite."""
    values = [finite_number(record.get(name)) for record in metrics]
    return np.array([math.nan if value is None else value for value in values])
