"""Finds the runs of a folder: run directories of steadyrl, and logs of other trainers; with what people write beside.

A run is opened only through the name that this module gave it, never through a path of a request. Links are not
followed. A run directory is not shown if it holds, at any depth, a link which leads out of the folder, or a pipe or a
socket, whose reader would wait for ever. This is checked whenever a run is opened, so that those who read its files
need not check it.

Names, tags, notes, groups, hidden runs and the columns of the table are the only thing that the pages write: one small
file, ``labels.json``, in the folder that is served. Runs are named in it by their path below that folder. The file is
read anew at every request, and written whole beside its place first.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from steadyrl.core.errors import AccessError, RunError, SteadyError
from steadyrl.core.rundir import read_json, write_json
from steadyrl.doctor.readers.rundir import is_run_folder
from steadyrl.doctor.readers.search import KEPT, KEPT_BY_TRACKERS, PASSED_OVER
from steadyrl.doctor.readers.sniff import Kind, sources

MAX_DEPTH = 6
MAX_FILES = 20_000  # looked at in one search
MAX_LOG_BYTES = 256 << 20
FRESH_S = 2.0  # a search is repeated after this time
SETTLED_NS = 10**9  # after a change, for what a folder holds to be remembered
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")
_LONGEST_ID = 160
FILE = "labels.json"
LONGEST = {"name": 120, "group": 60, "note": 2000}  # characters
MOST_TAGS, LONGEST_TAG = 12, 40
MOST_BYTES = 4 << 20
MOST_COLUMNS = 40

RunKind = Literal["run", "log"]


@dataclass(frozen=True)
class Label:
    """What was written beside a run; "" and () where nothing was."""

    name: str = ""
    group: str = ""
    note: str = ""
    tags: tuple[str, ...] = ()
    hidden: bool = False


@dataclass(frozen=True)
class RunRef:
    """A run of the folder, as addresses and people name it."""

    id: str  # its name in addresses
    name: str  # its path below the folder, for people
    path: Path
    kind: RunKind  # "run" for a run directory of steadyrl, "log" for anything that another trainer wrote
    label: Label = field(default_factory=Label)

    @property
    def title(self) -> str:
        """The name that somebody gave it, or else its path."""
        return self.label.name or self.name


class Folder:
    """The runs below a folder, searched again when somebody asks and the last search is some seconds old."""

    def __init__(self, root: Path):
        self.root = root.resolve()
        if not self.root.is_dir():
            raise RunError(f"there is no folder '{root}'; name a folder of runs, or make one with `steadyrl train`")
        self.labels = Labels(self.root)
        self._refs: dict[str, RunRef] = {}
        self._searched = -FRESH_S
        self._lock = threading.Lock()

    def runs(self) -> list[RunRef]:
        """Return all runs, sorted by name."""
        with self._lock:
            if time.monotonic() - self._searched >= FRESH_S:
                folders = _find_runs(self.root, self.root, 0, [MAX_FILES])
                names = [(self.name_of(path), path, kind) for path, kind in folders]
                refs = [RunRef(id_of(name), name, path, kind) for name, path, kind in names]
                self._refs = {ref.id: ref for ref in refs}
                self._searched = time.monotonic()
            refs = list(self._refs.values())
        return self._labelled(refs)

    def _labelled(self, refs: list[RunRef]) -> list[RunRef]:
        runs = self.labels.read().runs
        return [replace(ref, label=runs[ref.name]) if ref.name in runs else ref for ref in refs]

    def find(self, run_id: str) -> RunRef:
        """Return the run of an address.

        Raises:
            RunError: There is none of that name.
        """
        ref = self._refs.get(run_id) or next((ref for ref in self.runs() if ref.id == run_id), None)
        if ref is None or not ref.path.exists() or _leads_out(self.root, ref.path):
            raise RunError(
                f"there is no run '{run_id}' in '{self.root}'; it may have been moved or removed, or hold a link that "
                "leads out of this folder, or what is neither file nor folder"
            )
        return self._labelled([ref])[0]

    def name_of(self, path: Path) -> str:
        """Return how people call a folder below this one, or this one."""
        return path.relative_to(self.root).as_posix() if path != self.root else self.root.name

    def file(self, path: Path) -> Path | None:
        """Return a plain file that lies in the folder, or None if it does not exist or a link leads out of it."""
        return path if path.is_file() and path.resolve().is_relative_to(self.root) else None


def _find_runs(root: Path, folder: Path, depth: int, files_left: list[int]) -> Iterator[tuple[Path, RunKind]]:
    """Yield the runs and logs of a folder and of those below it, while ``files_left[0]`` lasts."""
    try:
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except OSError:
        return  # a folder that cannot be read holds nothing to show
    files_left[0] -= len(entries)
    if is_run_folder(folder):
        if not _leads_out(root, folder):
            yield folder, "run"
        return
    files = tuple(
        (entry.name, stat.st_size, stat.st_mtime_ns)
        for entry in entries
        if entry.is_file(follow_symlinks=False)
        for stat in [entry.stat(follow_symlinks=False)]
    )
    tracked = False
    for path, kind in _logs(folder, files):
        tracked |= kind == Kind.TRACKED_RUN
        yield path, "log"
    passed_over = KEPT | PASSED_OVER | (KEPT_BY_TRACKERS if tracked else set())
    for entry in entries:
        if entry.name.startswith(".") or entry.name in passed_over or not entry.is_dir(follow_symlinks=False):
            continue
        if depth < MAX_DEPTH and files_left[0] > 0:
            yield from _find_runs(root, Path(entry.path), depth + 1, files_left)


@lru_cache(maxsize=4096)
def _logs(folder: Path, files: tuple[tuple[str, int, int], ...]) -> tuple[tuple[Path, Kind], ...]:
    # Names, sizes and times of the files are a part of the cache's key: a folder that has changed is sniffed again.
    named = (name for name, size, _ in files if 0 < size <= MAX_LOG_BYTES and not name.startswith(".") and name != FILE)
    paths = [folder / name for name in named]
    try:
        log_sources = sources(folder, paths)
    except (OSError, RunError):
        return ()
    tracked = any(source.kind >= Kind.TRACKED_RUN for source in log_sources)
    return tuple((source.path, source.kind) for source in log_sources if source.kind >= Kind.TRACKED or not tracked)


def _leads_out(root: Path, path: Path) -> bool:
    """Return whether a file, or something in a folder, is a link that leads out of the root or cannot be looked at."""
    if not path.resolve().is_relative_to(root):
        return True
    if not path.is_dir():
        return _is_special(path)
    stack = [path]
    while stack:
        folder = stack.pop()
        try:
            changed = folder.stat().st_mtime_ns
            # The clock of files may stand still for some milliseconds, in which a link can be made.
            list_folder = _scan.__wrapped__ if time.time_ns() - changed < SETTLED_NS else _scan
            links, folders = list_folder(folder, changed)
        except OSError:
            return True
        if any(not link.resolve().is_relative_to(root) or _is_special(link) for link in links):
            return True
        stack += folders
    return False


@lru_cache(maxsize=1 << 14)
def _scan(folder: Path, changed: int) -> tuple[list[Path], list[Path]]:
    """Return what is neither file nor folder in a folder, and the folders."""
    with os.scandir(folder) as listing:
        entries = list(listing)
    folders = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    files = {entry.path for entry in entries if entry.is_file(follow_symlinks=False)}
    return [path for entry in entries if (path := Path(entry.path)) not in folders and entry.path not in files], folders


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()


def id_of(name: str) -> str:
    """Return the name that stands for a run in addresses: its path, or a digest where that has other characters."""
    if _PLAIN.fullmatch(name) and len(name) <= _LONGEST_ID:
        return name.replace("/", "~")
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:40].strip("-.") or "run"
    return f"{readable}~{hashlib.sha256(os.fsencode(name)).hexdigest()[:12]}"


@dataclass(frozen=True)
class SavedLabels:
    """All that was written: labels by the path of the run, the columns of the table; None for those it has at first."""

    runs: Mapping[str, Label] = field(default_factory=dict)
    columns: tuple[str, ...] | None = None
    problem: str = ""


class Labels:
    """The file of labels of a folder."""

    def __init__(self, root: Path):
        self._file = root / FILE
        self._lock = Lock()

    def read(self) -> SavedLabels:
        """Return what the file holds; of a file that cannot be read nothing, and why."""
        try:
            return self._read()
        except SteadyError as error:
            return SavedLabels(problem=str(error))

    def change(self, names: Sequence[str], **fields: Any) -> None:
        """Change some fields of the labels of runs.

        Args:
            names: Paths of runs below the folder.
            fields: Of ``Label``; text is shortened to ``LONGEST``. "add_tags" and "remove_tags" change single tags.

        Raises:
            RunError: The file is damaged, and would be lost.
            AccessError: It cannot be written.
        """
        with self._lock:
            saved = self._read()
            runs = {**saved.runs, **{name: _changed(saved.runs.get(name, Label()), fields) for name in names}}
            self._write(replace(saved, runs={name: label for name, label in runs.items() if label != Label()}))

    def choose(self, columns: Sequence[str] | None) -> None:
        """Keep the columns of the table; None for those it has at first. Errors as of ``change``."""
        with self._lock:
            chosen = None if columns is None else tuple(dict.fromkeys(columns))[:MOST_COLUMNS]
            self._write(replace(self._read(), columns=chosen))

    def _read(self) -> SavedLabels:
        self._refuse_links()
        if not self._file.exists():
            return SavedLabels()
        if self._file.stat().st_size > MOST_BYTES:
            raise RunError(f"'{FILE}' has more than {MOST_BYTES >> 20} MiB; remove it or restore a smaller one")
        record = read_json(self._file)
        runs, columns = record.get("runs", {}), record.get("columns")
        if not isinstance(runs, Mapping) or not isinstance(columns, list | None):
            raise RunError(f"'{FILE}' is damaged: 'runs' is no table or 'columns' is no list; restore or remove it")
        labels = {name: _changed(Label(), label) for name, label in runs.items() if isinstance(label, Mapping)}
        return SavedLabels(labels, None if columns is None else tuple(map(str, columns[:MOST_COLUMNS])))

    def _write(self, saved: SavedLabels) -> None:
        self._refuse_links()
        runs = {
            name: {key: value for key, value in asdict(label).items() if value} for name, label in saved.runs.items()
        }
        write_json(self._file, {"runs": runs, "columns": None if saved.columns is None else list(saved.columns)})

    def _refuse_links(self) -> None:
        # A folder from elsewhere may hold a link here, so that another file would be written.
        for path in (self._file, self._file.with_name(f"{FILE}.part")):
            if path.is_symlink() or (path.exists() and not path.is_file()):
                raise AccessError(
                    f"'{path.name}' is no plain file; remove it from the folder of runs to name runs here"
                )


def _changed(label: Label, fields: Mapping[str, Any]) -> Label:
    """Return a label with other fields, each as long as it may be."""
    texts = {name: _text(fields[name], limit) for name, limit in LONGEST.items() if name in fields}
    tags = _tags(fields["tags"]) if "tags" in fields else label.tags
    tags = tuple(tag for tag in tags if tag not in _tags(fields.get("remove_tags", ())))
    tags = tuple(dict.fromkeys((*tags, *_tags(fields.get("add_tags", ())))))[:MOST_TAGS]
    hidden = fields.get("hidden", label.hidden)
    return replace(label, **texts, tags=tags, hidden=hidden is True)


def _text(value: Any, limit: int) -> str:
    return " ".join(value.split())[:limit] if isinstance(value, str) else ""


def _tags(value: Any) -> tuple[str, ...]:
    """Return tags from a list, or from a text with commas."""
    tags = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else ()
    texts = (_text(part, LONGEST_TAG) for part in tags)
    return tuple(dict.fromkeys(text for text in texts if text))[:MOST_TAGS]
