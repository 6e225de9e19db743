"""The database of trackio: one row per log call, the metrics as JSON, several runs in a file.

Numbers that are not finite are written as the words "NaN" and "Infinity".
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from steadyrl.doctor.readers.database import columns, opened
from steadyrl.doctor.readers.lines import MAX_LINE, parse_json
from steadyrl.doctor.readers.rows import TRACKER_STEP_KEYS, Rows
from steadyrl.doctor.readers.spelling import flat_settings
from steadyrl.doctor.series import RawLog

NEEDS = {"run_name", "step", "metrics", "timestamp"}
CHUNK = 4096
STEP = "_step"


def read(path: Path) -> list[RawLog]:
    """Read every run of a project.

    Raises:
        RunError: The database cannot be read.
    """
    with opened(path) as connection:
        # Older versions told runs apart by their name only.
        key = "run_id" if "run_id" in columns(connection, "metrics") else "run_name"
        query = f"SELECT {key}, min(run_name) FROM metrics GROUP BY {key} ORDER BY min(timestamp)"
        runs = connection.execute(query).fetchall()
        return [_read_run(connection, path, key, *run) for run in runs]


def _read_run(connection: sqlite3.Connection, path: Path, key: str, run: Any, name: Any) -> RawLog:
    rows, broken = Rows(TRACKER_STEP_KEYS), 0
    query = f"SELECT step, metrics FROM metrics WHERE {key} IS ? AND length(metrics) <= ? ORDER BY timestamp, rowid"
    cursor = connection.execute(query, (run, MAX_LINE))
    while logged := cursor.fetchmany(CHUNK):
        chunk = []
        for step, metrics in logged:
            row = _object(metrics)
            broken += not row
            chunk.append({STEP: step, **row})
        rows.add(chunk)
    notes = [f"log calls left out, for their metrics cannot be read: {broken}"] if broken else []
    return rows.log(f"{path}#{name}", "trackio", _settings(connection, key, run), notes)


def _settings(connection: sqlite3.Connection, key: str, run: Any) -> dict[str, Any]:
    if not {key, "config"} <= columns(connection, "configs"):
        return {}
    found = connection.execute(f"SELECT config FROM configs WHERE {key} IS ?", (run,)).fetchone()
    return flat_settings(_object(found[0])) if found else {}


def _object(text: Any) -> dict[str, Any]:
    """Return a JSON object from a column of text or bytes; empty if it is none."""
    found = parse_json(text.encode() if isinstance(text, str) else text) if isinstance(text, str | bytes) else None
    return found if isinstance(found, dict) else {}
