"""JSON lines: one object per row, nested keys joined with "/".

verl's file logger wraps the metrics: ``{"step": 12, "data": {...}}``. It is opened for writing from the start, so a
restart has wiped what came before; and it writes NaN and infinite numbers alike as null.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from steadyrl.doctor.readers.completions import JsonTexts, holds_text
from steadyrl.doctor.readers.lines import objects
from steadyrl.doctor.readers.rows import STEP_KEYS, SUMMARY, Rows
from steadyrl.doctor.series import RawLog

FEW = 200  # rows of a chunk that tell what the file holds


def read(path: Path) -> RawLog:
    """Read a file of JSON lines that some trainer or logger wrote."""
    rows, notes, texts, wrapped = Rows(), list[str](), False, False
    for chunk in objects(path, notes):
        if not rows.count:
            wrapped = all(map(_is_wrapped, chunk[:FEW]))
            rows = Rows(("step",) if wrapped else STEP_KEYS)
        if wrapped:
            # The key that the file logger adds comes last: a metric of that name must not move the step.
            chunk = [{**row["data"], "step": row["step"]} for row in chunk if _is_wrapped(row)]
        texts |= any(map(holds_text, chunk[:FEW]))
        rows.add([row for row in chunk if SUMMARY not in row])
    log = rows.log(str(path), "verl_file" if wrapped else "jsonl", {}, notes)
    return replace(log, completions=JsonTexts((path,))) if texts else log


def _is_wrapped(row: dict[str, Any]) -> bool:
    return row.keys() == {"step", "data"} and isinstance(row["data"], dict)
