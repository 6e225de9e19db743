"""The metrics of a run as columns, read on as the file grows, and thinned to what a screen can show.

A large file is not read before a page opens: ``preview`` samples it, and a thread reads the rest meanwhile.
"""

from __future__ import annotations

import math
import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.core.rundir import RunDir, appended, is_metrics, json_object

AT_ONCE = 6 << 20  # bytes that are read while a page waits; it takes about 0.1 s
MOST_ROWS, MOST_NAMES = 250_000, 300
MOST_CELLS = 24_000_000  # of all runs that are kept, four bytes each
POINTS = 900  # of a curve on a screen
PAUSE_S = 0.001
PREVIEW = 600  # lines that stand for a file while it is read
LONGEST_SAMPLED = 1 << 18  # bytes of such a line
TOKENS = "tokens/sampled"
_NOT_METRICS = frozenset({"step", "attempt", "time"})


@dataclass(frozen=True)
class Curves:
    """What a screen shows of some metrics."""

    steps: np.ndarray
    """[n] of the run, strictly increasing; where steps are put together, the first of each part."""
    lines: Mapping[str, tuple[np.ndarray, np.ndarray, np.ndarray]]
    """By metric: the mean, the lowest and the highest value of each part; [n] each, NaN where the metric was not
    measured."""
    single: bool
    """True if every point is one step."""
    complete: bool
    """False while the file is still being read, and the curves are of a sample."""
    rows: int
    """Steps that the run has so far."""
    last: int | None = None
    """The last of the steps; None without any."""
    version: str = ""
    """Changes where steps were made anew, so that curves which were fetched before no longer hold; "" where that is not
    known."""
    axes: Mapping[str, np.ndarray] = field(default_factory=dict)
    """[n] each, what a curve can be drawn over besides the steps: "tokens" sampled up to a step, and "time" since the
    first step in seconds, waits between attempts included."""


class Columns:
    """The columns of one run directory; of each step the highest attempt, as ``RunDir.metrics`` has it."""

    def __init__(self, path: Path):
        self.path = path
        self._lock = threading.RLock()
        self._reset()

    def _reset(self) -> None:
        self._offset = 0  # bytes
        self._identity: tuple[int, int] | None = None
        self._rewritten = 0  # lines of steps that were there, or that come before others
        self._steps, self._attempts = array("q"), array("q")
        self._row_of: dict[int, int] = {}
        self._times = array("d")  # a column of four bytes would round them to minutes
        self._values: dict[str, array[float]] = {}

    @property
    def cells(self) -> int:
        """Return how many numbers are kept."""
        return len(self._steps) * (len(self._values) + 8)

    @property
    def unread(self) -> int:
        """Return how many bytes of the file have not been read."""
        with self._lock:
            return max(0, self._size() - self._offset)

    @property
    def version(self) -> str:
        """Return what changes where steps were made anew."""
        return f"{self._identity}-{self._rewritten}"

    def _size(self) -> int:
        try:
            stat = self.path.stat()
        except FileNotFoundError:
            return 0
        identity = (stat.st_dev, stat.st_ino)
        if self._identity not in (None, identity) or stat.st_size < self._offset:
            self._reset()  # another file in its place
        self._identity = identity
        return stat.st_size

    def follow(self, max_bytes: int = AT_ONCE) -> bool:
        """Read what was appended, so many bytes or some more; return whether there was a new line."""
        with self._lock:
            if self._size() <= self._offset:
                return False
            start = self._offset
            for _, end, record in appended(self.path, start):
                self._offset = end
                self._add(record)
                if end - start >= max_bytes:
                    break
            return self._offset > start

    def _add(self, record: Mapping[str, Any]) -> None:
        if not is_metrics(record):
            return
        step, attempt = record["step"], record["attempt"]
        row = self._row_of.get(step)
        self._rewritten += row is not None or (bool(self._steps) and step < self._steps[-1])
        if row is not None and attempt < self._attempts[row]:
            return
        if row is None:
            if len(self._steps) >= MOST_ROWS:
                return
            row = self._row_of[step] = len(self._steps)
            self._steps.append(step)
            self._attempts.append(attempt)
            self._times.append(math.nan)
            for column in self._values.values():
                column.append(math.nan)
        else:
            self._attempts[row] = attempt
            for column in self._values.values():
                column[row] = math.nan
        self._times[row] = _or_nan(record.get("time"))
        for name, value in record.items():
            number = _number(value)
            if number is None or name in _NOT_METRICS:
                continue
            if name not in self._values:
                if len(self._values) >= MOST_NAMES:
                    continue
                self._values[name] = array("f", [math.nan]) * len(self._steps)
            self._values[name][row] = number

    def names(self) -> list[str]:
        """Return the metrics in the order in which they were first seen."""
        return list(self._values)

    def arrays(
        self, names: Iterable[str] | None = None, between: tuple[int, int] | None = None
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the steps and some metrics (None: all) in the order of the steps, between two of them, as copies."""
        with self._lock:
            steps = np.array(self._steps, np.int64)
            in_order = len(steps) < 2 or bool((np.diff(steps) > 0).all())
            inside = _between(steps, between) if in_order else slice(None)  # of a long run little is copied
            present = [name for name in (self._values if names is None else names) if name in self._values]
            values = {name: np.array(self._values[name][inside], np.float64) for name in present}
        steps = steps[inside]
        if not in_order:
            order = np.argsort(steps, kind="stable")
            order = order[_between(steps[order], between)]
            steps, values = steps[order], {name: column[order] for name, column in values.items()}
        return steps, values

    def axes(self, steps: np.ndarray) -> dict[str, np.ndarray]:
        """Return what curves can be drawn over besides the steps, at some of the steps, in order; see ``Curves``."""
        with self._lock:
            all_steps = np.array(self._steps, np.int64)
            times = np.array(self._times)
            tokens = np.array(self._values.get(TOKENS, ()), np.float64)
        order = np.argsort(all_steps, kind="stable")
        rows = np.searchsorted(all_steps[order], steps)
        axes = {}
        if np.isfinite(times).any():
            axes["time"] = (times[order] - np.nanmin(times))[rows]
        if np.nansum(tokens) > 0:
            axes["tokens"] = np.nancumsum(tokens[order])[rows]
        return axes

    def __len__(self) -> int:
        """Return how many steps were read."""
        return len(self._steps)


def preview(path: Path, count: int = PREVIEW) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the steps and metrics of lines at even distances in a file; the last line is always one of them."""
    size = path.stat().st_size
    lines: dict[int, dict[str, Any]] = {}
    with path.open("rb") as file:
        for offset in np.linspace(0, max(0, size - 1), count).astype(np.int64).tolist():
            file.seek(offset)
            if offset:
                file.readline(LONGEST_SAMPLED)  # the rest of a line that began before
            record = json_object(file.readline(LONGEST_SAMPLED))
            if record is not None and is_metrics(record):
                lines[record["step"]] = record
    steps = sorted(lines)
    names = dict.fromkeys(name for step in steps for name in lines[step] if name not in _NOT_METRICS)
    columns = {name: np.array([_or_nan(lines[step].get(name)) for step in steps]) for name in list(names)[:MOST_NAMES]}
    return np.array(steps, np.int64), columns


def thin(steps: np.ndarray, values: Mapping[str, np.ndarray], points: int = POINTS) -> Curves:
    """Put steps together so that at most ``points`` are left, each with the mean, least and greatest value of its part.

    Args:
        steps: [n] strictly increasing.
        values: [n] each; NaN is unknown.
        points: >= 2.
    """
    if len(steps) <= points:
        return Curves(steps, {name: (column,) * 3 for name, column in values.items()}, True, True, len(steps))
    starts = np.unique(np.linspace(0, len(steps), points, endpoint=False).astype(np.int64))
    lines = {}
    for name, column in values.items():
        finite = np.isfinite(column)
        counts = np.add.reduceat(finite, starts, dtype=np.int64)
        low = np.minimum.reduceat(np.where(finite, column, np.inf), starts)
        high = np.maximum.reduceat(np.where(finite, column, -np.inf), starts)
        total = np.add.reduceat(np.where(finite, column, 0.0), starts)
        empty = counts == 0
        mean = np.where(empty, np.nan, total / np.maximum(counts, 1))
        lines[name] = (mean, np.where(empty, np.nan, low), np.where(empty, np.nan, high))
    return Curves(steps[starts], lines, False, True, len(steps))


class Shelf:
    """The columns of the runs that somebody looked at last; the least used are dropped when they grow too large."""

    def __init__(self, most_cells: int = MOST_CELLS):
        self._max_cells = most_cells
        self._cache: OrderedDict[Path, Columns] = OrderedDict()
        self._reading: set[Path] = set()
        self._lock = threading.Lock()

    def columns(self, run: RunDir) -> Columns:
        """Return the columns of a run, read as far as a page can wait for; a thread reads on where that is not all."""
        path = run.metrics_file
        with self._lock:
            columns = self._cache.setdefault(path, Columns(path))
            self._cache.move_to_end(path)
            # The columns that are asked for stay, however large they are.
            while len(self._cache) > 1 and sum(cached.cells for cached in self._cache.values()) > self._max_cells:
                self._cache.popitem(last=False)
        if columns.unread > AT_ONCE:
            with self._lock:
                begin = path not in self._reading
                self._reading.add(path)
            if begin:
                threading.Thread(target=self._read_on, args=(columns,), daemon=True).start()
        else:
            columns.follow()
        return columns

    def _read_on(self, columns: Columns) -> None:
        try:
            while columns.follow(1 << 20):  # in small pieces: other requests are answered in between
                time.sleep(PAUSE_S)  # whoever waits for the columns would not get them from a thread that asks again
        finally:
            with self._lock:
                self._reading.discard(columns.path)

    def curves(self, run: RunDir, names: Sequence[str] | None = None, between: tuple[int, int] | None = None) -> Curves:
        """Return the curves of a run: of some metrics, between a first and a last step; None for all."""
        columns = self.columns(run)
        complete = columns.unread <= AT_ONCE
        version = columns.version if complete else ""
        if complete:
            rows = len(columns)
            steps, values = columns.arrays(names, between)
        else:
            steps, values = preview(run.metrics_file)
            rows, inside = len(steps), _between(steps, between)
            present = [name for name in (values if names is None else names) if name in values]
            steps, values = steps[inside], {name: values[name][inside] for name in present}
        thinned = thin(steps, values)
        last = int(steps[-1]) if len(steps) else None
        curves = replace(thinned, complete=complete, rows=rows, last=last, version=version)
        return replace(curves, axes=columns.axes(thinned.steps)) if complete else replace(curves, single=False)


def _between(steps: np.ndarray, between: tuple[int, int] | None) -> slice:
    """Return which of some steps, in order, lie between two."""
    if between is None:
        return slice(None)
    return slice(int(np.searchsorted(steps, between[0])), int(np.searchsorted(steps, between[1], "right")))


def _number(value: Any) -> float | None:
    """Return a number as a column holds it; "NaN" and "Infinity", which stand in words, and None give none."""
    if isinstance(value, float):
        return value if -3e38 < value < 3e38 else None
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 10**38 else None
    return None


def _or_nan(value: Any) -> float:
    number = _number(value)
    return math.nan if number is None else number
