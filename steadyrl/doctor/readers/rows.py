"""Rows of a log, one mapping per writing, turned into columns: which key is the step, what is a number.

Of a step that was written again the latest writing counts; several values of one writing are averaged.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from steadyrl.core.errors import RunError
from steadyrl.doctor.readers.spelling import MAX_NESTING, english, listed, numbers, with_truths
from steadyrl.doctor.series import NUMBERED, Column, RawLog, distinct_steps

POINT = " step"  # the key of a row that is one value of a tracker; no metric begins with a space
# The first that most rows have. What a tracker counts itself ("_step") is the number of its log calls where the
# trainer also says its own step, so it comes after those.
STEP_KEYS = (
    *(POINT, "step", "train/global_step", "trainer/global_step", "global_step", "training/global_step", "_step"),
    *("current_steps", "current_step", "global_step/max_steps", "iteration", "iter", "training_iteration"),
    *("update", "updates", "num_updates", "train_step", "training_step", "steps", "rollout"),
    *("episode", "total_timesteps", "time/total_timesteps", "timestep", "timesteps", "checkpoint", "ckpt", "epoch"),
)
# Whatever stands before: "system/step", "batch_index".
STEP_WORD = re.compile(
    r"(?:^|[^A-Za-z])(?:step|steps|iteration|iter|iters|update|batch|round|index|idx)$", re.IGNORECASE
)
STEP_FORMS = re.compile(
    r"^\W*(?!\d{4}-\d\d-\d\d)(?:[A-Za-z]+ |(?:step|checkpoint|ckpt)[_-])?(\d+) ?(?:[-\u2013\u2014~/(\uff08].*)?\W*$"
)
TRACKER_STEP_KEYS = ("train/global_step", "trainer/global_step", "global_step", "_step")
# Where training rows name their step by one of these, evaluation rows may by another.
SAME_STEP = ("train/global_step", "trainer/global_step", "global_step", "eval/global_step")
SUMMARY = "train_runtime"  # the last row of Hugging Face's Trainer has means over the whole run
# Lists of one number for each completion are summarised.
LISTS = ("rewards", "reward", "scores", "advantages", "response_lengths", "completion_lengths")
MAX_LIST = 1 << 16
MAX_NAMES = 20_000  # a log has hundreds; more come from a broken file, and each costs memory
MAX_STEP = 2**53  # above it float64 does not hold every whole number, and differences of int64 may overflow
MIN_ROWS = 3  # that tell how far rows are apart
MAX_ROWS = 4_000_000  # of a run, which has one or a few for each step; a packed file of kilobytes can hold any number
MAX_POINTS = 40_000_000  # of a run, where each row is one value
MAX_RUNS = 1000  # of a file
MAX_GAPS, MAX_UNLIKE = 20_000_000, 1000  # values and columns that are searched for gaps
CHUNK = 4096  # rows that wait to be added together
SUMMARIES: Mapping[str, Callable[[np.ndarray], float]] = {
    "mean": np.mean, "std": np.std, "min": np.min, "max": np.max, "alike": lambda values: float(np.ptp(values) == 0.0)
}  # fmt: skip
OF_SEVERAL = ("std", "alike")  # which need two numbers
# Of which a step may be a part, and which may count the steps of each row.
COARSE = ("epoch", "episode", "steps", "updates", "num_updates")
MOST_BACK = 4  # rows for each step that is lower than the one before; of a table with more nobody wrote in this order
MIN_SHARE = 0.5  # of the first rows that must have a key for it to be the step
MIN_WHOLE = 0.9  # of its values that must be whole numbers: a broken line may hold anything
CROWDED_OUT = f"values left out, for they have more than {MAX_NAMES} names"
REPLACED = "values written again for the same step, of which the later writing counts"
EARLIER = "rows left out, for the steps begin again at the first: they are of an earlier run"
UNMEASURED = "metrics left out, for they are null or empty in every row"
MOST_NAMED = 5  # in a note
AVERAGED = "values that are means over several rows of the same step"


class Rows:
    """Takes rows in the order of writing; the first chunk decides which key is the step."""

    def __init__(self, step_keys: Sequence[str] = STEP_KEYS, null: float | None = math.nan, null_breaks: bool = False):
        self.step_key: str | None = None  # None where no key is the step: then rows are numbered from 1
        self.count = 0  # rows that were added
        self._candidates = step_keys
        self._null, self._null_breaks = null, null_breaks  # the latter: a null is no finite number, as verl writes
        self._nulls: dict[str, list[np.ndarray]] = {}  # [m] indices of rows of each chunk, by name
        self._unmeasured: dict[str, None] = {}  # names that were null in all rows of a chunk, in their order
        self._pending: list[dict[str, Any]] = []
        self._steps: list[np.ndarray] = []  # [n] of each chunk, NaN where a row names none
        self._attempts: list[np.ndarray] = []
        self._chunks: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}  # [m] indices of rows and values, by name
        self._notes: Counter[str] = Counter()

    def put(self, row: dict[str, Any]) -> None:
        """Add one row; refuses as ``add`` does."""
        self.count += 1
        self._pending.append(row)
        if len(self._pending) >= CHUNK:
            self._flush()

    def add(self, rows: list[dict[str, Any]], attempts: Sequence[int] | None = None) -> None:
        """Add a chunk of rows.

        Args:
            rows: [n] as parsed.
            attempts: [n], larger for a later writing of a step, which replaces the whole row; None where a step that
                is lower than the one before begins a later writing.

        Raises:
            RunError: They are more than ``MAX_ROWS`` together.
        """
        self.count += len(rows)
        self._pending += rows
        self._flush()
        if attempts is not None:
            self._attempts.append(np.array(attempts, np.int64))

    def log(self, path: str, kind: str, settings: Mapping[str, Any] | None = None, notes: Sequence[str] = ()) -> RawLog:
        """Return the log, each column with strictly increasing steps; takes no more rows afterwards.

        Args:
            path: Of the run.
            kind: ``RawLog.format``.
            settings: Of the run, nested keys joined with dots.
            notes: What the reader left out so far.
        """
        self._flush()
        logged = np.concatenate([np.empty(0), *self._steps])  # [n]
        keep = np.abs(logged) < MAX_STEP  # False for NaN
        keep[keep] = logged[keep] == np.floor(logged[keep])
        if unnumbered := int((~keep).sum()):
            self._notes[f"rows left out, for they have no whole number under '{self.step_key}'"] += unnumbered
        steps = np.where(keep, logged, 0).astype(np.int64)
        if not self._attempts and self.step_key != POINT and (np.diff(steps[keep]) < 0).any():
            # First what is torn: each such step looks like the beginning of an epoch or of a run.
            steps[keep] = self._straightened(steps[keep])
            steps[keep] += self._epoch_offsets(steps, keep)
            keep[: self._run_start(steps, keep)] = False
        valid = keep.copy()
        if self._attempts:
            attempts = np.concatenate(self._attempts)
            keep[valid] = _latest(steps[valid], attempts[valid])
        elif self.step_key == POINT:
            attempts = np.arange(len(steps))
        else:
            attempts = np.zeros(len(steps), np.int64)
            attempts[keep] = np.cumsum(np.diff(steps[keep], prepend=-MAX_STEP) < 0)
        self._drop_gaps(len(steps))
        self._drop_nulls()
        if unmeasured := [name for name in self._unmeasured if name not in self._chunks]:
            first = ", ".join(map(_printable, unmeasured[:MOST_NAMED]))
            self._notes[f"{UNMEASURED}: {first}; in all"] = len(unmeasured)
        columns, keeps_all = {}, bool(keep.all())
        while self._chunks:  # gives back the memory of each before the next is merged
            name, chunks = self._chunks.popitem()
            indices, values = (np.concatenate([chunk[i] for chunk in chunks]) for i in (0, 1))
            if not keeps_all and not (is_latest := keep[indices]).all():
                self._notes[REPLACED] += int((valid[indices] & ~is_latest).sum())
                indices, values = indices[is_latest], values[is_latest]
            if keeps_all and len(indices) == len(steps) and (np.diff(indices) == 1).all():
                columns[_printable(name)] = self._merged(steps, attempts, values)
            elif len(indices):
                columns[_printable(name)] = self._merged(steps[indices], attempts[indices], values)
        row_notes = [NUMBERED] if len(steps) and self.step_key is None else []
        row_notes += [f"{message}: {count}" for message, count in self._notes.items() if count]
        return RawLog(path, kind, dict(sorted(columns.items())), settings or {}, (*notes, *row_notes, *_gaps(columns)))

    def _drop_nulls(self) -> None:
        """Leave out nulls of columns that have numbers after them: what breaks a run hardly ever mends itself."""
        for name, null_chunks in self._nulls.items() if not self._null_breaks else ():
            nulls, chunks = np.concatenate(null_chunks), self._chunks.get(name, [])
            indices = np.concatenate([np.empty(0), *(rows for rows, _ in chunks)])
            rows_with_numbers = np.setdiff1d(indices, nulls)
            nulls = nulls[(nulls < min(indices, default=0)) | np.isin(nulls, indices)]
            if len(rows_with_numbers) and len(nulls) and nulls.min() < rows_with_numbers.max():
                masked = [(rows, x, ~np.isin(rows, nulls)) for rows, x in chunks]
                self._chunks[name] = [(rows[mask], x[mask]) for rows, x, mask in masked if mask.any()]

    def _drop_gaps(self, count: int) -> None:
        """Leave out what is no number only because one table holds rows of two kinds, as of training and evaluation.

        Of such columns none has a number where the other has one. A column without any stays: it may be what broke.
        """
        names = [name for name, chunks in self._chunks.items() if any(np.isnan(values).any() for _, values in chunks)]
        if not 1 < len(names) < MAX_UNLIKE or len(names) * count > MAX_GAPS:
            return
        is_measured = np.zeros((len(names), count), np.bool_)  # [columns, n]
        for i, name in enumerate(names):
            for indices, values in self._chunks[name]:
                is_measured[i, indices] = ~np.isnan(values)
        weights = is_measured.astype(np.float32)
        # [columns, columns]: those that never have a number in the same row.
        apart = np.equal(weights @ weights.T, 0.0) & is_measured.any(axis=1, keepdims=True)
        gaps = ~is_measured & (apart @ weights > 0)
        for name, gap in zip(names, gaps, strict=True):
            self._chunks[name] = [(rows[~gap[rows]], values[~gap[rows]]) for rows, values in self._chunks[name]]

    def _straightened(self, steps: np.ndarray) -> np.ndarray:
        """Return steps [n] with those that lie outside their neighbours, two usual distances apart, put between them.

        Processes that write at the same time tear the digits of numbers.
        """
        usual = usual_distance(steps)
        between = (steps[2:] - steps[:-2] == 2 * usual) & (steps[1:-1] != steps[:-2] + usual) & (usual > 0)
        self._notes["steps out of line with the rows before and after, which tell what they were"] += int(between.sum())
        return np.concatenate([steps[:1], np.where(between, steps[:-2] + usual, steps[1:-1]), steps[-1:]])

    def _epoch_offsets(self, steps: np.ndarray, keep: np.ndarray) -> np.ndarray:
        """Return what is added to the steps [n] of the rows that are kept: not 0 where steps begin again each epoch."""
        epochs = np.full(len(steps), np.nan)
        epoch_name = next((name for name in self._chunks if name.lower() == "epoch"), "")
        for indices, values in self._chunks.get(epoch_name, ()):
            epochs[indices] = values
        steps, epochs = steps[keep], epochs[keep]
        restarts = np.flatnonzero(np.diff(steps) < 0) + 1
        offsets = np.zeros(len(steps), np.int64)
        if not len(restarts) or not (epochs[restarts] == np.floor(epochs[restarts - 1]) + 1).all():
            return offsets
        self._notes["times that steps begin again with an epoch, and are counted on"] += len(restarts)
        offsets[restarts] = steps[restarts - 1] - steps[restarts] + (usual_distance(steps[: restarts[0]]) or 1)
        return np.cumsum(offsets)

    def _run_start(self, steps: np.ndarray, keep: np.ndarray) -> int:
        """Return the index of the row [n] at which the run begins: another one may stand before it in the same log."""
        indices = np.flatnonzero(keep)
        logged = steps[indices]
        restarts = (logged[1:-1] < logged[:-2]) & (logged[1:-1] <= logged[:1])
        # A row that was written late stands alone: the next one is beyond what came before.
        beginnings = np.flatnonzero(restarts & (logged[2:] < np.maximum.accumulate(logged)[:-2])) + 1
        if not len(beginnings):
            return 0
        if MOST_BACK * (np.diff(logged) < 0).sum() > len(logged):
            self._notes["rows that stood in no order of their steps, and were sorted"] += len(logged)
            return 0
        start = int(indices[beginnings[-1]])
        by_name = (np.concatenate([rows for rows, _ in chunks]) for chunks in self._chunks.values())
        later = [rows for rows in by_name if (rows >= start).any()]
        # Rows of other names before it are of another table, and not of an earlier run.
        if 2 * sum((rows < start).any() for rows in later) < len(later):
            return 0
        self._notes[EARLIER] += int(beginnings[-1])
        return start

    def _flush(self) -> None:
        rows, self._pending = self._pending, []
        if not rows:
            return
        if not self._steps:
            self.step_key = find_step_key(rows, self._candidates)
        start = sum(map(len, self._steps))
        limit = MAX_POINTS if self.step_key == POINT else MAX_ROWS
        if start + len(rows) > limit:
            raise RunError(
                f"a run of the log has more than {limit:,} rows, which is more than is read; name a log with a row for "
                "each step, or a part of this one"
            )
        indices = np.arange(start, start + len(rows))
        self._steps.append(indices + 1.0 if self.step_key is None else _steps_of(rows, self.step_key))
        self._add_level(rows, indices, "", 0)

    def _merged(self, steps: np.ndarray, attempts: np.ndarray, values: np.ndarray) -> Column:
        """Return one value for each step: of the latest attempt, the mean of what it wrote."""
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
        unequal = (values != last[group]) & ~(np.isnan(values) & np.isnan(last[group]))
        differ = np.bincount(group, latest & unequal) > 0
        self._notes[REPLACED] += int((~latest & unequal).sum())
        self._notes[AVERAGED] += int(differ.sum())
        return Column(steps[starts], np.where(differ, mean, last))

    def _add(self, name: str, indices: np.ndarray, values: np.ndarray) -> None:
        if name not in self._chunks and len(self._chunks) >= MAX_NAMES:
            self._notes[CROWDED_OUT] += len(values)
        elif len(values):
            self._chunks.setdefault(name, []).append((indices, values))

    def _add_level(self, rows: list[dict[str, Any]], indices: np.ndarray, prefix: str, depth: int) -> None:
        for key, values, present in _by_key(rows):
            if depth == 0 and key == self.step_key:
                continue
            key_rows, name = indices if present is None else indices[present], f"{prefix}{key}"
            values = with_truths(name, values)
            first, is_new = 0, name not in self._chunks
            self._unmeasured |= {name: None} if all(value in (None, "") for value in values) else {}
            if is_new and values[0] is None:  # nothing was measured before the first step
                unmeasured = 0 if self._null_breaks else len(values)  # what is null throughout was never measured
                first = next((i for i, value in enumerate(values) if value is not None), unmeasured)
            parsed, parsed_rows = numbers(values[first:], self._null)
            if first > 1 or parsed_rows is not None:
                nulls = [i for i, value in enumerate(values) if value is None and (i or first > 1 or not is_new)]
                self._nulls.setdefault(name, []).append(key_rows[nulls])
            values, key_rows = values[first:], key_rows[first:]
            self._add(name, key_rows if parsed_rows is None else key_rows[parsed_rows], parsed)
            if parsed_rows is None:
                continue
            if key.lower() in LISTS:
                self._add_lists(name, values, key_rows)
            inner = [i for i, value in enumerate(values) if type(value) is dict and "_type" not in value]
            if inner and depth < MAX_NESTING:
                self._add_level([values[i] for i in inner], key_rows[inner], f"{name}/", depth + 1)

    def _add_lists(self, name: str, values: Sequence[Any], indices: np.ndarray) -> None:
        """Add what lists with a number for each completion are together.

        A list may be of one group or of a batch: only where some are alike they tell how many groups are.
        """
        with_outcomes = [with_truths(name, value) if isinstance(value, list) else value for value in values]
        lists = [(i, array) for i, value in enumerate(with_outcomes) if (array := _numbers_of(value)) is not None]
        for statistic, summary in SUMMARIES.items():
            summarised = [(i, array) for i, array in lists if statistic not in OF_SEVERAL or len(array) > 1]
            summed = np.array([summary(array) for _, array in summarised], np.float64)
            if statistic != "alike" or summed.any():
                self._add(f"{name}/{statistic}", indices[[i for i, _ in summarised]], summed)


def require_few(runs: int) -> None:
    """Refuse more runs of one file than are read."""
    if runs > MAX_RUNS:
        raise RunError(f"the log names more than {MAX_RUNS:,} runs, which is more than is read; name a log of fewer")


def _steps_of(rows: list[dict[str, Any]], key: str) -> np.ndarray:
    """Return the steps [n] of rows, NaN where one has none."""
    try:
        values = list(map(itemgetter(key), rows))
    except KeyError:
        keys = (key, *SAME_STEP) if key in SAME_STEP else (key,)
        values = [next((row[key] for key in keys if key in row), "") for row in rows]
    step_values, indices = step_numbers(values)
    if indices is None:
        return step_values
    steps = np.full(len(rows), np.nan)
    steps[indices] = step_values
    return steps


def _latest(steps: np.ndarray, attempts: np.ndarray) -> np.ndarray:
    """Return which rows [n] no later attempt wrote again, as bool."""
    order = np.lexsort((attempts, steps))
    last = order[np.append(np.diff(steps[order]) != 0, True)] if len(order) else order
    return np.asarray(attempts[last][np.searchsorted(steps[last], steps)] == attempts)


def _numbers_of(value: Any) -> np.ndarray | None:
    """Return the numbers of a list [n >= 1], which may be printed, or None if it is none, or holds something else."""
    value = listed(value) if isinstance(value, str) else value
    if not isinstance(value, list) or not 0 < len(value) <= MAX_LIST:
        return None
    array, indices = numbers(value, null=None)
    return array if indices is None or len(indices) == len(value) else None


def step_numbers(values: Sequence[Any]) -> tuple[np.ndarray, np.ndarray | None]:
    """Return ``numbers`` of steps: of "3/100" and "3 (best)" the third, of "1-3" the first: "300+" has no end."""
    if str in set(map(type, values)) and not all(type(value) is str and value.isdecimal() for value in values):
        values = [STEP_FORMS.sub(r"\1", value) if type(value) is str else value for value in values]
    return numbers(values)


def find_step_key(rows: list[dict[str, Any]], candidates: Sequence[str] = STEP_KEYS) -> str | None:
    """Return the first candidate, in any case, under which most rows have a whole number; None if there is none."""
    spellings = {english(str(key)).lower(): key for row in rows[:1000] for key in row}
    for candidate in candidates:
        key = spellings.get(candidate)
        if key is None:
            continue
        values, _ = step_numbers([row[key] for row in rows if key in row])
        integral = np.isfinite(values) & (values == np.floor(values))
        if candidate in COARSE and (2 * len(np.unique(values)) < len(values) or _same_names(rows, key)):
            continue
        if integral.sum() >= max(MIN_SHARE * len(rows), MIN_WHOLE * len(values)):
            return key
    return _counter_key(rows) if candidates is STEP_KEYS else None


def _counter_key(rows: list[dict[str, Any]]) -> str | None:
    """Return a key whose last word says that it counts steps and whose whole numbers only rise, or None."""
    for key in rows[0]:
        if STEP_WORD.search(str(key)) is None:
            continue
        values, indices = step_numbers([row.get(key) for row in rows])
        is_integral = indices is None and len(rows) >= MIN_ROWS and (values == np.floor(values)).all()
        if is_integral and (np.diff(values) > 0).all():
            return str(key)
    return None


def _same_names(rows: list[dict[str, Any]], key: str) -> bool:
    """Return whether rows with one value of a key have other values under the same names: the key is rounded."""
    first_rows: dict[str, dict[str, Any]] = {}
    for row in rows:
        earlier_row = first_rows.setdefault(str(row.get(key)), row)
        shared = earlier_row.keys() & row.keys() - {key}
        # The first row is compared with itself otherwise, and a NaN in it differs from itself.
        is_repeated = earlier_row is not row and 2 * len(shared) > len(row)
        if is_repeated and any(earlier_row[name] != row[name] for name in shared):
            return True
    return False


def _by_key(rows: list[dict[str, Any]]) -> list[tuple[str, Sequence[Any], list[int] | None]]:
    """Return the values of each key and the places of the rows that have it, None where all have."""
    keys = list(rows[0])
    if set(map(len, rows)) == {len(keys)}:
        try:
            return [(key, list(map(itemgetter(key), rows)), None) for key in keys]
        except KeyError:  # as many keys, but others
            pass
    columns: dict[str, tuple[list[Any], list[int]]] = {}
    for index, row in enumerate(rows):
        for key, value in row.items():
            values, indices = columns.setdefault(key, ([], []))
            values.append(value)
            indices.append(index)
    return [(key, values, indices) for key, (values, indices) in columns.items()]


def usual_distance(steps: np.ndarray) -> int:
    """Return how far most of some increasing steps [n] are apart; 0 where they are not, or too few to tell."""
    if len(steps) < MIN_ROWS:
        return 0
    distances, counts = np.unique(np.diff(steps), return_counts=True)
    return int(distances[counts.argmax()]) if 2 * counts.max() > counts.sum() else 0


def _gaps(columns: Mapping[str, Column]) -> list[str]:
    """Say how many steps are missing, if most steps are equally far apart."""
    steps = distinct_steps([column.steps for column in columns.values()])
    usual = usual_distance(steps)
    missing = int(((np.diff(steps) - 1) // usual).sum()) if usual else 0
    spacing = "" if usual == 1 else f", of every {usual}th,"
    return [f"steps{spacing} missing between {steps[0]} and {steps[-1]}: {missing}"] if missing else []


def _printable(name: str) -> str:
    """Return a name without control characters and broken Unicode: it is going to be printed."""
    return name if name.isprintable() else "".join(c if c.isprintable() else "?" for c in name)
