"""Which reader a file needs, and which logs lie in one folder, told by what is in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from steadyrl.core.counting.count import tell
from steadyrl.core.errors import RunError
from steadyrl.core.rundir import RunDir
from steadyrl.doctor.readers import console, database, document, evaluations, jsonl, mlflow, rundir, tensorboard, wandb
from steadyrl.doctor.readers.lines import head, lines, parse_objects, text_of
from steadyrl.doctor.readers.parting import METRIC
from steadyrl.doctor.readers.rows import find_step_key
from steadyrl.doctor.readers.tables import chart_in, read_csv, separator_of
from steadyrl.doctor.series import RawLog

KNOWN = (
    "a run directory of steadyrl, trainer_state.json of Hugging Face and TRL, TensorBoard event files, a .wandb file, "
    "a trackio or MLflow database, an mlruns folder, JSON, JSON lines, CSV, a table, a notebook, or what a trainer "
    "prints"
)
HEAD = 1 << 16  # bytes
HEAD_OF_EVENTS = 64  # bytes, in which an event file names itself
FIRST_LINES = 200
DOCUMENT = re.compile(rb'[\[{]\s*["{\[\]]')
METRIC_KEY = re.compile(rb'"[^"]*(loss|reward|kl|entropy|grad_norm)[^"]*"\s*[:,\]}]', re.IGNORECASE)
# What tells a history from settings and results: the step of rows, as a key or among the names of columns, rows by
# their step, or a list of numbers or pairs behind a metric's name.
_STEP = rb'"(?:[^".]*/)?(?:_|global_|current_|train_|training_)?(?:step|iteration|iter|epoch|episode)'
STEP_KEY = re.compile(rb'%b(?:"\s*:|s"\s*:\s*\[)|[\[,]\s*%bs?"\s*[,\]]|"\d+"\s*:\s*\{' % (_STEP, _STEP))
SERIES = re.compile(METRIC_KEY.pattern + rb"\s*\[[\[\s]*(?:[-+\d.eE]+[\s\[\],]+){9}", re.IGNORECASE)
SETTINGS = {".toml", ".yaml", ".yml"}
TEXT_NAMES = {".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".log", ".txt", ".gz", ""}
CONSOLE_NAMES = {".log", ".txt", ".out", ".err", ".md", ".html", ".ipynb", ".gz", ""}
# W&B's words on itself, beside its runs and in them: they repeat settings in a shape that a printed log may have.
W_AND_B_WORDS = {"debug-internal.log", "debug.log", "debug-core.log"}

# Our own pages, and what stands in Markdown beside them, show a run and are no log of one.
REPORT, REPORTS, HEAD_OF_PAGE = b'<meta name="generator" content="steadyrl">', {".md", ".html"}, 200

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
    """A log that was found."""

    path: Path
    """Of its file, or of its folder."""
    kind: Kind
    """What it is."""
    read: Reader
    """Returns its runs."""
    shared: bool = False
    """Whether runs of any folder write to it, as to a database."""


def of_file(path: Path) -> Reader:
    """Return the reader of a file that the user named.

    Raises:
        RunError: It is empty, of no known format, or a report.
    """
    if path.stat().st_size == 0:
        raise RunError(f"'{path}' is empty; if the run goes on, wait for its first step; else name another log")
    if _is_report(path):
        raise RunError(f"'{path}' is a report of steadyrl; name the log that it was made of")
    if source := _binary(path) or _rows(path, needs_step=False) or _console(path):
        return source.read
    if scores := evaluations.find(path):
        return lambda: [RawLog(str(path), "printed", {}, evaluations=scores)]
    first, *later_lines = head(path, HEAD).strip().split(b"\n")
    if not later_lines and METRIC.search(text_of(first)):
        raise RunError(
            f"'{path}' holds names of metrics in one line, and no row; if the run goes on, wait for its first step"
        )
    if path.suffix.lower() in SETTINGS:
        raise RunError(document.without_rows(path))
    raise RunError(f"'{path}' is no log that steadyrl can read; known are {KNOWN}; export the metrics as CSV")


def sources(folder: Path, files: Sequence[Path]) -> list[Source]:
    """Find the logs of a folder, not of those below it, the surest first; of its own files a run has one log.

    Args:
        folder: Of the files.
        files: Its plain files.
    """
    logs: list[Source] = []
    if rundir.is_run_folder(folder):
        logs.append(Source(folder, Kind.RUN, _reader_of(rundir.read, folder)))
        files = [path for path in files if path not in rundir.files(folder)]
    elif state := document.newest_state(folder):
        logs.append(Source(state, Kind.RUN, lambda: document.read(state)))
    if mlflow.is_run_folder(folder):
        logs.append(Source(folder, Kind.TRACKED_RUN, _reader_of(mlflow.read, folder)))
    if any(path.name == "debug-internal.log" for path in files):
        files = [path for path in files if path.name not in W_AND_B_WORDS]
    binary = {path: source for path in files if (source := _binary(path))}
    events = [path for path, source in binary.items() if source.kind == Kind.TRACKED and not source.shared]
    if events:
        logs.append(
            Source(events[0] if len(events) == 1 else folder, Kind.TRACKED, _reader_of(tensorboard.read, events))
        )
    logs += [source for path, source in binary.items() if path not in events]
    for place, path in enumerate(files, 1):
        tell(f"files read in '{folder}'", place, len(files))
        if path in binary or _is_report(path):
            continue
        suffix, is_state = path.suffix.lower(), path.name == document.STATE
        # A table needs a step: prompts may be JSON lines, too.
        source = _rows(path, needs_step=True) if suffix in TEXT_NAMES and not is_state else None
        source = source or (_console(path) if suffix in CONSOLE_NAMES else None)
        logs += [source] if source else []
    return sorted(logs, key=lambda source: -source.kind)


def holds_history(path: Path) -> bool:
    """Return whether the first rows of a table are of several steps, and mostly one of each.

    What a run leaves beside its log does not: a saved state is one row, and a file of samples repeats their step.
    """
    rows, _ = parse_objects(_first_lines(path))
    key = find_step_key(rows) if rows else None
    if key is None:
        return not rows  # a CSV, whose columns are what told that it is a log
    steps = [row[key] for row in rows if key in row]
    distinct = len(set(map(str, steps)))
    return distinct > 1 and 2 * distinct >= len(steps)


def _is_report(path: Path) -> bool:
    page = path.with_suffix(".html")
    return path.suffix in REPORTS and page.is_file() and REPORT in head(page, HEAD_OF_PAGE)


def _binary(path: Path) -> Source | None:
    start = head(path, HEAD)
    if start.startswith(wandb.MAGIC):
        return Source(path, Kind.TRACKED_RUN, _reader_of(wandb.read, path))
    if start.startswith(database.MAGIC):
        return Source(path, Kind.TRACKED, lambda: database.read(path), shared=True)
    if tensorboard.MAGIC in start[:HEAD_OF_EVENTS] or ("tfevents" in path.name and start):
        return Source(path, Kind.TRACKED, _reader_of(tensorboard.read, [path]))
    return None


def _rows(path: Path, needs_step: bool) -> Source | None:
    """Return a text with one row per line, or one JSON document; None if it is neither."""
    start, first = head(path, HEAD).lstrip(), _first_lines(path)
    rows, broken = parse_objects(first)
    as_document = Source(path, Kind.ROWS, lambda: document.read(path))
    if start.startswith(b"{") and b'"log_history"' in start:
        return as_document
    # The one row of a file may hold the rows of a run, or its columns as lists.
    nested = len(rows) == 1 and any(isinstance(value, list | dict) for value in rows[0].values())
    if rows and len(rows) >= broken and not (nested and find_step_key(rows) is None):
        if path == RunDir(path.parent).metrics_file and any(map(rundir.is_record, rows)):
            return Source(path, Kind.ROWS, _reader_of(rundir.read, path.parent))
        return Source(path, Kind.ROWS, lambda: jsonl.read(path)) if find_step_key(rows) or not needs_step else None
    by_step = chart_in(path)[0] or SERIES.search(start)  # in columns; else in rows
    by_step = by_step or (METRIC_KEY.search(start) and STEP_KEY.search(start))
    if DOCUMENT.match(start) and (by_step or not needs_step):
        return as_document
    separator = separator_of(first, needs_step)
    return Source(path, Kind.ROWS, lambda: read_csv(path, separator)) if separator else None


def _console(path: Path) -> Source | None:
    return Source(path, Kind.CONSOLE, lambda: console.read(path)) if console.holds_metrics(path) else None


def _first_lines(path: Path) -> list[bytes]:
    return next((chunk for chunk in lines(path) if chunk), [])[:FIRST_LINES]


def _reader_of(read_log: Callable[..., RawLog], *arguments: object) -> Reader:
    return lambda: [read_log(*arguments)]
