"""Which run and which metric each value of a table is of, as its columns say.

Runs one after another are told by a column that names them: its text changes where the steps begin anew. A column that
changes between other rows names something else, such as the phase of each row; where it says of some that they are of
training, and of others that they are of held-out problems, the names of the latter begin with "eval/".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from steadyrl.doctor.readers.rows import MIN_ROWS, POINT, STEP_KEYS, Rows, find_step_key, require_few, step_numbers
from steadyrl.doctor.readers.spelling import spelled
from steadyrl.doctor.series import RawLog

Row = dict[str, Any]
Split = Callable[[Row], list[tuple[str, Row]]]

# The columns of a table with one value in each row: the value, the metric's name, and the run's.
VALUES = ("value", "values", "scalar", "metric_value", "y")
METRICS = ("key", "metric", "tag", "variable", "metric_name", "name")
RUNS = ("run_id", "run", "run_name", "run_uuid")
EXTREMES = ("__MIN", "__MAX")  # of what W&B put together to one point of a chart
METRIC = re.compile(r"loss|reward|\bkl\b|entropy|grad|accura", re.IGNORECASE)
FEW = 200  # rows that tell how a table is taken apart
SEEDS = ("seed", "trial", "fold")  # whose numbers are names
MAX_NAME = 80  # characters of a run's name
TRAINING = {"train", "training"}
HELDOUT = {"eval", "evaluation", "val", "valid", "validation", "test", "dev", "heldout", "held_out"}


class RunTracker:
    """Tells of rows in the order of writing which run each is of."""

    def __init__(self, step_key: str | None, row: Mapping[str, Any]):
        self.run = ""  # of the latest row, "" for the first run
        self.first_name = ""  # what the column that parted the runs says of the first one, "" while there is one alone
        # The steps of the run's first row and of its latest, and how many rows it has so far.
        self._step_key, self._steps, self._count = step_key or "", [row.get(step_key or "")] * 2, 0
        texts = {key: x for key, x in row.items() if step_key and key != step_key and _may_name_run(key, x)}
        self._current_names, self._names_by_column = texts, {key: {str(x)} for key, x in texts.items()}

    def run_of(self, row: Mapping[str, Any]) -> str:
        """Return the run of the next row."""
        if not self._current_names:
            return self.run
        step = row.get(self._step_key)
        changed = [key for key, value in self._current_names.items() if row.get(key, value) != value]
        if changed:
            self._start_run(row, step, changed)
        self._steps[1] = step
        self._count += 1
        return self.run

    def _start_run(self, row: Mapping[str, Any], step: Any, changed: list[str]) -> None:
        """Begin another run if its steps begin anew and a name is new; columns that change otherwise name none."""
        numbers, indices = step_numbers([*self._steps, step])
        restarts = self._count >= MIN_ROWS and indices is None and numbers[2] <= numbers[0] < numbers[1]
        names = [key for key in changed if restarts and str(row[key]) not in self._names_by_column[key]]
        if names:
            self.first_name = self.first_name or str(self._current_names[names[0]])[:MAX_NAME]
            self.run, self._steps, self._count = str(row[names[0]])[:MAX_NAME], [step, step], 0
        for key in names:
            self._current_names[key] = row[key]
            self._names_by_column[key].add(str(row[key]))
        for key in set(changed) - set(names):
            del self._current_names[key]


def _may_name_run(key: str, value: Any) -> bool:
    numbered = key.lower() in SEEDS
    return isinstance(value, str | int if numbered else str) and (numbered or spelled(value) is None)


class Runs:
    """Takes the rows of a table in the order of writing; arguments as of ``Rows``."""

    def __init__(self, step_keys: Sequence[str] = STEP_KEYS, null_breaks: bool = False):
        self._step_keys, self._null_breaks = step_keys, null_breaks
        self._pending = list[Row]()
        self._runs = dict[str, Rows]()
        self._tracker: RunTracker | None = None
        self._kind = ""  # the column that says of rows whether they are of training
        self._split: Split = lambda row: [("", row)]

    def put(self, row: Row) -> None:
        """Add one row; refuses as ``rows`` does."""
        self._pending.append(row)
        if len(self._pending) >= FEW:
            self._flush()

    def rows(self) -> dict[str, Rows]:
        """Return the rows of each run by its name, which is empty where there is one alone.

        Raises:
            RunError: A run has too many rows, or the table names more than ``MAX_RUNS``.
        """
        self._flush()
        return {run or (self._tracker.first_name if self._tracker else ""): rows for run, rows in self._runs.items()}

    def logs(
        self, path: Path, kind: str, settings: Mapping[str, Any] | None, notes: Sequence[str]
    ) -> dict[str, RawLog]:
        """Return the log of each run by its name, as ``rows`` does; of several runs each path ends with the name."""
        by_run = self.rows()
        paths = {run: f"{path}#{run}" if len(by_run) > 1 else str(path) for run in by_run}
        return {run: rows.log(paths[run], kind, settings, notes) for run, rows in by_run.items()}

    def _flush(self) -> None:
        rows, self._pending = self._pending, []
        if rows and self._tracker is None:
            names, step = {name: None for row in rows for name in row}, find_step_key(rows, self._step_keys)
            self._split = _split(names, step, rows[0])
            texts = ((key, value) for row in rows for key, value in row.items() if isinstance(value, str))
            self._kind = next((key for key, text in texts if text.lower() in TRAINING), "")
            # In a table with a value in each row another metric begins anew, and no run.
            self._tracker = RunTracker(None if value_columns(names)[0] else step, rows[0])
        for row in rows:
            if self._kind and str(row.get(self._kind)).lower() in HELDOUT:
                row = {key if key in self._step_keys else f"eval/{key}": value for key, value in row.items()}
            name = self._tracker.run_of(row) if self._tracker else ""
            for run, cells in self._split(row):
                if (run or name) not in self._runs:
                    require_few(len(self._runs) + 1)
                    self._runs[run or name] = Rows(self._step_keys, null_breaks=self._null_breaks)
                self._runs[run or name].put(cells)


def value_columns(names: Iterable[str]) -> tuple[str, str]:
    """Return the columns with the metric's name and its value in a table with one value in each row, else "" each.

    Beside a metric's own column they are something else, such as a run's name and a critic's value.
    """
    columns = {name.lower(): name for name in names}
    metric, value = (
        next((columns[name] for name in candidates if name in columns), "") for candidates in (METRICS, VALUES)
    )
    has_other_metric = any(METRIC.search(name) for name in columns if columns[name] not in (metric, value))
    return (metric, value) if metric and value and not has_other_metric else ("", "")


def _split(names: Iterable[str], step: str | None, first: Row) -> Split:
    """Return how a table is taken apart: by metric, with one value in each row as of MLflow, by run, or by both.

    The charts of W&B have columns "run - metric", with the smallest and largest.
    """
    columns = {name.lower(): name for name in names if isinstance(first.get(name), str | int)}
    key = next((columns[name] for name in RUNS if name in columns), "") if step else ""

    def run_of(row: Row) -> str:
        return str(row.pop(key, "")) if key else ""

    metric, value = value_columns(names)
    if metric and step:
        return lambda row: [(run_of(row), {POINT: row.get(step, ""), str(row.get(metric)): row.get(value, "")})]
    if not any(name.endswith(EXTREMES) for name in names):
        return lambda row: [(run_of(row), row)]
    shared = [name for name in names if " - " not in name]
    run_columns: dict[str, list[tuple[str, str]]] = {}
    for name in names:
        run, dash, metric_name = name.rpartition(" - ")
        if dash and not name.endswith(EXTREMES):
            run_columns.setdefault(run, []).append((name, metric_name))

    def split(row: Row) -> list[tuple[str, Row]]:
        shared_cells = {name: row[name] for name in shared if name in row}
        by_run = {run: {metric: row[name] for name, metric in run_columns[run] if name in row} for run in run_columns}
        return [(run, shared_cells | cells) for run, cells in by_run.items() if cells]

    return split
