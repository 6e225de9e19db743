"""SQLite files of trackers, MLflow's and trackio's, opened so that nothing in them is changed or run.

trackio has one row per log call with the metrics as JSON, in which numbers that are not finite are the words "NaN" and
"Infinity"; MLflow has one row per value.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from steadyrl.core.errors import RunError
from steadyrl.doctor.readers.lines import MAX_LINE, parse_json, text_of
from steadyrl.doctor.readers.mlflow import finite_or_not
from steadyrl.doctor.readers.rows import MAX_RUNS, POINT, TRACKER_STEP_KEYS, Rows, require_few
from steadyrl.doctor.readers.spelling import flat_settings, number, typed
from steadyrl.doctor.series import RawLog

MAGIC = b"SQLite format 3\x00"
MAX_REASON = 200  # characters
MLFLOW = {"key", "value", "run_uuid", "step", "is_nan", "timestamp"}
TRACKIO = {"run_name", "step", "metrics", "timestamp"}
STEP = "_step"


def read(path: Path) -> list[RawLog]:
    """Read every run of a tracker's database.

    Raises:
        RunError: It is damaged or locked, or of another program.
    """
    with _opened(path) as connection:
        columns = _columns(connection, "metrics")
        if columns >= MLFLOW:
            return _read_mlflow(connection, path)
        if columns >= TRACKIO:
            return _read_trackio(connection, path, "run_id" if "run_id" in columns else "run_name")
    raise RunError(f"'{path}' is a database without the table 'metrics' of trackio or MLflow; export them as CSV")


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    address = path.resolve().as_uri()
    try:
        try:
            connection = _readable(f"{address}?mode=ro")
        except sqlite3.OperationalError:
            # A database in WAL mode needs files beside it; where the folder cannot be written it is taken as it lies.
            connection = _readable(f"{address}?immutable=1")
        with closing(connection):
            yield connection
    except (sqlite3.Error, UnicodeError, OverflowError) as error:
        reason = " ".join(str(error).split())[:MAX_REASON]  # it may quote what is in the file
        raise RunError(
            f"cannot read the database '{path}' ({reason}); is it whole, with its '-wal' file beside it?"
        ) from error


def _readable(address: str) -> sqlite3.Connection:
    connection = sqlite3.connect(address, uri=True)
    connection.text_factory = text_of
    try:
        # Connecting reads nothing: the first query shows whether the file can be read.
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
        connection.execute("PRAGMA trusted_schema = OFF")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    """Return the columns of a table; none if there is no such plain table.

    A view or a virtual table of that name would run what the file says.
    """
    definition = connection.execute(
        "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)
    ).fetchone()
    if definition is None or not str(definition[0]).upper().startswith("CREATE TABLE"):
        return set()
    return {str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})")}


def _read_mlflow(connection: sqlite3.Connection, path: Path) -> list[RawLog]:
    names = dict[Any, Any]()
    if _columns(connection, "runs") >= {"run_uuid", "name"}:
        names = dict(connection.execute("SELECT run_uuid, name FROM runs").fetchall())
    has_settings = _columns(connection, "params") >= {"key", "value", "run_uuid"}
    logs = []
    for (run,) in _runs(connection, "SELECT run_uuid FROM metrics GROUP BY run_uuid ORDER BY min(timestamp)"):
        rows, settings = Rows((POINT,)), dict[str, Any]()
        query = "SELECT key, step, value, is_nan FROM metrics WHERE run_uuid IS ? ORDER BY timestamp, rowid"
        for key, step, value, is_nan in connection.execute(query, (run,)):
            metric_value, point = math.nan if is_nan else number(value, None), number(step, None)
            if metric_value is not None and point is not None:
                rows.put({POINT: point, str(key): finite_or_not(metric_value)})
        if has_settings:
            params = connection.execute("SELECT key, value FROM params WHERE run_uuid IS ?", (run,))
            settings = {str(key): typed(value) for key, value in params}
        logs.append(rows.log(f"{path}#{names.get(run) or run}", "mlflow", settings, []))
    return logs


def _runs(connection: sqlite3.Connection, query: str) -> list[tuple[Any, ...]]:
    runs = connection.execute(query).fetchmany(MAX_RUNS + 1)
    require_few(len(runs))
    return runs


def _read_trackio(connection: sqlite3.Connection, path: Path, key: str) -> list[RawLog]:
    """Read every run of a project; older versions distinguished runs by their name only."""
    has_settings = _columns(connection, "configs") >= {key, "config"}
    logs = []
    query = f"SELECT {key}, min(run_name) FROM metrics GROUP BY {key} ORDER BY min(timestamp)"
    for run, name in _runs(connection, query):
        rows, broken, settings = Rows(TRACKER_STEP_KEYS), 0, dict[str, Any]()
        query = f"SELECT step, metrics FROM metrics WHERE {key} IS ? AND length(metrics) <= ? ORDER BY timestamp, rowid"
        for step, metrics in connection.execute(query, (run, MAX_LINE)):
            row = _object(metrics)
            broken += not row
            rows.put({STEP: step, **row})
        if has_settings:
            config = connection.execute(f"SELECT config FROM configs WHERE {key} IS ?", (run,)).fetchone()
            settings = flat_settings(_object(config[0])) if config else {}
        notes = [f"log calls left out, for their metrics cannot be read: {broken}"] if broken else []
        logs.append(rows.log(f"{path}#{name}", "trackio", settings, notes))
    return logs


def _object(text: Any) -> dict[str, Any]:
    """Return a JSON object from a column of text or bytes; empty if it is none."""
    parsed = parse_json(text.encode() if isinstance(text, str) else text) if isinstance(text, str | bytes) else None
    return parsed if isinstance(parsed, dict) else {}
