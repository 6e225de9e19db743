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
from steadyrl.doctor.readers.parting import Parting
from steadyrl.doctor.readers.rows import STEP_KEYS, SUMMARY, Rows, find_step_key, rows_of
from steadyrl.doctor.readers.spelling import flat_settings
from steadyrl.doctor.readers.tables import RUNS
from steadyrl.doctor.series import RawLog

CONFIG = frozenset("config args settings hparams hyperparameters hyper_parameters params training_args cfg".split())
FEW = 200  # rows of a chunk that tell what the file holds


def read(path: Path) -> list[RawLog]:
    """Read a file of JSON lines that some trainer or logger wrote: a run, or one for each name under a key for it.

    Raises:
        RunError: It has too many rows, or too many runs.
    """
    runs, notes, texts, wrapped, named = dict[str, Rows](), list[str](), False, False, ""
    settings: dict[str, Any] = {}
    parting: Parting | None = None
    for chunk in objects(path, notes):
        if not runs:
            wrapped = all(map(_is_wrapped, chunk[:FEW]))
            keys = (key for key, value in chunk[0].items() if key.lower() in RUNS and isinstance(value, str | int))
            named = next(keys, "") if not wrapped and find_step_key(chunk[:FEW]) else ""
        if wrapped:
            # The key that the file logger adds comes last: a metric of that name must not move the step.
            chunk = [{**row["data"], "step": row["step"]} for row in chunk if _is_wrapped(row)]
        if not runs and (header := _settings(chunk[0])) is not None:
            settings, chunk = header, chunk[1:]
        texts |= any(map(holds_text, chunk[:FEW]))
        parting = parting or (Parting(find_step_key(chunk[:FEW]), chunk[0]) if chunk else None)
        parts: dict[str, list[dict[str, Any]]] = {}
        for row in chunk:
            name = parting.run_of(row) if parting else ""
            parts.setdefault(str(row.pop(named, "")) or name, []).append(row)
        for run, rows in parts.items():
            run_rows = rows_of(runs, run, ("step",) if wrapped else STEP_KEYS, null_breaks=wrapped)
            run_rows.add([row for row in rows if SUMMARY not in row])
    runs = {run or parting.first_name: rows for run, rows in runs.items()} if parting else runs
    kind, several = "verl_file" if wrapped else "jsonl", len(runs) > 1
    logs = [rows.log(f"{path}#{run}" if several else str(path), kind, settings, notes) for run, rows in runs.items()]
    return [replace(log, completions=JsonTexts((path,))) for log in logs] if texts and not several else logs


def _settings(row: dict[str, Any]) -> dict[str, Any] | None:
    """Return the settings that a first row holds instead of metrics, or None: in a dict, or beside a word for it."""
    inner = next((row[key] for key in row if key.lower() in CONFIG and isinstance(row[key], dict)), None)
    if inner is None and any(isinstance(value, str) and value.lower() in CONFIG for value in row.values()):
        inner = row
    return None if inner is None or find_step_key([row]) else flat_settings(inner)


def _is_wrapped(row: dict[str, Any]) -> bool:
    return row.keys() == {"step", "data"} and isinstance(row["data"], dict)
