"""Columns in the making: points in the order of writing, merged at the end to one value per step."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from steadyrl.doctor.series import Column, RawLog

MAX_NAMES = 20_000  # a log has hundreds; more come from a broken file, and each costs memory
MAX_STEP = 2**53  # above it float64 does not hold every whole number, and differences of int64 may overflow
MIN_DISTINCT = 10  # different rows, so that repetitions of each are a habit of the log
REGULAR_REPETITIONS = 0.8  # of the rows that must be repeated equally often
REGULAR_SHARE = 0.5  # of the distances between steps that must be equal for a larger one to mean missing steps


class Columns:
    """Points by name; the attempt of a point tells which writing of a step is the later one."""

    def __init__(self) -> None:
        self._parts: dict[str, list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {}
        self._crowded_out = 0
        self._replaced = 0
        self._averaged = 0

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
            self._crowded_out += len(values)
            return
        self._parts.setdefault(name, []).append((steps, attempts, values))

    def keep_last_rows(self, steps: np.ndarray, attempts: np.ndarray) -> None:
        """Leave out the points of rows whose step was written again by a later attempt.

        Args:
            steps: [n] int64, of every row.
            attempts: [n] int64.
        """
        if (steps[1:] > steps[:-1]).all():
            return
        order = np.lexsort((attempts, steps))
        steps, attempts = steps[order], attempts[order]
        last = np.append(steps[1:] != steps[:-1], True)
        steps, attempts = steps[last], attempts[last]
        for name, parts in self._parts.items():
            masks = [attempts[np.searchsorted(steps, part_steps)] == wrote for part_steps, wrote, _ in parts]
            self._parts[name] = [
                (part[0][mask], part[1][mask], part[2][mask]) for part, mask in zip(parts, masks, strict=True)
            ]
            self._replaced += sum(int((~mask).sum()) for mask in masks)

    def log(self, path: str, kind: str, settings: Mapping[str, Any], notes: Sequence[str]) -> RawLog:
        """Return the log, each column with strictly increasing steps; takes no more points afterwards.

        Args:
            path: Of the run.
            kind: ``RawLog.format``.
            settings: Of the run, nested keys joined with dots.
            notes: What the reader left out so far.
        """
        found = {}
        while self._parts:  # gives back the memory of each before the next is merged
            name, parts = self._parts.popitem()
            column = self._merge(parts)
            if len(column.steps):
                found[_printable(name)] = column
        notes = [*notes]
        if self._replaced:
            notes.append(f"values written again for the same step, of which the later writing counts: {self._replaced}")
        if self._averaged:
            notes.append(f"values that are means of several of the same step: {self._averaged}")
        if self._crowded_out:
            notes.append(f"values left out, for they have more than {MAX_NAMES} names: {self._crowded_out}")
        found, repeated = _without_repetitions(found)
        return RawLog(path, kind, dict(sorted(found.items())), settings, (*notes, *repeated, *_gaps(found)))

    def _merge(self, parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Column:
        """Return one value for each step: of the latest attempt, the mean of what it wrote."""
        steps, values = (np.concatenate([part[i] for part in parts]) for i in (0, 2))
        if (steps[1:] > steps[:-1]).all():
            return Column(steps, values)
        attempts = np.concatenate([part[1] for part in parts])
        order = np.lexsort((attempts, steps))
        steps, values, attempts = steps[order], values[order], attempts[order]
        starts = np.flatnonzero(np.append(True, steps[1:] != steps[:-1]))
        counts = np.diff(np.append(starts, len(steps)))
        latest = attempts == np.repeat(attempts[starts + counts - 1], counts)
        kept = np.add.reduceat(latest.astype(np.int64), starts)  # how many values of each step count
        with np.errstate(over="ignore", invalid="ignore"):
            mean = np.add.reduceat(np.where(latest, values, 0.0), starts) / kept
        last = values[starts + counts - 1]
        # Equal values are no loss: an epoch is written with the training row and with the evaluation of its step.
        same = (values == np.repeat(last, counts)) | (np.isnan(values) & np.isnan(np.repeat(last, counts)))
        equal = np.logical_and.reduceat(same | ~latest, starts)
        self._replaced += int((~latest & ~same).sum())
        self._averaged += int((~equal).sum())
        return Column(steps[starts], np.where(equal, last, mean))


class Points:
    """Single points by name, in the order of writing, sixteen bytes each."""

    def __init__(self) -> None:
        self._by_name: dict[str, tuple[array[int], array[float]]] = {}
        self._without_step = 0

    def add(self, name: str, step: float, value: float) -> None:
        """Add a point; one whose step is no whole number is left out and counted."""
        if not -MAX_STEP < step < MAX_STEP or step != int(step):
            self._without_step += 1
            return
        steps, values = self._by_name.setdefault(name, (array("q"), array("d")))
        steps.append(int(step))
        values.append(value)

    def log(self, path: str, kind: str, settings: Mapping[str, Any], notes: Sequence[str]) -> RawLog:
        """Return the log; arguments as of ``Columns.log``."""
        columns = Columns()
        for name, (steps, values) in self._by_name.items():
            columns.add(name, np.array(steps, np.int64), np.arange(len(steps)), np.array(values, np.float64))
        lost = [f"values left out, for they have no whole step: {self._without_step}"] if self._without_step else []
        return columns.log(path, kind, settings, [*notes, *lost])


def _without_repetitions(columns: dict[str, Column]) -> tuple[dict[str, Column], list[str]]:
    """Leave out rows that repeat the one before, where most rows are written equally often.

    A callback that is called at each step writes the last logged values until there are others. A run whose values do
    not change at all is kept: that is a finding.
    """
    longest = max((column.steps for column in columns.values()), key=len, default=np.empty(0, np.int64))
    whole = [column for column in columns.values() if np.array_equal(column.steps, longest)]
    changes = np.zeros(max(len(longest) - 1, 0), bool)
    for column in whole:
        before, after = column.values[:-1], column.values[1:]
        changes |= (before != after) & ~(np.isnan(before) & np.isnan(after))
        if changes.all():
            return columns, []
    ends = np.append(np.flatnonzero(changes), len(longest) - 1)
    lengths = np.diff(ends, prepend=-1)
    usual = int(np.median(lengths))
    if len(ends) < MIN_DISTINCT or usual < 2 or (lengths == usual).mean() < REGULAR_REPETITIONS:
        return columns, []
    kept = longest[ends]
    found = {name: Column(c.steps[at], c.values[at]) for name, c in columns.items() if len(at := _shared(c, kept))}
    return found, [f"rows left out, for they repeat the one before: {len(longest) - len(ends)}"]


def _shared(column: Column, steps: np.ndarray) -> np.ndarray:
    return np.flatnonzero(np.isin(column.steps, steps))


def _gaps(columns: dict[str, Column]) -> list[str]:
    """Say how many steps are missing, if most steps are equally far apart."""
    longest = max((column.steps for column in columns.values()), key=len, default=np.empty(0, np.int64))
    others = [column.steps for column in columns.values() if not np.array_equal(column.steps, longest)]
    steps = np.unique(np.concatenate([longest, *others])) if others else longest
    if len(steps) < 3:
        return []
    distances, counts = np.unique(np.diff(steps), return_counts=True)
    usual = int(distances[counts.argmax()])
    if counts.max() <= REGULAR_SHARE * counts.sum():
        return []
    missing = int(((distances - 1) // usual * counts).sum())
    every = "" if usual == 1 else f", of every {usual}th,"
    return [f"steps{every} missing between {steps[0]} and {steps[-1]}: {missing}"] if missing else []


def _printable(name: str) -> str:
    """Return a name without control characters and broken Unicode: it is going to be printed."""
    return name if name.isprintable() else "".join(c if c.isprintable() else "?" for c in name)
