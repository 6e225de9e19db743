"""SQLite files of trackers, opened so that nothing in them is changed or run."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from steadyrl.errors import RunError

MAGIC = b"SQLite format 3\x00"
MAX_REASON = 200  # characters


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database for reading.

    Raises:
        RunError: It is damaged or locked.
    """
    address = path.resolve().as_uri()
    try:
        with closing(_connect(address)) as connection:
            yield connection
    except (sqlite3.Error, UnicodeError, OverflowError) as error:
        reason = " ".join(str(error).split())[:MAX_REASON]  # it may quote what is in the file
        raise RunError(
            f"cannot read the database '{path}' ({reason}); is it whole, with its '-wal' file beside it?"
        ) from error


def _connect(address: str) -> sqlite3.Connection:
    try:
        return _readable(f"{address}?mode=ro")
    except sqlite3.OperationalError:
        # A database in WAL mode needs files beside it; where the folder cannot be written it is taken as it lies.
        return _readable(f"{address}?immutable=1")


def _readable(address: str) -> sqlite3.Connection:
    with ExitStack() as on_failure:
        connection = sqlite3.connect(address, uri=True)
        on_failure.callback(connection.close)
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.text_factory = _text
        on_failure.pop_all()
    return connection


def columns(connection: sqlite3.Connection, table: str) -> set[str]:
    """Return the columns of a table; none if there is no such plain table.

    A view or a virtual table of that name would run what the file says.
    """
    found = connection.execute("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).fetchone()
    if found is None or not str(found[0]).upper().startswith("CREATE TABLE"):
        return set()
    return {str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})")}


def _text(value: bytes) -> str:
    return value.decode("utf-8", errors="replace")
