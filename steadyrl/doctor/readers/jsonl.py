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
from steadyrl.doctor.readers.parting import FEW, Runs
from steadyrl.doctor.readers.rows import SUMMARY, find_step_key
from steadyrl.doctor.readers.spelling import flat_settings
from steadyrl.doctor.series import RawLog

CONFIG = frozenset("config args settings hparams hyperparameters hyper_parameters params training_args cfg".split())


def read(path: Path) -> list[RawLog]:
    """Read a file of JSON lines that some trainer or logger wrote: a run, or one for each name under a key for it.

    Raises:
        RunError: It has too many rows, or too many runs.
    """
    runs, notes, has_texts, wrapped = Runs(), list[str](), False, False
    settings: dict[str, Any] | None = None
    for chunk in objects(path, notes):
        if settings is None:
            wrapped = all(map(_is_wrapped, chunk[:FEW]))
            runs = Runs(("step",), null_breaks=True) if wrapped else runs
        if wrapped:
            # The key that the file logger adds comes last: a metric of that name must not move the step.
            chunk = [{**row["data"], "step": row["step"]} for row in chunk if _is_wrapped(row)]
        if settings is None:
            header = _settings(chunk[0])
            settings, chunk = header or {}, chunk[header is not None :]
        has_texts |= any(map(holds_text, chunk[:FEW]))
        for row in chunk:
            if SUMMARY not in row:
                runs.put(row)
    logs = list(runs.logs(path, "verl_file" if wrapped else "jsonl", settings, notes).values())
    return [replace(log, completions=JsonTexts((path,))) for log in logs] if has_texts and len(logs) == 1 else logs


def _settings(row: dict[str, Any]) -> dict[str, Any] | None:
    """Return the settings that a first row holds instead of metrics, or None: in a dict, or beside a word for it."""
    inner = next((row[key] for key in row if key.lower() in CONFIG and isinstance(row[key], dict)), None)
    if inner is None and any(isinstance(value, str) and value.lower() in CONFIG for value in row.values()):
        inner = row
    return None if inner is None or find_step_key([row]) else flat_settings(inner)


def _is_wrapped(row: dict[str, Any]) -> bool:
    return row.keys() == {"step", "data"} and isinstance(row["data"], dict)
