"""JSON lines: one object per row, nested keys joined with "/"."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from steadyrl.doctor.readers.completions import InRows, holds_text
from steadyrl.doctor.readers.lines import read_objects
from steadyrl.doctor.readers.rows import SUMMARY, Rows
from steadyrl.doctor.series import RawLog

FEW = 50  # rows of a chunk that tell whether it holds texts


def read(path: Path) -> RawLog:
    """Read a file of JSON lines that some trainer or logger wrote."""
    rows, texts = Rows(), list[bool]()

    def add(chunk: list[dict[str, Any]]) -> None:
        texts.append(any(map(holds_text, chunk[:FEW])))
        rows.add([row for row in chunk if SUMMARY not in row])

    notes = read_objects(path, add)
    log = rows.log(str(path), "jsonl", {}, notes)
    return replace(log, completions=InRows(path)) if any(texts) else log
