"""Which reader a file needs, and which logs lie in one folder, told by what is in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from steadyrl.doctor.readers import console, database, document, jsonl, mlflow, own, tables, tensorboard, wandb
from steadyrl.doctor.readers.lines import Lines, head, parse_objects
from steadyrl.doctor.readers.rows import find_step_key
from steadyrl.doctor.series import RawLog
from steadyrl.errors import RunError
from steadyrl.rundir import RunDir

KNOWN = (
    "a run directory of steadyrl, trainer_state.json of Hugging Face and TRL, TensorBoard event files, a .wandb file, "
    "a trackio or MLflow database, an mlruns folder, JSON, JSON lines, CSV, a table, or what a trainer prints"
)
HEAD = 1 << 16  # bytes
HEAD_OF_EVENTS = 64  # bytes, in which an event file names itself
FIRST_LINES = 200
DOCUMENT = re.compile(rb'[\[{]\s*["{\[\]]')
METRIC_KEY = re.compile(rb'"[^"]*(loss|reward|kl|entropy|grad_norm)[^"]*"\s*:', re.IGNORECASE)
TEXT_NAMES = {".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".log", ".txt", ".gz", ""}
CONSOLE_NAMES = {".log", ".txt", ".out", ".err", ".md", ".html", ".gz", ""}

Reader = Callable[[], list[RawLog]]


class Kind(IntEnum):
    """What a log in a folder is, in order of preference: the higher says more surely what happened in the run."""

    CONSOLE = 1
    ROWS = 2
    TRACKED = 3  # event files, or a database: a folder may hold several runs of these
    TRACKED_RUN = 4  # a tracker's folder of one run
    RUN = 5  # a trainer's folder of one run


@dataclass(frozen=True)
class Source:
    """A log that was found.

    Attributes:
        path: Of its file, or of its folder.
        kind: What it is.
        read: Returns its runs.
        shared: Whether runs of any folder write to it, as to a database.
    """

    path: Path
    kind: Kind
    read: Reader
    shared: bool = False


def of_file(path: Path) -> Reader:
    """Return the reader of a file that the user named.

    Raises:
        RunError: It is empty, or of no known format.
    """
    if path.stat().st_size == 0:
        raise RunError(f"'{path}' is empty; if the run goes on, wait for its first step; else name another log")
    if binary := _binary(path):
        return binary.read
    reader = _of_rows(path, needs_step=False) or _of_console(path)
    if reader is None:
        raise RunError(f"'{path}' is no log that steadyrl can read; known are {KNOWN}; export the metrics as CSV")
    return reader


def sure_sources(folder: Path, files: Sequence[Path]) -> list[Source]:
    """Find the logs of a folder, not of those below it, whose format leaves no doubt.

    Args:
        folder: Of the files.
        files: Its plain files.
    """
    found: list[Source] = []
    if own.is_run_folder(folder):
        found.append(Source(folder, Kind.RUN, _one(own.read, folder)))
    if state := document.newest_state(folder):
        found.append(Source(state, Kind.RUN, lambda: document.read(state)))
    if mlflow.is_run_folder(folder):
        found.append(Source(folder, Kind.TRACKED_RUN, _one(mlflow.read, folder)))
    binary = [source for path in files if (source := _binary(path))]
    events = [source.path for source in binary if source.kind == Kind.TRACKED and not source.shared]
    if events:
        found.append(Source(events[0] if len(events) == 1 else folder, Kind.TRACKED, _one(tensorboard.read, events)))
    return [*found, *(source for source in binary if source.path not in events)]


def text_sources(files: Sequence[Path]) -> list[Source]:
    """Find tables of text and printed output; a table needs a step: prompts may be JSON lines, too."""
    found = []
    for path in files:
        suffix = path.suffix.lower()
        if suffix in TEXT_NAMES and path.name != document.STATE and (reader := _of_rows(path, needs_step=True)):
            found.append(Source(path, Kind.ROWS, reader))
        elif suffix in CONSOLE_NAMES and (reader := _of_console(path)):
            found.append(Source(path, Kind.CONSOLE, reader))
    return found


def holds_history(path: Path) -> bool:
    """Return whether the first rows of a table are of several steps, and mostly one of each.

    What a run leaves beside its log does not: a saved state is one row, and a file of samples repeats their step.
    """
    rows, _ = parse_objects(_first_lines(path))
    key = find_step_key(rows) if rows else None
    if key is None:
        return not rows  # a CSV, whose columns are what told that it is a log
    steps = [row[key] for row in rows if key in row]
    different = len(set(map(str, steps)))
    return different > 1 and 2 * different >= len(steps)


def _binary(path: Path) -> Source | None:
    start = head(path, HEAD)
    if start.startswith(wandb.MAGIC):
        return Source(path, Kind.TRACKED_RUN, _one(wandb.read, path))
    if start.startswith(database.MAGIC):
        return Source(path, Kind.TRACKED, lambda: database.read(path), shared=True)
    if tensorboard.MAGIC in start[:HEAD_OF_EVENTS] or ("tfevents" in path.name and start):
        return Source(path, Kind.TRACKED, _one(tensorboard.read, [path]))
    return None


def _of_rows(path: Path, needs_step: bool) -> Reader | None:
    """Return the reader of a text with one row per line, or of one JSON document; None if it is neither."""
    start = head(path, HEAD).lstrip()
    if start.startswith(b"{") and b'"log_history"' in start:
        return lambda: document.read(path)
    lines = _first_lines(path)
    rows, broken = parse_objects(lines)
    if rows and len(rows) >= broken and not (len(rows) == 1 and _is_document(rows[0])):
        if path == RunDir(path.parent).metrics_file and any(map(own.is_record, rows)):
            return _one(own.read, path.parent)
        return _one(jsonl.read, path) if find_step_key(rows) or not needs_step else None
    if DOCUMENT.match(start) and (not needs_step or METRIC_KEY.search(start)):
        return lambda: document.read(path)
    separator = tables.separator_of(lines, needs_step)
    return _one(tables.read_csv, path, separator) if separator else None


def _is_document(row: dict[str, Any]) -> bool:
    """Return whether the one row of a file holds the rows of a run, or its columns as lists."""
    return any(isinstance(value, list | dict) for value in row.values()) and find_step_key([row]) is None


def _of_console(path: Path) -> Reader | None:
    return _one(console.read, path) if console.holds_metrics(path) else None


def _first_lines(path: Path) -> list[bytes]:
    return next((chunk for chunk in Lines(path) if chunk), [])[:FIRST_LINES]


def _one(read_log: Callable[..., RawLog], *arguments: object) -> Reader:
    return lambda: [read_log(*arguments)]
