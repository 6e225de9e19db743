"""Which reader a file or folder needs, told by what is in it: ``read`` is the way into this folder."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from steadyrl.doctor.readers import (
    csv_table,
    database,
    jsonl,
    mlflow,
    own,
    printed,
    tensorboard,
    trackio,
    trainer_state,
    verl,
    wandb,
)
from steadyrl.doctor.readers.lines import Lines, parse_objects
from steadyrl.doctor.readers.rows import find_step_key
from steadyrl.doctor.series import RawLog
from steadyrl.errors import RunError
from steadyrl.rundir import RunDir

KNOWN = (
    "a run directory of steadyrl, trainer_state.json of Hugging Face and TRL, TensorBoard event files, a .wandb file, "
    "a trackio or MLflow database, an mlruns folder, JSON lines, CSV, or what verl or TRL print"
)
HEAD = 1 << 16  # bytes
FIRST_LINES = 200
LIST_OF_ROWS = re.compile(rb'\[\s*\{\s*"')
MAX_FILES = 20_000
MAX_DEPTH = 8
PASSED_OVER = {"node_modules", "__pycache__", "site-packages"}  # large, and not of the run
TEXT_NAMES = {".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".log", ".txt", ""}
CONSOLE_NAMES = {".log", ".txt", ".out", ".err", ""}

Reader = Callable[[], list[RawLog]]


def read(path: Path | str) -> list[RawLog]:
    """Read every run in a file or folder.

    Args:
        path: Of a log, a run, or a folder of several.

    Returns:
        At least one log, each with at least one column. The path of a log is that of its file or folder;
        where one file holds several runs, "#" and the run's name follow.

    Raises:
        RunError: There is nothing, or nothing that can be read.
    """
    given = Path(path)
    try:
        if given.is_dir():
            readers = _in_folder(given)
        elif given.is_file():
            readers = [_of_file(given)]
        else:
            raise RunError(f"there is no file or folder '{path}'; give {KNOWN}")
        logs, refused = _read_each(readers)
    except OSError as error:
        raise RunError(
            f"cannot read '{path}': {error.strerror or error}; mend its permissions or copy the log"
        ) from error
    filled = [log for log in logs if log.columns]
    if refused and not filled:
        raise refused[0]
    if not filled:
        raise RunError(f"'{path}' is a log without a number; wait for the first logged step, or name another log")
    notes = (*filled[0].notes, *(f"beside it lies what cannot be read: {error}" for error in refused))
    return [replace(filled[0], notes=notes), *filled[1:]]


def _read_each(readers: list[Reader]) -> tuple[list[RawLog], list[RunError]]:
    """Return the logs, and why others could not be read: one bad file must not hide the runs beside it."""
    logs: list[RawLog] = []
    refused: list[RunError] = []
    for reader in readers:
        try:
            logs += reader()
        except RunError as error:
            refused.append(error)
    return logs, refused


def _of_file(path: Path) -> Reader:
    """Return the reader of a file that the user named.

    Raises:
        RunError: It is empty, or of no known format.
    """
    if path.stat().st_size == 0:
        raise RunError(f"'{path}' is empty; if the run goes on, wait for its first step; else name another log")
    reader = _of_binary(path) or _of_rows(path, needs_step=False) or _of_console(path)
    if reader is None:
        raise RunError(f"'{path}' is no log that steadyrl can read; known are {KNOWN}; export the metrics as CSV")
    return reader


def _in_folder(folder: Path) -> list[Reader]:
    """Return the readers of the runs in a folder: binary logs if there are any, else rows of text, else printed output.

    Raises:
        RunError: There is none.
    """
    for find in (_sure_logs, _text_logs, _console_logs):
        found = list(_walk(folder, find))
        if found:
            return found
    raise RunError(f"'{folder}' holds no log that steadyrl can read; known are {KNOWN}")


def _walk(root: Path, find: Callable[[Path, list[Path]], list[Reader]]) -> Iterator[Reader]:
    """Yield what ``find`` makes of each folder; below a folder with a log, only more event files can be."""
    files_left = MAX_FILES
    for name, folders, names in os.walk(root):  # follows no links: they may lead in a circle
        folder = Path(name)
        deep = len(folder.relative_to(root).parts) >= MAX_DEPTH or not files_left
        folders[:] = [] if deep else sorted(f for f in folders if f not in PASSED_OVER and not f.startswith("."))
        files = [path for path in (folder / n for n in sorted(names)[:files_left]) if path.is_file()]
        files_left -= len(files)
        found = find(folder, files)
        yield from found
        if found and not any(_is_events(path) for path in files):
            folders.clear()


def _sure_logs(folder: Path, files: list[Path]) -> list[Reader]:
    """Find the logs whose format leaves no doubt."""
    run = RunDir(folder)
    if run.metrics_file in files and (run.info_file in files or run.resolved_file in files):
        return [partial(_one, own.read, folder)]
    if state := trainer_state.find(folder):
        return [partial(_one, trainer_state.read, state)]
    if mlflow.is_run_folder(folder):
        return [partial(_one, mlflow.read_folder, folder)]
    events = [path for path in files if _is_events(path)]
    of_folder: list[Reader] = [partial(_one, tensorboard.read, events)] if events else []
    return of_folder + [reader for path in files if path not in events and (reader := _of_binary(path))]


def _text_logs(_: Path, files: list[Path]) -> list[Reader]:
    """Find tables of text; only with a step: a folder may hold prompts and completions as JSON lines, too."""
    texts = [path for path in files if path.suffix.lower() in TEXT_NAMES]
    return [reader for path in texts if (reader := _of_rows(path, needs_step=True))]


def _console_logs(_: Path, files: list[Path]) -> list[Reader]:
    texts = [path for path in files if path.suffix.lower() in CONSOLE_NAMES]
    return [reader for path in texts if (reader := _of_console(path))]


def _is_events(path: Path) -> bool:
    return tensorboard.is_events(_head(path)) or ("tfevents" in path.name and path.stat().st_size > 0)


def _of_binary(path: Path) -> Reader | None:
    if _is_events(path):
        return partial(_one, tensorboard.read, [path])
    head = _head(path)
    if head.startswith(wandb.MAGIC):
        return partial(_one, wandb.read, path)
    return partial(_read_database, path) if head.startswith(database.MAGIC) else None


def _of_rows(path: Path, needs_step: bool) -> Reader | None:
    """Return the reader of a text with one row per line, or of one JSON document; None if it is neither."""
    head = _head(path).lstrip()
    if head.startswith(b"{") and b'"log_history"' in head:
        return partial(_one, trainer_state.read, path)
    if not needs_step and LIST_OF_ROWS.match(head):
        return partial(_one, trainer_state.read, path)
    lines = next((chunk for chunk in Lines(path) if chunk), [])[:FIRST_LINES]
    rows, broken = parse_objects(lines)
    if rows and len(rows) >= broken:
        if path == RunDir(path.parent).metrics_file and any(map(own.is_record, rows)):
            return partial(_one, own.read, path.parent)
        if all(map(verl.is_record, rows)):
            return partial(_one, verl.read_file, path)
        return partial(_one, jsonl.read, path) if find_step_key(rows) or not needs_step else None
    header, first = (line.decode("utf-8", errors="replace") for line in [*lines, b"", b""][:2])
    separator = csv_table.find_separator(header, first)
    if separator is None or (needs_step and not csv_table.names_step(header, first, separator)):
        return None
    return partial(_one, csv_table.read, path, separator)


def _of_console(path: Path) -> Reader | None:
    """Return the reader of printed metrics; verl's go first, for it prints its config as dicts, too."""
    kind: Callable[[Path], RawLog] | None = None
    for chunk in Lines(path):
        if any(verl.CONSOLE_LINE.search(line) for line in chunk if b"step:" in line):
            return partial(_one, verl.read_console, path)
        if kind is None and printed.find_rows(chunk):
            kind = printed.read
    return partial(_one, kind, path) if kind else None


def _read_database(path: Path) -> list[RawLog]:
    with database.opened(path) as connection:
        columns = database.columns(connection, "metrics")
    if columns >= mlflow.NEEDS:
        return mlflow.read_database(path)
    if columns >= trackio.NEEDS:
        return trackio.read(path)
    raise RunError(f"'{path}' is a database without the table 'metrics' of trackio or MLflow; known are {KNOWN}")


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD)


def _one(read_log: Callable[..., RawLog], *arguments: object) -> list[RawLog]:
    return [read_log(*arguments)]
