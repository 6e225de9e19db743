"""Tables in JSON, whose forms all become rows: objects, lists below names, columns beside their steps, values by step.

pandas and W&B write a table as its columns' names and lists of cells, TensorBoard's page a chart as lists of three.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from steadyrl.doctor.readers.parting import METRICS, VALUES, Row, value_columns
from steadyrl.doctor.readers.rows import MIN_ROWS, STEP_KEYS, find_step_key, step_numbers
from steadyrl.doctor.readers.spelling import number, spelled

CHART = ("wall time", "step", "value")
CLOCK = re.compile("time|epoch", re.IGNORECASE)  # of a column beside the value
STEPS = ("step", "steps", "global_step", "iteration", "iterations", "epoch", "epochs", "x")


def rows_in(value: Any) -> list[Row]:
    """Return the rows of a table in any form that JSON has for one; [] for what is none."""
    if isinstance(value, list):
        rows = [row for row in value if isinstance(row, dict)]
        return rows if 2 * len(rows) > len(value) else _rows_below_names(value)
    if not isinstance(value, dict) or not value:
        return []
    if isinstance(names := value.get("columns"), list):
        rows = next((rows for cells in value.values() if (rows := _rows_below_names(cells, names))), [])
        index = value.get("index")
        by_index = dict(zip(index, rows, strict=False)) if isinstance(index, list) else {}
        return _rows_by_step(by_index) if len(by_index) == len(rows) and set(map(type, by_index)) == {int} else rows
    if all(name.isdecimal() for name in value):
        return _rows_by_step(value)
    steps = next((key for key in value if key.lower() in STEPS), "")
    key = _value_key({steps: None, **value}) if steps else ""
    cells = [value[name] for name in (steps, key) if isinstance(value.get(name), list)]
    return _rows_below_names([[steps, key], *map(list, zip(*cells, strict=False))]) if len(cells) == 2 else []


def course_in(rows: Sequence[Row]) -> dict[int, Any]:
    """Return the values by step of rows that are all of one metric, which they do not name; else an empty dict."""
    key = _value_key(rows[0])
    metric, _ = value_columns(rows[0])
    step = find_step_key(list(rows)) or ("x" if "x" in rows[0] else "")
    if not key or not step or len({str(row.get(metric)) for row in rows}) > 1:
        return {}
    steps, indices = step_numbers([row.get(step) for row in rows])
    if indices is not None or not np.isfinite(steps).all():
        return {}
    return {int(step_number): row.get(key) for step_number, row in zip(steps, rows, strict=True)}


def _value_key(row: Row) -> str:
    """Return under which key the value of an unnamed metric stands, "" where other columns may be metrics, too."""
    other_columns = [key for key in row if key.lower() not in (*STEP_KEYS, *STEPS, *VALUES, *METRICS)]
    return next((key for key in row if key.lower() in VALUES), "") if all(map(CLOCK.search, other_columns)) else ""


def _rows_below_names(table: Any, names: Sequence[Any] = ()) -> list[Row]:
    """Return the rows of lists of cells: below names, or of a rising step and a value, with the time before them."""
    if not table or not isinstance(table, list) or not all(isinstance(row, list) and len(row) > 1 for row in table):
        return []
    if not names and all(isinstance(cell, str) and spelled(cell) is None for cell in table[0]):
        names, table = table[0], table[1:]
    keys = [str(name) for name in names] or CHART[-len(table[0]) :]
    if any(len(row) != len(keys) for row in table):
        return []
    rows = [dict(zip(keys, row, strict=True)) for row in table]
    steps, indices = step_numbers([row["step"] for row in rows]) if not names else (np.arange(2), None)
    rises = len(steps) > 1 and indices is None and bool((np.diff(steps) > 0).all() and (steps % 1 == 0).all())
    return rows if rises else []


def _rows_by_step(table: Mapping[Any, Any]) -> list[Row]:
    """Return the rows of numbers or of flat rows by their step, as pandas writes them by its index."""
    if all(number(value) is not None for value in table.values()):
        return [{"step": int(step_text), "value": value} for step_text, value in table.items()]
    flat = all(isinstance(row, dict) and not any(isinstance(x, list) for x in row.values()) for row in table.values())
    if not flat or len(table) < MIN_ROWS:
        return []
    step = next((key for row in table.values() for key in STEPS if key in row), "step")
    return [{step: int(step_text), **row} for step_text, row in table.items()]
