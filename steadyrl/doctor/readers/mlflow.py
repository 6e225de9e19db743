"""MLflow: its SQLite database, and its older file store mlruns/<experiment>/<run>/metrics/<name>."""

from __future__ import annotations

import math
import os
import sqlite3
import sys
from pathlib import Path
from typing import Any

from steadyrl.doctor.readers.columns import Points
from steadyrl.doctor.readers.database import columns, opened
from steadyrl.doctor.readers.lines import Lines
from steadyrl.doctor.readers.spelling import number, setting, spelled
from steadyrl.doctor.series import RawLog

NEEDS = {"key", "value", "run_uuid", "step", "is_nan", "timestamp"}
META = "meta.yaml"
MAX_PARAM = 1 << 16


def read_database(path: Path) -> list[RawLog]:
    """Read every run of a tracking database.

    Raises:
        RunError: The database cannot be read.
    """
    with opened(path) as connection:
        query = "SELECT run_uuid FROM metrics GROUP BY run_uuid ORDER BY min(timestamp)"
        names = _names(connection)
        runs = [run for (run,) in connection.execute(query)]
        return [_read_run(connection, f"{path}#{names.get(run) or run}", run) for run in runs]


def is_run_folder(folder: Path) -> bool:
    """Return whether a folder is a run of the file store."""
    return (folder / META).is_file() and (folder / "metrics").is_dir()


def read_folder(folder: Path) -> RawLog:
    """Read a run of the file store; a metric "a/b" is the file b in the folder a."""
    points, notes, broken = Points(), list[str](), 0
    for name, path in _files(folder / "metrics"):
        lines = Lines(path)
        for line in (line for chunk in lines for line in chunk):
            parts = [spelled(word) for word in line.decode("utf-8", errors="replace").split()[:3]]  # time, value, step
            if len(parts) == 3 and parts[1] is not None and parts[2] is not None:
                points.add(name, parts[2], _finite_or_not(parts[1]))
            else:
                broken += bool(parts)
        notes += lines.notes()
    if broken:
        notes.append(f"lines of metrics left out, for they are torn: {broken}")
    params = {name: path for name, path in _files(folder / "params") if path.stat().st_size <= MAX_PARAM}
    settings = {name: setting(path.read_text(encoding="utf-8", errors="replace")) for name, path in params.items()}
    return points.log(str(folder), "mlflow", settings, notes)


def _read_run(connection: sqlite3.Connection, name: str, run: Any) -> RawLog:
    points = Points()
    query = "SELECT key, step, value, is_nan FROM metrics WHERE run_uuid IS ? ORDER BY timestamp, rowid"
    for key, step, value, is_nan in connection.execute(query, (run,)):
        found, at = math.nan if is_nan else number(value, None), number(step, None)
        if found is not None and at is not None:
            points.add(str(key), at, _finite_or_not(found))
    settings: dict[str, Any] = {}
    if {"key", "value", "run_uuid"} <= columns(connection, "params"):
        held = connection.execute("SELECT key, value FROM params WHERE run_uuid IS ?", (run,))
        settings = {str(key): setting(str(value)) for key, value in held}
    return points.log(name, "mlflow", settings, [])


def _names(connection: sqlite3.Connection) -> dict[Any, Any]:
    if not {"run_uuid", "name"} <= columns(connection, "runs"):
        return {}
    return dict(connection.execute("SELECT run_uuid, name FROM runs").fetchall())


def _finite_or_not(value: float) -> float:
    """Return infinity for the largest float, which the database holds in its place."""
    return math.copysign(math.inf, value) if abs(value) == sys.float_info.max else value


def _files(root: Path) -> list[tuple[str, Path]]:
    """Return the plain files below a folder, each with its path from there as its name."""
    found = [Path(folder) / name for folder, _, names in os.walk(root) for name in names]
    return sorted((path.relative_to(root).as_posix(), path) for path in found if path.is_file())
