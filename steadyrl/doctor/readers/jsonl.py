"""JSON lines: one object per row, nested keys joined with "/"."""

from __future__ import annotations

from pathlib import Path

from steadyrl.doctor.readers.lines import read_objects
from steadyrl.doctor.readers.rows import Rows
from steadyrl.doctor.series import RawLog


def read(path: Path) -> RawLog:
    """Read a file of JSON lines that some trainer or logger wrote."""
    rows = Rows()
    notes = read_objects(path, rows.add)
    return rows.log(str(path), "jsonl", {}, notes)
