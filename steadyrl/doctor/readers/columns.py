"""Columns in the making: points in the order of writing, merged at the end to one value per step."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from steadyrl.doctor.series import Column, RawLog

MAX_NAMES = 20_000  # a log has hundreds; more come from a broken file, and each costs memory
MAX_STEP = 2**53  # above it float64 does not hold every whole number, and differences of int64 may overflow
REGULAR_SHARE = 0.5  # of the distances between steps that must be equal for a larger one to mean missing steps
CROWDED_OUT = f"values left out, for they have more than {MAX_NAMES} names"
REPLACED = "values written again for the same step, of which the later writing counts"
AVERAGED = "values that are means of several of the same step"
STEPLESS = "values left out, for they have no whole step"


class Columns:
    """Points by name; the attempt of a point tells which writing of a step is the later one."""

    def __init__(self) -> None:
        self._parts: dict[str, list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {}
        self._points: dict[str, tuple[array[int], array[float]]] = {}
        self._counts: Counter[str] = Counter()

    def add(self, name: str, steps: np.ndarray, attempts: np.ndarray, values: np.ndarray) -> None:
        """Add points to a column.

        Args:
            name: As the trainer calls it.
            steps: [n] int64.
            attempts: [n] int64, larger for what was written later; values of one attempt and step are averaged.
            values: [n] float64.
        """
        if not len(values):
            return
        if name not in self._parts and len(self._parts) >= MAX_NAMES:
            self._counts[CROWDED_OUT] += len(values)
            return
        self._parts.setdefault(name, []).append((steps, attempts, values))

    def point(self, name: str, step: float, value: float) -> None:
        """Add one point, written later than all before; one whose step is no whole number is left out and counted."""
        if not -MAX_STEP < step < MAX_STEP or step != int(step):
            self._counts[STEPLESS] += 1
            return
        steps, values = self._points.setdefault(name, (array("q"), array("d")))
        steps.append(int(step))
        values.append(value)

    def keep_last_rows(self, steps: np.ndarray, attempts: np.ndarray) -> None:
        """Leave out the points of rows whose step was written again by a later attempt.

        Args:
            steps: [n] int64, of every row.
            attempts: [n] int64.
        """
        order = np.lexsort((attempts, steps))
        last = order[np.append(np.diff(steps[order]) != 0, True)]
        steps, attempts = steps[last], attempts[last]
        for name, parts in self._parts.items():
            kept = [attempts[np.searchsorted(steps, at)] == wrote for at, wrote, _ in parts]
            self._parts[name] = [
                (at[k], wrote[k], values[k]) for k, (at, wrote, values) in zip(kept, parts, strict=True)
            ]
            self._counts[REPLACED] += sum(int((~k).sum()) for k in kept)

    def log(self, path: str, kind: str, settings: Mapping[str, Any], notes: Sequence[str]) -> RawLog:
        """Return the log, each column with strictly increasing steps; takes no more points afterwards.

        Args:
            path: Of the run.
            kind: ``RawLog.format``.
            settings: Of the run, nested keys joined with dots.
            notes: What the reader left out so far.
        """
        for name, (steps, values) in self._points.items():
            self.add(name, np.array(steps, np.int64), np.arange(len(steps)), np.array(values, np.float64))
        found = {}
        while self._parts:  # gives back the memory of each before the next is merged
            name, parts = self._parts.popitem()
            if len((column := self._merge(parts)).steps):
                found[_printable(name)] = column
        counted = [f"{what}: {count}" for what, count in self._counts.items() if count]
        return RawLog(path, kind, dict(sorted(found.items())), settings, (*notes, *counted, *_gaps(found)))

    def _merge(self, parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Column:
        """Return one value for each step: of the latest attempt, the mean of what it wrote."""
        steps, attempts, values = (np.concatenate([part[i] for part in parts]) for i in range(3))
        if (steps[1:] > steps[:-1]).all():
            return Column(steps, values)
        order = np.lexsort((attempts, steps))
        steps, values, attempts = steps[order], values[order], attempts[order]
        first = np.append(True, steps[1:] != steps[:-1])
        group, starts = np.cumsum(first) - 1, np.flatnonzero(first)
        ends = np.append(starts[1:], len(steps)) - 1
        last = values[ends]
        latest = attempts == attempts[ends][group]
        with np.errstate(over="ignore", invalid="ignore"):
            mean = np.add.reduceat(np.where(latest, values, 0.0), starts) / np.bincount(group, latest)
        # Equal values are no loss: an epoch is written with the training row and with the evaluation of its step.
        other = (values != last[group]) & ~(np.isnan(values) & np.isnan(last[group]))
        differ = np.bincount(group, latest & other) > 0
        self._counts[REPLACED] += int((~latest & other).sum())
        self._counts[AVERAGED] += int(differ.sum())
        return Column(steps[starts], np.where(differ, mean, last))


def _gaps(columns: dict[str, Column]) -> list[str]:
    """Say how many steps are missing, if most steps are equally far apart."""
    longest = max((column.steps for column in columns.values()), key=len, default=np.empty(0, np.int64))
    others = [column.steps for column in columns.values() if not np.array_equal(column.steps, longest)]
    steps = np.unique(np.concatenate([longest, *others])) if others else longest
    if len(steps) < 3:
        return []
    distances, counts = np.unique(np.diff(steps), return_counts=True)
    usual = int(distances[counts.argmax()])
    missing = int(((distances - 1) // usual * counts).sum())
    if counts.max() <= REGULAR_SHARE * counts.sum() or not missing:
        return []
    every = "" if usual == 1 else f", of every {usual}th,"
    return [f"steps{every} missing between {steps[0]} and {steps[-1]}: {missing}"]


def _printable(name: str) -> str:
    """Return a name without control characters and broken Unicode: it is going to be printed."""
    return name if name.isprintable() else "".join(c if c.isprintable() else "?" for c in name)
