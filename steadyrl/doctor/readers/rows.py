"""Rows of a log, one mapping per writing, turned into columns: which key is the step, what is a number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from steadyrl.doctor.readers.columns import MAX_STEP, Columns
from steadyrl.doctor.readers.spelling import MAX_NESTING, numbers
from steadyrl.doctor.series import RawLog

# The first that most rows have. What a tracker counts itself ("_step") is the number of its log calls where the
# trainer also says its own step, so it comes after those.
STEP_KEYS = (
    *("step", "train/global_step", "trainer/global_step", "global_step", "training/global_step", "_step"),
    *("iteration", "iter", "training_iteration", "update", "updates", "num_updates", "train_step", "training_step"),
    *("episode", "total_timesteps", "time/total_timesteps", "timestep", "timesteps", "epoch"),
)
TRACKER_STEP_KEYS = ("train/global_step", "trainer/global_step", "global_step", "_step")
# Where training rows name their step by one of these, evaluation rows may by another.
SAME_STEP = ("train/global_step", "trainer/global_step", "global_step", "eval/global_step")
MIN_SHARE = 0.5  # of the first rows that must have a key for it to be the step
MIN_WHOLE = 0.9  # of its values that must be whole numbers: a broken line may hold anything


class Rows:
    """Takes rows in the order of writing; the first chunk decides which key is the step.

    Attributes:
        step_key: The key of the step, None where there is none: then rows are numbered from 1.
    """

    def __init__(self, step_keys: Sequence[str] = STEP_KEYS, null: float | None = math.nan):
        self.columns = Columns()
        self.step_key: str | None = None
        self._candidates = step_keys
        self._null = null
        self._count = 0
        self._without_step = 0
        self._seen: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, rows: list[dict[str, Any]], ranks: np.ndarray | None = None) -> None:
        """Add a chunk of rows.

        Args:
            rows: [n] as parsed.
            ranks: [n] int64, which rows count as the later writing of a step; None for the order of writing.
        """
        if not rows:
            return
        if not self._count:
            self.step_key = find_step_key(rows, self._candidates)
        order = np.arange(self._count, self._count + len(rows), dtype=np.int64)
        self._count += len(rows)
        steps, places = self._steps(rows, order)
        if places is not None:
            rows = [rows[i] for i in places]
            self._without_step += len(order) - len(places)
            order = order[places]
        # Ranks are small; the order of writing decides within a rank.
        written = order if ranks is None else order + (ranks if places is None else ranks[places]) * 2**40
        self._seen.append((steps, written))
        self._add_level(rows, steps, written, "", 0)

    def keep_last_rows(self) -> None:
        """Leave out every row whose step was written again by a later row, with all that it holds."""
        if self._seen:
            steps, written = (np.concatenate([pair[i] for pair in self._seen]) for i in (0, 1))
            self.columns.keep_last_rows(steps, written)

    def log(self, path: str, kind: str, settings: Mapping[str, Any] | None = None, notes: Sequence[str] = ()) -> RawLog:
        """Return the log; arguments as of ``Columns.log``."""
        return self.columns.log(path, kind, settings or {}, [*notes, *self._notes()])

    def _notes(self) -> list[str]:
        notes = []
        if self._count and self.step_key is None:
            notes.append("the rows name no step and are numbered from 1 in the order of writing")
        if self._without_step:
            notes.append(f"rows left out, for they have no whole number under '{self.step_key}': {self._without_step}")
        return notes

    def _steps(self, rows: list[dict[str, Any]], order: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the steps of those rows that have one and the places of these rows, None if all have."""
        if self.step_key is None:
            return order + 1, None
        try:
            values, places = numbers(list(map(itemgetter(self.step_key), rows)))
        except KeyError:
            keys = (self.step_key, *SAME_STEP) if self.step_key in SAME_STEP else (self.step_key,)
            values, places = numbers([next((row[key] for key in keys if key in row), "") for row in rows])
        good = np.abs(values) < MAX_STEP  # False for NaN
        good[good] = values[good] == np.floor(values[good])
        if good.all():
            return values.astype(np.int64), places
        return values[good].astype(np.int64), np.flatnonzero(good) if places is None else places[good]

    def _add_level(
        self, rows: list[dict[str, Any]], steps: np.ndarray, written: np.ndarray, prefix: str, depth: int
    ) -> None:
        for key, values, places in _by_key(rows):
            if depth == 0 and key == self.step_key:
                continue
            at, when = (steps, written) if places is None else (steps[places], written[places])
            name = f"{prefix}{key}"
            found, good = numbers(values, self._null)
            if good is None:
                self.columns.add(name, at, when, found)
                continue
            self.columns.add(name, at[good], when[good], found)
            inner = [i for i, value in enumerate(values) if type(value) is dict and "_type" not in value]
            if inner and depth < MAX_NESTING:
                self._add_level([values[i] for i in inner], at[inner], when[inner], f"{name}/", depth + 1)


def find_step_key(rows: list[dict[str, Any]], candidates: Sequence[str] = STEP_KEYS) -> str | None:
    """Return the first candidate, in any case, under which most rows have a whole number; None if there is none."""
    spellings = {str(key).lower(): key for row in rows[:1000] for key in row}
    for candidate in candidates:
        key = spellings.get(candidate)
        if key is None:
            continue
        values, _ = numbers([row[key] for row in rows if key in row])
        whole = np.isfinite(values) & (values == np.floor(values))
        if whole.sum() >= max(MIN_SHARE * len(rows), MIN_WHOLE * len(values)):
            return key
    return None


def _by_key(rows: list[dict[str, Any]]) -> list[tuple[str, list[Any], list[int] | None]]:
    """Return the values of each key and the places of the rows that have it, None where all have."""
    if not rows:
        return []
    keys = list(rows[0])
    if set(map(len, rows)) == {len(keys)}:
        try:
            return [(key, list(map(itemgetter(key), rows)), None) for key in keys]
        except KeyError:  # as many keys, but others
            pass
    found: dict[str, tuple[list[Any], list[int]]] = {}
    for place, row in enumerate(rows):
        for key, value in row.items():
            values, places = found.setdefault(key, ([], []))
            values.append(value)
            places.append(place)
    return [(key, values, places) for key, (values, places) in found.items()]
