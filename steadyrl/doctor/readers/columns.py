"""Columns in the making: points in the order of writing, merged at the end to one value per step."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from steadyrl.doctor.series import Column, RawLog

MAX_NAMES = 20_000  # a log has hundreds; more come from a broken file, and each costs memory
MAX_STEP = 2**53  # above it float64 does not hold every whole number, and differences of int64 may overflow
REGULAR_SHARE = 0.5  # of the distances between steps that must be equal for a larger one to mean missing steps


class Columns:
    """Points by name; the row of a point tells which writing of a step is the later one."""

    def __init__(self) -> None:
        self._parts: dict[str, list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {}
        self._crowded_out = 0
        self._replaced = 0

    def add(self, name: str, steps: np.ndarray, rows: np.ndarray, values: np.ndarray) -> None:
        """Add points to a column.

        Args:
            name: As the trainer calls it.
            steps: [n] int64.
            rows: [n] int64, larger for what was written later.
            values: [n] float64.
        """
        if not len(values):
            return
        if name not in self._parts and len(self._parts) >= MAX_NAMES:
            self._crowded_out += len(values)
            return
        self._parts.setdefault(name, []).append((steps, rows, values))

    def keep_last_rows(self, steps: np.ndarray, rows: np.ndarray) -> None:
        """Leave out the points of rows whose step was written again by a later row.

        Args:
            steps: [n] int64, of every row.
            rows: [n] int64.
        """
        if (steps[1:] > steps[:-1]).all():
            return
        order = np.lexsort((rows, steps))
        steps, rows = steps[order], rows[order]
        last = np.append(steps[1:] != steps[:-1], True)
        steps, rows = steps[last], rows[last]
        for name, parts in self._parts.items():
            masks = [rows[np.searchsorted(steps, part_steps)] == part_rows for part_steps, part_rows, _ in parts]
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
        if self._crowded_out:
            notes.append(f"values left out, for they have more than {MAX_NAMES} names: {self._crowded_out}")
        return RawLog(path, kind, dict(sorted(found.items())), settings, (*notes, *_gaps(found)))

    def _merge(self, parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Column:
        steps, values = (np.concatenate([part[i] for part in parts]) for i in (0, 2))
        if (steps[1:] > steps[:-1]).all():
            return Column(steps, values)
        order = np.lexsort((np.concatenate([part[1] for part in parts]), steps))
        steps, values = steps[order], values[order]
        again = steps[1:] == steps[:-1]
        # Equal values are no loss: an epoch is written with the training row and with the evaluation of its step.
        same = (values[1:] == values[:-1]) | (np.isnan(values[1:]) & np.isnan(values[:-1]))
        self._replaced += int((again & ~same).sum())
        last = np.append(~again, True)
        return Column(steps[last], values[last])


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
