"""Diagnoses for the pages: of a run that is there, of another trainer's log, and of a log that somebody pasted."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from steadyrl.core.errors import RunError
from steadyrl.core.scratch import scratch_folder
from steadyrl.core.words import shell_command
from steadyrl.doctor.examine import Diagnosis, diagnose
from steadyrl.doctor.readers.lines import head
from steadyrl.show.page.records import Panel
from steadyrl.show.report.topics import in_order, topic_of
from steadyrl.show.web.columns import Curves, thin
from steadyrl.show.web.folder import Folder, RunRef
from steadyrl.show.web.overview import Row, row

MOST_PASTED = 32 << 20  # bytes, unpacked
MOST_READ = 1 << 30  # bytes of a run that is there; a gigabyte takes some ten seconds
MOST_LINES = 500_000  # printed lines are read at thirty microseconds each
MOST_VALUES = 4_000_000  # of which each takes up to a hundred bytes
_BEFORE_VALUES = (b",", b"[", b"{", b"\t", b";")
KEPT = 6  # diagnoses, with their logs
MOST_BRIEFS = 500
MOST_CURVES = 300


class Diagnoses:
    """The diagnoses that were made last. One is made at a time, for it takes the processor for itself."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._briefs: dict[tuple[Path, int, int], Row | None] = {}
        self._waiting: SimpleQueue[tuple[RunRef, tuple[Path, int, int]]] = SimpleQueue()
        threading.Thread(target=self._make_briefs, daemon=True).start()

    def rows(self, folder: Folder) -> list[Row]:
        """Return a row for every run of a folder, and for every log what is known of its diagnosis so far."""
        rows = [row(ref) for ref in folder.runs()]
        briefs = [self.brief(row.ref) if row.ref.kind == "log" and row.time is not None else None for row in rows]
        pairs = zip(rows, briefs, strict=True)
        return [replace(brief, ref=row.ref, time=row.time) if brief else row for row, brief in pairs]

    def brief(self, ref: RunRef) -> Row | None:
        """Return the row of a log by its diagnosis, of several runs in one log by that of the first.

        None while a thread makes the diagnosis, and if it has none.
        """
        key = (ref.path, *_size_and_time(ref.path))
        if key not in self._briefs and key[1] <= MOST_PASTED and len(self._briefs) < MOST_BRIEFS:
            self._briefs[key] = None
            self._waiting.put((ref, key))
        return self._briefs.get(key)

    def _make_briefs(self) -> None:
        while True:
            ref, key = self._waiting.get()
            with suppress(RunError, OSError), self._lock:  # of what cannot be read its page says why
                diagnosis = diagnose(ref.path)[0]  # not kept: what somebody looks at would be dropped for it
                leading = next((finding for finding in diagnosis.findings if finding.harms), None)
                reward, run = diagnosis.run.get("reward"), diagnosis.run
                last = None if reward is None else float(reward.values[-1])
                self._briefs[key] = Row(
                    ref, verdict=diagnosis.verdict, finding=leading, step=run.span[1], reward=last,
                    algorithm=run.algorithm,
                )  # fmt: skip

    def get(self, ref: RunRef) -> list[Diagnosis]:
        """Return the diagnoses of a run, made anew where its files changed.

        Raises:
            RunError: It cannot be read.
        """
        size, changed = _size_and_time(ref.path)
        if size > MOST_READ:
            by_hand = shell_command("doctor", ref.name)
            raise RunError(f"'{ref.name}' is too long to be diagnosed while a page waits: {by_hand}")
        with self._lock:
            return _diagnose(ref.path, size, changed)

    def of_content(self, content: bytes, suffix: str) -> list[Diagnosis]:
        """Return the diagnoses of a log's content; the suffix is that of its file, such as ".csv", "" if it was pasted.

        Raises:
            RunError: It is no log that can be read.
        """
        with self._lock, scratch_folder() as folder:  # Ctrl-C does not wait for its end
            path = folder / f"log{suffix}"
            path.write_bytes(content)
            # A log may be packed small, and keep the page and its memory for long all the same.
            unpacked = head(path, MOST_PASTED + 1)
            advice = "use `steadyrl doctor` on its file, or paste the part that matters"
            if len(unpacked) > MOST_PASTED:
                raise RunError(f"The log unpacks to more than {MOST_PASTED >> 20} MiB; {advice}.")
            if unpacked.count(b"\n") + unpacked.count(b"\r") > MOST_LINES:
                raise RunError(f"The log has more than {MOST_LINES:,} lines; {advice}.")
            if sum(map(unpacked.count, _BEFORE_VALUES)) > MOST_VALUES:
                raise RunError(f"The log has more than {MOST_VALUES:,} values; {advice}.")
            try:
                diagnoses = [_without_completions(diagnosis) for diagnosis in diagnose(path)]
            except RunError as error:
                raise RunError(str(error).replace(str(path), "the log")) from error
            return [replace(diagnosis, run=replace(diagnosis.run, path="the log")) for diagnosis in diagnoses]


@lru_cache(maxsize=KEPT)
def _diagnose(path: Path, size: int, changed: int) -> list[Diagnosis]:
    # Size and time of its files are a part of the cache's key: a path that has changed is diagnosed again.
    return [_without_completions(diagnosis) for diagnosis in diagnose(path)]


def _size_and_time(path: Path) -> tuple[int, int]:
    files = [path] if path.is_file() else [file for file in path.iterdir() if file.is_file()]
    stamps = [file.stat() for file in files]
    return sum(stamp.st_size for stamp in stamps), max((stamp.st_mtime_ns for stamp in stamps), default=0)


def _without_completions(diagnosis: Diagnosis) -> Diagnosis:
    # The files of completions may be gone when somebody looks at a diagnosis in the cache.
    return replace(diagnosis, run=replace(diagnosis.run, completions=()))


def log_panels(diagnosis: Diagnosis) -> dict[str, list[Panel]]:
    """Return the panels of another trainer's log: its own names, with the units that are known of them."""
    topics: dict[str, list[Panel]] = {}
    series = [curve for curves in diagnosis.run.series.values() for curve in curves if len(curve)]
    for curve in series[:MOST_CURVES]:
        name = curve.source or curve.quantity
        panel = Panel(name, curve.unit, f"{curve.quantity} {curve.estimator}".strip(), ((name, ""),))
        topic_panels = topics.setdefault(topic_of(curve.quantity.replace("reward_part/", "reward/")), [])
        if panel not in topic_panels:
            topic_panels.append(panel)
    return in_order(topics)


def log_names(diagnosis: Diagnosis) -> dict[str, str]:
    """Return the name of the first line of each quantity of another trainer's log."""
    series = {quantity: curves[0] for quantity, curves in diagnosis.run.series.items() if curves and len(curves[0])}
    return {quantity: curve.source or quantity for quantity, curve in series.items()}


def log_curves(diagnosis: Diagnosis, between: tuple[int, int]) -> Curves:
    """Return the curves of another trainer's log."""
    series = [curve for curves in diagnosis.run.series.values() for curve in curves if len(curve)][:MOST_CURVES]
    steps = np.unique(np.concatenate([curve.steps for curve in series])) if series else np.empty(0, np.int64)
    steps = steps[(steps >= between[0]) & (steps <= between[1])]
    columns = {}
    for curve in series:
        inside = (curve.steps >= between[0]) & (curve.steps <= between[1])
        column = np.full(len(steps), np.nan)
        column[np.searchsorted(steps, curve.steps[inside])] = curve.values[inside]
        columns[curve.source or curve.quantity] = column
    return thin(steps, columns)


def log_pins(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    """Return where the findings of another trainer's log begin, as a board draws them."""
    dated = [finding for finding in diagnosis.findings if finding.since_step is not None]
    return [
        {"step": finding.since_step, "kind": finding.severity, "title": f"{finding.check}: {finding.message}"}
        for finding in sorted(dated, key=lambda finding: finding.since_step or 0)
    ]
