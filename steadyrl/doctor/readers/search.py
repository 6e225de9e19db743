"""Every run of a file or folder: ``search`` is the way into this room.

Two logs of one run must not become two runs that contradict each other, and no log may go missing without a word:

- Of the logs in one folder those of the surest kind are read (``sniff.Kind``). The others are named in a note.
- A folder that is one run (a run directory, a Trainer's output, a W&B or MLflow run) is not searched further; logs
  below it are named in a note.
- Below any other folder with a log, only logs as sure as those are read; and below rows or printed output, nothing that
  a tracker wrote in a folder of its usual name.
- Everything else is searched to the end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from steadyrl.doctor.readers import trainer_state
from steadyrl.doctor.readers.sniff import KNOWN, Kind, Source, holds_history, of_file, sure_sources, text_sources
from steadyrl.doctor.series import RawLog
from steadyrl.errors import RunError
from steadyrl.rundir import RunDir

MAX_FILES = 20_000
MAX_DEPTH = 8
MOST_NAMED = 5  # in a note
PASSED_OVER = {"node_modules", "__pycache__", "site-packages"}  # large, and not of the run
# Where trackers write beside a trainer's own log.
TRACKERS = {"wandb", "runs", "tensorboard", "tensorboard_logs", "tb", "tb_logs", "lightning_logs", "mlruns", "trackio"}
# W&B's words on itself, beside its runs and in them: they repeat settings in a shape that a printed log may have.
W_AND_B_WORDS = {"debug-internal.log", "debug.log", "debug-core.log"}
# What a run keeps in folders of its own, by the format of its log; no log of another run is in there.
KEPT = {
    "steadyrl": {"checkpoints", "rollouts", "evaluations", "report"},
    "wandb": {"files", "logs", "tmp"},
    "mlflow": {"metrics", "params", "tags", "artifacts"},
}

Knows = Callable[[RawLog], bool]


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        logs: Each with at least one column. The path of a log is that of its file or folder; where one file holds
            several runs, "#" and the run's name follow.
        unreadable: Why a log could not be read, by its path.
    """

    logs: tuple[RawLog, ...]
    unreadable: Mapping[str, str] = field(default_factory=dict)


def search(path: Path | str, knows: Knows) -> Found:
    """Read every run in a file or folder.

    Args:
        path: Of a log, a run, or a folder of several.
        knows: Whether a log holds a metric that something is known of; one that does not is no log of a run.

    Raises:
        RunError: There is nothing that could be a log; or it is a file, and cannot be read.
    """
    given = Path(path)
    try:
        if given.is_dir():
            return _Search(given, knows).found()
        if given.is_file():
            return Found(tuple(_filled(given, of_file(given)(), knows)))
    except OSError as error:
        raise RunError(
            f"cannot read '{path}': {error.strerror or error}; mend its permissions or copy the log"
        ) from error
    raise RunError(f"there is no file or folder '{path}'; give {KNOWN}")


def _filled(path: Path, logs: Sequence[RawLog], knows: Knows) -> list[RawLog]:
    """Return the logs that hold a metric that something is known of.

    Raises:
        RunError: None does.
    """
    filled = [log for log in logs if log.columns]
    if not filled:
        raise RunError(f"'{path}' is a log without a number; wait for the first logged step, or name another log")
    known = [log for log in filled if knows(log)]
    left_out = [log.path for log in filled if not knows(log)]
    if known and left_out:
        note = f"left out of the same file, for they hold no known metric: {_listed(left_out)}"
        return [replace(known[0], notes=(*known[0].notes, note)), *known[1:]]
    if not known:
        names = sorted({name for log in filled for name in log.columns})
        raise RunError(
            f"no known metric in '{path}': found {_listed(names)}; name the log of a training run, with metrics "
            "such as reward, kl or loss"
        )
    return known


@dataclass(frozen=True)
class _Above:
    """What the folders above hold: of which kind, which log it was, and whether a tracker wrote here beside it."""

    kind: int = 0
    log: int | None = None
    closed: bool = False
    mirrored: bool = False


@dataclass
class _Search:
    root: Path
    knows: Knows
    logs: list[RawLog] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    beside: dict[int, list[str]] = field(default_factory=dict)  # left out, by the log of whose run they are
    strange: list[tuple[str, str]] = field(default_factory=list)  # path and why, of what is no log of a run
    files_left: int = MAX_FILES
    cut: bool = False

    def found(self) -> Found:
        """Search the whole folder.

        Raises:
            RunError: Nothing in it could be a log.
        """
        self._folder(self.root, 0, _Above())
        if not self.logs:
            self.unreadable.update(self.strange)
        if not self.logs and not self.unreadable:
            raise RunError(f"'{self.root}' holds no log that steadyrl can read; known are {KNOWN}")
        logs = [self._with_notes(place, log) for place, log in enumerate(self.logs)]
        return Found(tuple(logs), self.unreadable)

    def _with_notes(self, place: int, log: RawLog) -> RawLog:
        notes = []
        if place in self.beside:
            named = _listed(self.beside[place])
            notes.append(f"left out, for they are taken for other logs of the same run (name one to see it): {named}")
        if place == 0 and self.strange:
            named = _listed([path for path, _ in self.strange])
            notes.append(f"left out in '{self.root}', for they hold no known metric: {named}")
        if place == 0 and self.cut:
            notes.append(
                f"the search of '{self.root}' ended after {MAX_FILES} files or {MAX_DEPTH} folders' depth; name "
                "folders further down to see the rest"
            )
        return replace(log, notes=(*log.notes, *notes)) if notes else log

    def _folder(self, folder: Path, depth: int, above: _Above) -> None:
        """Take in a folder and those below; links are not followed: they may lead in a circle."""
        try:
            with os.scandir(folder) as held:
                entries = sorted((Path(entry.path), entry.is_dir(follow_symlinks=False)) for entry in held)
            files = [path for path, is_folder in entries if not is_folder and path.is_file()]
            if any(path.name == "debug-internal.log" for path in files):
                files = [path for path in files if path.name not in W_AND_B_WORDS]
            self.cut |= len(files) > self.files_left
            files = files[: self.files_left]
            self.files_left -= len(files)
            here = self._logs_of(folder, files, above)
        except OSError as error:
            self.unreadable[str(folder)] = f"cannot read '{folder}': {error.strerror or error}; mend its permissions"
            return
        for path in (path for path, is_folder in entries if is_folder):
            if path.name in PASSED_OVER or path.name.startswith(".") or self._is_kept(path, here):
                continue
            if depth + 1 > MAX_DEPTH or not self.files_left:
                self.cut = True
                return
            mirrored = here.mirrored or (here.kind in (Kind.CONSOLE, Kind.ROWS) and path.name.lower() in TRACKERS)
            self._folder(path, depth + 1, replace(here, mirrored=mirrored))

    def _logs_of(self, folder: Path, files: Sequence[Path], above: _Above) -> _Above:
        """Read the surest logs of a folder, note the others, and return what holds for the folders below."""
        sources = sure_sources(folder, files)
        sources += text_sources([path for path in files if not _kept_file(path, sources)])
        wanted = [source for source in sources if _is_wanted(source, above)]
        here, read = above, list[Source]()
        for kind in sorted({source.kind for source in wanted}, reverse=True):
            equal = [source for source in wanted if source.kind == kind]
            if kind == Kind.RUN:
                equal = equal[:1]
            before = len(self.logs)
            good = [source for source in equal if self._read(source)]
            read += equal
            if good:
                sure = Kind.ROWS if all(source.shared for source in good) else kind
                here = _Above(max(sure, above.kind), before, kind >= Kind.TRACKED_RUN)
                break
            if kind == Kind.RUN and equal[0].path == folder:  # a run directory, though it cannot be read
                return _Above(closed=True)
        self._note(here, [source for source in sources if source not in read])
        return here

    def _read(self, source: Source) -> bool:
        """Take in the runs of a source; return whether there is one. One bad file must not hide the runs beside it."""
        try:
            logs = source.read()
        except RunError as error:
            self.unreadable[str(source.path)] = str(error)
            return False
        except OSError as error:
            self.unreadable[str(source.path)] = f"cannot read '{source.path}': {error.strerror or error}"
            return False
        try:
            self.logs += _filled(source.path, logs, self.knows)
        except RunError as error:
            self.strange.append((str(source.path), str(error)))
            return False
        return True

    def _is_kept(self, folder: Path, here: _Above) -> bool:
        """Return whether a folder is what the run above keeps, and holds no log but the run's own."""
        if trainer_state.is_checkpoint(folder):  # its output folder has found the newest of them
            return True
        if not here.closed:
            return False
        # A run directory without metrics has no log, and what it saved is none either.
        return here.log is None or folder.name in KEPT.get(self.logs[here.log].format, ())

    def _note(self, here: _Above, left_out: Sequence[Source]) -> None:
        if here.log is not None:
            self.beside.setdefault(here.log, []).extend(str(source.path) for source in left_out)
            if not self.beside[here.log]:
                del self.beside[here.log]


def _is_wanted(source: Source, above: _Above) -> bool:
    """Return whether a log is to be read, by what lies above it."""
    if above.closed or source.kind < above.kind:
        return False
    if above.mirrored and source.kind in (Kind.TRACKED, Kind.TRACKED_RUN):
        return False
    return not above.kind or source.kind != Kind.ROWS or holds_history(source.path)


def _kept_file(path: Path, sources: Sequence[Source]) -> bool:
    """Return whether a file is one of a run directory's own."""
    run = RunDir(path.parent)
    of_steps = (run.metrics_file, run.findings_file, run.actions_file, run.curriculum_file)
    kept = (*of_steps, run.info_file, run.resolved_file)
    return path in kept and any(source.path == path.parent and source.kind == Kind.RUN for source in sources)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{more}"
