"""Rows of a log, one mapping per writing, turned into columns: which key is the step, what is a number."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
    *("current_steps", "current_step", "global_step/max_steps", "iteration", "iter", "training_iteration"),
    *("update", "updates", "num_updates", "train_step", "training_step", "steps"),
    *("episode", "total_timesteps", "time/total_timesteps", "timestep", "timesteps", "epoch"),
)
TRACKER_STEP_KEYS = ("train/global_step", "trainer/global_step", "global_step", "_step")
# Where training rows name their step by one of these, evaluation rows may by another.
SAME_STEP = ("train/global_step", "trainer/global_step", "global_step", "eval/global_step")
NUMBERED = "the rows name no step and are numbered from 1 in the order of writing"
SUMMARY = "train_runtime"  # the last row of Hugging Face's Trainer has means over the whole run
# Lists of one number for each completion are summarised.
LISTS = ("rewards", "reward", "scores", "advantages", "response_lengths", "completion_lengths")
MAX_LIST = 1 << 16
CHUNK = 4096  # rows that wait to be added together
SUMMARIES: Mapping[str, Callable[[np.ndarray], float]] = {"mean": np.mean, "std": np.std, "min": np.min, "max": np.max}
COARSE = ("epoch", "episode")  # of which a step may be a part
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
        self._waiting: list[dict[str, Any]] = []
        self._count = 0
        self._without_step = 0
        self._seen: list[tuple[np.ndarray, np.ndarray]] = []
        self._last_step, self._attempt = -MAX_STEP, 0

    @property
    def empty(self) -> bool:
        """Whether no row was added yet."""
        return not self._count and not self._waiting

    def put(self, row: dict[str, Any]) -> None:
        """Add one row."""
        self._waiting.append(row)
        if len(self._waiting) >= CHUNK:
            self._flush()

    def add(self, rows: list[dict[str, Any]], ranks: np.ndarray | None = None) -> None:
        """Add a chunk of rows.

        Args:
            rows: [n] as parsed.
            ranks: [n] int64, which rows count as the later writing of a step; None where a step that is lower than
                the one before begins a later writing.
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
            ranks = None if ranks is None else ranks[places]
        attempts = self._attempts(steps) if ranks is None else ranks
        self._seen.append((steps, attempts))
        self._add_level(rows, steps, attempts, "", 0)

    def log(self, path: str, kind: str, settings: Mapping[str, Any] | None = None, notes: Sequence[str] = ()) -> RawLog:
        """Return the log; arguments as of ``Columns.log``."""
        self._flush()
        own = []
        if self._count and self.step_key is None:
            own.append(NUMBERED)
        if self._without_step:
            own.append(f"rows left out, for they have no whole number under '{self.step_key}': {self._without_step}")
        return self.columns.log(path, kind, settings or {}, [*notes, *own])

    def keep_last_rows(self) -> None:
        """Leave out every row whose step was written again by a later attempt, with all that it holds."""
        if self._seen:
            self.columns.keep_last_rows(*(np.concatenate([pair[i] for pair in self._seen]) for i in (0, 1)))

    def _flush(self) -> None:
        self.add(self._waiting)
        self._waiting = []

    def _attempts(self, steps: np.ndarray) -> np.ndarray:
        """Return how often the steps [n] went back before each row: rows after that are a later writing."""
        if not len(steps):
            return steps
        attempts = self._attempt + np.cumsum(np.diff(steps, prepend=self._last_step) < 0)
        self._last_step, self._attempt = int(steps[-1]), int(attempts[-1])
        return attempts

    def _steps(self, rows: list[dict[str, Any]], order: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the steps of those rows that have one and the places of these rows, None if all have."""
        if self.step_key is None:
            return order + 1, None
        try:
            values, places = step_numbers(list(map(itemgetter(self.step_key), rows)))
        except KeyError:
            keys = (self.step_key, *SAME_STEP) if self.step_key in SAME_STEP else (self.step_key,)
            values, places = step_numbers([next((row[key] for key in keys if key in row), "") for row in rows])
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
            if key in LISTS:
                self._add_lists(name, values, at, when)
            inner = [i for i, value in enumerate(values) if type(value) is dict and "_type" not in value]
            if inner and depth < MAX_NESTING:
                self._add_level([values[i] for i in inner], at[inner], when[inner], f"{name}/", depth + 1)

    def _add_lists(self, name: str, values: Sequence[Any], steps: np.ndarray, attempts: np.ndarray) -> None:
        """Add what lists with a number for each completion are together; a deviation needs two of them."""
        held = [(i, found) for i, value in enumerate(values) if (found := _numbers_of(value)) is not None]
        for part, summary in SUMMARIES.items():
            some = [(i, found) for i, found in held if part != "std" or len(found) > 1]
            at = np.array([i for i, _ in some], np.int64)
            summed = np.array([summary(found) for _, found in some], np.float64)
            self.columns.add(f"{name}/{part}", steps[at], attempts[at], summed)


def _numbers_of(value: Any) -> np.ndarray | None:
    """Return the numbers of a list [n >= 1], or None if it is none, or holds something else."""
    if not isinstance(value, list) or not 0 < len(value) <= MAX_LIST:
        return None
    found, places = numbers(value, null=None)
    return found if places is None or len(places) == len(value) else None


def step_numbers(values: Sequence[Any]) -> tuple[np.ndarray, np.ndarray | None]:
    """Return ``numbers`` of steps, of which "3/100" is the third."""
    if str in set(map(type, values)):
        values = [value.partition("/")[0] if type(value) is str else value for value in values]
    return numbers(values)


def find_step_key(rows: list[dict[str, Any]], candidates: Sequence[str] = STEP_KEYS) -> str | None:
    """Return the first candidate, in any case, under which most rows have a whole number; None if there is none."""
    spellings = {str(key).lower(): key for row in rows[:1000] for key in row}
    for candidate in candidates:
        key = spellings.get(candidate)
        if key is None:
            continue
        values, _ = step_numbers([row[key] for row in rows if key in row])
        whole = np.isfinite(values) & (values == np.floor(values))
        if candidate in COARSE and 2 * len(np.unique(values)) < len(values):
            continue
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
