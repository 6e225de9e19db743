"""Every run of a file, of a folder, or of text that was pasted: ``search`` is the way into this room.

Two runs are never made one, and one run is never made two:

- Every log of a folder and of those below is read, those of the surest kind first (``sniff.Kind``). A log that shows
  the same run as one before (``same.same_run``) is named in a note; every other is a run of its own. Charts of one run
  that lie beside each other, of different metrics, are one log: they name their run.
- What a run directory keeps in folders of its own, and the checkpoints of a Trainer, are no logs.
- Beside a log, rows with completions, and below it all rows, count only if they are of several steps and mostly one of
  each: a run leaves samples and states there.
"""

from __future__ import annotations

import errno
import json
import os
import reprlib
import select
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from steadyrl.core.counting.count import begin, tell
from steadyrl.core.errors import RunError
from steadyrl.doctor.readers import document, evaluations, rundir
from steadyrl.doctor.readers.completions import JsonTexts, beside, file_holds_texts
from steadyrl.doctor.readers.same import same_run
from steadyrl.doctor.readers.sniff import KNOWN, Kind, Source, holds_history, of_file, sources
from steadyrl.doctor.readers.spelling import plain
from steadyrl.doctor.series import RawLog

MAX_FILES = 20_000
MAX_DEPTH = 8
MOST_NAMED = 5  # in a note
PASSED_OVER = {"node_modules", "__pycache__", "site-packages"}  # large, and not of the run
# What a run keeps in folders of its own; no log of another run is in there.
KEPT = {"checkpoints", "rollouts", "evaluations", "report", "trackers", "export", "gguf"}
KEPT_BY_TRACKERS = {"files", "logs", "tmp", "metrics", "params", "tags", "artifacts"}
COMPARED = 50  # of the logs found before, the nearest, that a log may show again
MAX_PASTED = 64 << 20  # bytes
FEWEST_SETTINGS = 4  # names in a single row, none of them known, that are hardly those of a log
LEFT_OUT = "left out"  # as notes of what could not be read say
FORMS = 'in rows, as [{"step": 1, "reward": 0.5}], or in columns, as {"step": [1], "reward": [0.5]}'

Knows = Callable[[RawLog], bool]


@dataclass(frozen=True)
class Found:
    """What a search found."""

    logs: tuple[RawLog, ...]
    """Each with at least one column. The path of a log is that of its file or folder; where one file holds several
    runs, "#" and the run's name follow."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Why a log could not be read, by its path."""


def search(path: Path | str, knows: Knows) -> Found:
    """Read every run in a file or folder.

    Args:
        path: Of a log, a run, or a folder of several; "-" reads standard input, and a pipe is read likewise.
        knows: Whether a log holds a metric that something is known of; one that does not is no log of a run.

    Raises:
        RunError: There is nothing that could be a log; or it is a file, and cannot be read.
    """
    root = Path(path)
    if str(path) == "-":
        return _pasted(sys.stdin.buffer, "standard input", knows)
    if not str(path):
        raise RunError("the path is empty; give the log, the run directory, or '.' for the current folder")
    try:
        if root.is_fifo() and (pipe := _open_pipe(root)) is not None:
            with pipe:
                return _pasted(pipe, "the pipe", knows)
        if root.is_dir():
            return _Search(root, knows).walk()
        if root.is_file():
            return Found(tuple(_with_metrics(root, of_file(root)(), knows)))
    except OSError as error:
        raise RunError(_refusal(root, error)) from error
    problem = f"'{path}' is no file and no folder" if root.exists() else f"there is no file or folder '{path}'"
    raise RunError(f"{problem}; check the path, or give {KNOWN}")


def _open_pipe(path: Path) -> BinaryIO | None:
    """Open a pipe to read, as a shell names the output of a command; None if nobody writes to it: no wait would end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    ready = select.poll()
    ready.register(descriptor, select.POLLIN)
    try:
        empty = not ready.poll(0) and not os.read(descriptor, 1)
    except BlockingIOError:
        empty = False  # somebody will write
    if empty:
        os.close(descriptor)
        return None
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "rb")


def _pasted(stream: BinaryIO, stream_name: str, knows: Knows) -> Found:
    """Read the runs of standard input or of a pipe, under the name "-".

    Raises:
        RunError: It holds no log, or more than a person pastes.
    """
    text = stream.read(MAX_PASTED + 1)
    if len(text) > MAX_PASTED:
        raise RunError(f"{stream_name} has more than {MAX_PASTED >> 20} MiB; write it to a file and name that")
    return _read_text("-", text, knows)


def _read_text(name: str, text: bytes, knows: Knows) -> Found:
    """Read the runs of a log that stands in no file, under a name for it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(text)
        try:
            logs = _with_metrics(path, of_file(path)(), knows)
        except RunError as error:
            raise RunError(str(error).replace(str(path), name)) from error
        # The file is gone when somebody loops over what it holds.
        paths = [log.path.replace(str(path), name) for log in logs]
        read_logs = (replace(log, completions=tuple(log.completions)) for log in logs)
        return Found(tuple(replace(log, path=shown_path) for log, shown_path in zip(read_logs, paths, strict=True)))


def search_rows(rows: Iterable[Mapping[str, Any]] | Mapping[str, Any], knows: Knows) -> Found:
    """Read the runs of rows that a program holds in memory, as those of a file of JSON are read.

    Args:
        rows: A dict for each row, or a dict of columns; a DataFrame of pandas is either.
        knows: See ``search``.

    Raises:
        RunError: They are no rows, or hold no known metric.
    """
    rows = _rows_of(rows)
    if isinstance(rows, Mapping):
        return _read_text("the rows", _json_line(rows).encode(), knows)
    row_list = list(rows) if isinstance(rows, Iterable) else None
    if not row_list or not all(isinstance(row, Mapping) for row in row_list):
        raise RunError(
            f"got {reprlib.repr(rows)}; expected the path of a log, a run, or rows: a dict for each step, such as "
            "{'step': 1, 'reward': 0.5}, a dict of columns, or a DataFrame"
        )
    return _read_text("the rows", "\n".join(map(_json_line, row_list)).encode(), knows)


def _rows_of(frame: Any) -> Any:
    """Return the rows of a DataFrame of polars, Arrow or pandas, whose index may name columns; else what is given."""
    for method in ("to_dicts", "to_pylist"):
        if callable(rows := getattr(frame, method, None)):
            return rows()
    if not hasattr(frame, "columns") or not callable(getattr(frame, "to_dict", None)):
        return frame
    index_names = [name for name in frame.index.names if name is not None and name not in frame.columns]
    return (frame.reset_index(index_names) if index_names else frame).to_dict("records")


def _json_line(row: Mapping[Any, Any]) -> str:
    """Return a row, or columns, as JSON; a name of several parts, as pandas has them, is one with slashes.

    Raises:
        RunError: It holds itself, or a name further down that is no text.
    """
    names = ("/".join(str(part) for part in name if part != "") if type(name) is tuple else str(name) for name in row)
    try:
        return json.dumps(dict(zip(names, row.values(), strict=True)), default=_as_json)
    except (TypeError, ValueError, RecursionError) as error:
        raise RunError(f"got {reprlib.repr(row)}, which is no row: {error}; expected numbers by their names") from error


def _as_json(value: Any) -> Any:
    """Return what JSON holds of a value that it has no kind for: the number of a scalar, the list of an array."""
    value = _rows_of(value)
    if isinstance(value, Mapping | list):
        return dict(value) if isinstance(value, Mapping) else value
    if callable(getattr(value, "tolist", None)):
        return value.tolist()
    return str(value) if (number := plain(value)) is value else number


def _with_metrics(path: Path, logs: Sequence[RawLog], knows: Knows) -> list[RawLog]:
    """Return the logs that hold a metric that something is known of; a single one has the completions beside it.

    Raises:
        RunError: None does.
    """
    scores = evaluations.find(path) if path.is_file() and len(logs) < 2 else ()
    if scores:  # names that nothing is known of are those of the scores
        log = next(filter(knows, logs), RawLog(str(path), "printed", {}))
        logs = [replace(log, evaluations=scores)]
    filled = [log for log in logs if log.columns or log.evaluations]
    if not filled:
        if any(log.settings and not log.notes for log in logs):
            raise RunError(document.without_rows(path))
        # Of a document without a log in it nothing else says what was looked for.
        reasons = _reasons(logs) if logs else f" ({FORMS})"
        raise RunError(
            f"'{path}' is a log without a number{reasons}; wait for the first logged step, or name another log"
        )
    known_logs = [log for log in filled if knows(log)]
    if not known_logs:
        raise RunError(_without_metric(path, filled))
    if left_out := [log.path for log in filled if not any(log is known_log for known_log in known_logs)]:
        note = f"left out of the same file, for they hold no known metric: {_listed(left_out)}"
        known_logs[0] = replace(known_logs[0], notes=(*known_logs[0].notes, note))
    log, is_single = known_logs[0], len(known_logs) == 1 and path.is_file()
    if is_single and not log.settings and (settings := document.settings_beside(path)):
        note = f"the settings are those of {', '.join(settings)} beside the log"
        merged = {key: value for file_settings in reversed(settings.values()) for key, value in file_settings.items()}
        log = replace(log, settings=merged, notes=(*log.notes, note))
    if is_single and not log.completions and (files := beside(path.parent)):
        log = replace(log, completions=JsonTexts(files))
    return [log, *known_logs[1:]]


@dataclass
class _Search:
    root: Path
    knows: Knows
    logs: list[RawLog] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    beside: dict[int, list[str]] = field(default_factory=dict)  # left out, by the log of whose run they are
    metricless: dict[str, str] = field(default_factory=dict)  # why it is no log of a run, by path
    charts: dict[tuple[Path, str], int] = field(default_factory=dict)  # a log, by its folder and the run that it names
    with_log: set[Path] = field(default_factory=set)  # folders
    files_left: int = MAX_FILES
    is_cut: bool = False

    def walk(self) -> Found:
        """Search the whole folder; links are not followed: they may lead in a circle.

        Raises:
            RunError: Nothing in it could be a log.
        """
        begin(f"searching '{self.root}' for logs")
        for name, inner, files in os.walk(self.root, onerror=self._note_refusal):
            folder = Path(name)
            try:
                passed_over = self._read_folder(folder, sorted(folder / file for file in files))
                # The output folder of a Trainer has found the newest of its checkpoints.
                below = sorted(subfolder for subfolder in inner if subfolder not in passed_over and subfolder[0] != ".")
                # In place: os.walk goes down into the folders that are left in this list.
                inner[:] = (subfolder for subfolder in below if not document.is_checkpoint(folder / subfolder))
            except OSError as error:
                error.filename = name
                self._note_refusal(error)
                inner.clear()
            if inner and (not self.files_left or len(folder.relative_to(self.root).parts) >= MAX_DEPTH):
                self.is_cut = True
                inner.clear()
        self.metricless |= {log.path: _without_metric(log.path, [log]) for log in self.logs if not self.knows(log)}
        indices = [index for index, log in enumerate(self.logs) if log.path not in self.metricless]
        if not indices:
            self.unreadable.update(self.metricless)
        if not indices and not self.unreadable:
            raise RunError(f"'{self.root}' holds no log that steadyrl can read; known are {KNOWN}")
        logs = [
            replace(self.logs[index], notes=(*self.logs[index].notes, *self._notes(index, index == indices[0])))
            for index in indices
        ]
        return Found(tuple(logs), self.unreadable)

    def _note_refusal(self, error: OSError) -> None:
        self.unreadable[str(error.filename)] = _refusal(error.filename, error)

    def _notes(self, index: int, first: bool) -> list[str]:
        notes = []
        if index in self.beside:
            names = _listed(self.beside[index])
            notes.append(f"left out, for they show the same run or no history of one (name one to see it): {names}")
        if first and self.metricless:
            notes.append(f"left out in '{self.root}', for they hold no known metric: {_listed(list(self.metricless))}")
        if first and self.is_cut:
            notes.append(
                f"the search of '{self.root}' ended after {MAX_FILES} files or {MAX_DEPTH} folders' depth; name "
                "folders further down to see the rest"
            )
        return notes

    def _read_folder(self, folder: Path, files: list[Path]) -> set[str]:
        """Take in the logs of a folder; return which of the folders in it are passed over."""
        files = [path for path in files if path.is_file()]
        self.is_cut |= len(files) > self.files_left
        files = files[: self.files_left]
        self.files_left -= len(files)
        tell("files searched", MAX_FILES - self.files_left, MAX_FILES)
        log_sources = sources(folder, files)
        below_log = not self.with_log.isdisjoint(folder.parents)
        for source in log_sources:
            if self._read_source(source, below_log or (folder in self.with_log and file_holds_texts(source.path))):
                self.with_log.add(folder)
        own_folders = KEPT if rundir.is_run_folder(folder) else set()
        tracked = any(source.kind == Kind.TRACKED_RUN for source in log_sources)
        return PASSED_OVER | own_folders | (KEPT_BY_TRACKERS if tracked else set())

    def _read_source(self, source: Source, may_be_samples: bool) -> bool:
        """Take in the runs of a source; return whether there is one. One bad file must not hide the runs beside it."""
        path = str(source.path)
        if source.kind == Kind.ROWS and may_be_samples and not holds_history(source.path):
            self._note_left_out(len(self.logs) - 1, path)
            return False
        try:
            logs = source.read()
        except (RunError, OSError) as error:
            self.unreadable[path] = str(error) if isinstance(error, RunError) else _refusal(path, error)
            return False
        try:
            # A chart has one metric, and what it means may show beside the others of its run.
            logs = _with_metrics(source.path, logs, lambda log: bool(log.chart_of) or self.knows(log))
        except RunError as error:
            self.metricless[path] = str(error)
            return False
        candidates = range(max(len(self.logs) - COMPARED, 0), len(self.logs))
        for log in logs:
            if self._join_chart(log, source.path):
                continue
            twin = next((index for index in candidates if same_run(self.logs[index], log)), None)
            if twin is None:
                if log.chart_of:
                    self.charts.setdefault((source.path.parent, log.chart_of), len(self.logs))
                self.logs.append(log)
            else:
                self._note_left_out(twin, path)
                self._add_settings(twin, log)
        return not source.shared

    def _add_settings(self, index: int, twin: RawLog) -> None:
        """Let a log have the settings that another log of its run alone holds, as TensorBoard's beside a Trainer's."""
        log = self.logs[index]
        if not twin.settings.keys() <= log.settings.keys():
            note = f"the settings are those of '{twin.path}', too"
            self.logs[index] = replace(log, settings={**twin.settings, **log.settings}, notes=(*log.notes, note))

    def _join_chart(self, log: RawLog, path: Path) -> bool:
        """Add a chart to the log of other charts of its run, if there is one in its folder that lacks its metrics."""
        index = self.charts.get((path.parent, log.chart_of))
        if index is None or not log.columns.keys().isdisjoint(self.logs[index].columns):
            return False
        first = self.logs[index]
        columns = dict(sorted({**first.columns, **log.columns}.items()))
        notes = (*first.notes, *log.notes, f"charts of the run '{log.chart_of}' are joined, also that of '{path}'")
        name = f"{path.parent}#{log.chart_of}"
        self.logs[index] = replace(first, path=name, columns=columns, notes=tuple(dict.fromkeys(notes)))
        return True

    def _note_left_out(self, index: int, path: str) -> None:
        self.beside.setdefault(max(index, 0), []).append(path)


def _refusal(path: Path | str, error: OSError) -> str:
    if error.errno == errno.ENAMETOOLONG:
        return f"got {reprlib.repr(str(path))}; expected the path of a log, not its text: write it to a file"
    return f"cannot read '{path}': {error.strerror or error}; change its permissions or copy the log"


def _without_metric(path: Path | str, logs: Sequence[RawLog]) -> str:
    names = sorted({name for log in logs for name in log.columns})
    if len(names) >= FEWEST_SETTINGS and all(len(x.steps) == 1 for log in logs for x in log.columns.values()):
        return document.without_rows(path)
    return (
        f"no known metric in '{path}': found {_listed(names)}{_reasons(logs)}; name the log of a training run, or say "
        f"what a column is, such as --name {shlex.quote(f'{names[0]}=reward')}, or names={{{names[0]!r}: 'reward'}} in "
        "Python; docs/doctor/names.md has the names"
    )


def _reasons(logs: Sequence[RawLog]) -> str:
    """Say in brackets what was left out of logs; "" for nothing."""
    reasons = dict.fromkeys(note for log in logs for note in log.notes if LEFT_OUT in note)
    return f" ({'; '.join(reasons)})" if reasons else ""


def _listed(names: Sequence[str]) -> str:
    remainder = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{remainder}"
