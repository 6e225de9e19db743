"""One line per run for the table of all runs, with the findings that hold. Of a run's metrics only the end is read.

A folder of hundreds of runs must open at once, and their metrics together can be gigabytes. Lines of findings.jsonl
that no doctor wrote are left out.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from steadyrl.core.errors import RunError
from steadyrl.core.metrics import finite_number
from steadyrl.core.rundir import RunDir, is_step, json_object, read_json, stamp
from steadyrl.core.types import Finding
from steadyrl.doctor.causes import SEVERITIES
from steadyrl.show.web.folder import RunRef

TAIL_BYTES = 1 << 16
MOST_TAIL_BYTES = 1 << 22  # a line may be long
RECENT = 10  # steps whose pace tells the time left
WORDS = ("sick", "healthy", "too little to judge", "better", "worse", "equal", "undecided")
_SILENT_S = 900.0  # without a step, after which a run on another machine is no longer called running


@dataclass(frozen=True)
class HeldOut:
    """The held-out score of a run: after training, and its change with the 95 % interval, where they are known."""

    metric: str
    score: float
    change: float | None = None
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Row:
    """What the table says of a run; None and "" are unknown."""

    ref: RunRef
    status: str = "log"
    """"running", "finished", "interrupted", "failed", "killed", or "log" for another trainer's."""
    task: str = ""
    algorithm: str = ""
    model: str = ""
    step: int | None = None
    steps: int | None = None
    """Planned."""
    seconds_left: float | None = None
    """At the pace of the last steps."""
    reward: float | None = None
    heldout: HeldOut | None = None
    finding: Finding | None = None
    """The worst finding that holds."""
    verdict: str = ""
    """The doctor's: "sick", "healthy" or "too little to judge"; of a run that goes on "sick" or ""."""
    change: str = ""
    """How the held-out score moved: "better", "worse", "equal" or "undecided"; "" while that is not decided."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The numbers of the last step."""
    time: float | None = None
    """When the last step was written, seconds since 1970."""
    problem: str = ""
    """Why the run cannot be read."""


def row(ref: RunRef) -> Row:
    """Return the row of a run."""
    if ref.kind == "log":
        return Row(ref, time=ref.path.stat().st_mtime if ref.path.exists() else None)
    run = RunDir(ref.path)
    try:
        last_row = _read_row(ref, tuple(map(stamp, _row_files(ref.path))))
    except (RunError, OSError) as error:
        return Row(ref, "unreadable", problem=str(error))
    return replace(last_row, seconds_left=None) if last_row.status != "running" else _with_liveness(last_row, run)


@lru_cache(maxsize=4096)
def _row_files(path: Path) -> tuple[str, ...]:
    run = RunDir(path)  # cached, for making these names takes longer than looking at the files
    files = (run.metrics_file, run.info_file, run.resolved_file, run.findings_file, run.report_folder / "summary.json")
    return tuple(map(str, files))


@lru_cache(maxsize=4096)
def _read_row(ref: RunRef, stamps: tuple[tuple[int, int], ...]) -> Row:
    run = RunDir(ref.path)  # read again when the stamps of its files, a part of the cache's key, have changed
    info = run.info()
    settings = run.resolved() if run.resolved_file.is_file() else {}
    records = last_records(run.metrics_file, RECENT)
    last = records[-1] if records else {}
    path = run.report_folder / "summary.json"  # of a run that goes on it may be of an earlier attempt
    summary = read_json(path) if info.get("status") == "finished" and path.is_file() else {}
    doctor = summary["doctor"] if isinstance(summary.get("doctor"), Mapping) else {}
    finding = next((finding for finding in _findings(run, doctor) if finding.harms), None)
    steps = settings.get("run", {}).get("steps")
    step = last.get("step")
    return Row(
        ref=ref,
        status=str(info.get("status") or "unknown"),
        task=short_name(info.get("task")),
        algorithm=short_name(info.get("algorithm")),
        model=str(info.get("model") or ""),
        step=step + 1 if isinstance(step, int) else None,
        steps=steps if isinstance(steps, int) else None,
        seconds_left=_seconds_left(records, steps),
        reward=finite_number(last.get("reward/mean")),
        heldout=_heldout(info, summary, last),
        finding=finding,
        verdict=_word(doctor.get("verdict")) or ("sick" if finding else ""),
        change=_word(summary.get("verdict")),
        metrics={name: number for name, value in last.items() if (number := finite_number(value)) is not None},
        time=finite_number(last.get("time")) or finite_number(info.get("started")),
    )


def _with_liveness(run_row: Row, run: RunDir) -> Row:
    """Return a row whose run is called killed where its process is gone."""
    process = run.info().get("process") or {}
    same_machine = process.get("node") == platform.node() and isinstance(process.get("id"), int)
    if same_machine:
        # Where a system has no /proc the run counts as alive.
        alive = Path(f"/proc/{process['id']}").exists() or not Path("/proc").exists()
    else:
        alive = run_row.time is not None and time.time() - run_row.time < _SILENT_S
    return run_row if alive else replace(run_row, status="killed" if same_machine else "silent", seconds_left=None)


def last_records(path: Path, count: int) -> list[dict[str, Any]]:
    """Return the last records of a file of JSON lines, oldest first; only the end of the file is read."""
    n_bytes = TAIL_BYTES
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            while True:
                file.seek(max(0, size - n_bytes))
                lines = file.read(n_bytes).split(b"\n")
                complete_lines = lines if n_bytes >= size else lines[1:]
                # A torn line is still being written.
                parsed = map(json_object, complete_lines[-count - 1 :])
                records = [record for record in parsed if record is not None]
                if records or n_bytes >= min(size, MOST_TAIL_BYTES):
                    return records[-count:]
                n_bytes *= 8
    except FileNotFoundError:
        return []


def _seconds_left(records: list[dict[str, Any]], steps: Any) -> float | None:
    pairs = [(record.get("step"), finite_number(record.get("time"))) for record in records]
    times = [(step, time) for step, time in pairs if type(step) is int and time is not None]
    if len(times) < 2 or not isinstance(steps, int) or times[-1][0] <= times[0][0]:
        return None
    pace: float = (times[-1][1] - times[0][1]) / (times[-1][0] - times[0][0])
    remaining_steps: int = steps - 1 - times[-1][0]
    return max(0.0, pace * remaining_steps)


def _findings(run: RunDir, doctor: Mapping[str, Any]) -> list[Finding]:
    # Of a finished run those of its report: it would take long to examine hundreds of runs.
    lines = doctor.get("findings")
    if isinstance(lines, list):
        findings = (read_finding(line) for line in lines if isinstance(line, Mapping))
        return [finding for finding in findings if finding is not None]
    return open_findings(events(run.findings()))


def _word(value: Any) -> str:
    return value if value in WORDS else ""


def _heldout(info: Mapping[str, Any], summary: Mapping[str, Any], last: Mapping[str, Any]) -> HeldOut | None:
    metric = str(info.get("metric") or "reward")
    score, interval = finite_number(summary.get("after")), summary.get("interval")
    if score is not None:
        bounds = [finite_number(value) for value in interval] if isinstance(interval, list) else []
        sure = (bounds[0], bounds[1]) if len(bounds) == 2 and None not in bounds else None
        return HeldOut(metric, score, finite_number(summary.get("difference")), sure)  # type: ignore[arg-type] # None is out
    score = finite_number(last.get(f"heldout/{metric}"))
    return None if score is None else HeldOut(metric, score)


def short_name(name: Any) -> str:
    """Return the last part of an import path, or a built-in name as it is."""
    return str(name or "").replace(":", ".").rpartition(".")[2]


@dataclass(frozen=True)
class Event:
    """A finding that was raised or cleared while a run went on, and the step at which that was."""

    finding: Finding
    step: int
    cleared: bool


def read_finding(line: Mapping[str, Any]) -> Finding | None:
    """Return the finding of a line, or None if it is none."""
    severity, start = line.get("severity"), line.get("since_step")
    if severity not in SEVERITIES:
        return None
    check, cause, message, remedy, source, follows = (
        value if isinstance(value := line.get(name), str) else ""
        for name in ("check", "cause", "message", "remedy", "source", "follows")
    )
    evidence, overrides = (
        tuple(text for text in texts if isinstance(text, str)) if isinstance(texts := line.get(name), list) else ()
        for name in ("evidence", "overrides")
    )
    since_step = start if is_step(start) else None
    return Finding(check, severity, since_step, cause, message, evidence, remedy, overrides, source, follows)


def events(lines: Iterable[Mapping[str, Any]]) -> list[Event]:
    """Return the findings that were raised and cleared, oldest first."""
    return [
        Event(finding, line["step"], line.get("state") == "cleared")
        for line in lines
        if is_step(line.get("step")) and (finding := read_finding(line)) is not None
    ]


def open_findings(raised: Iterable[Event]) -> list[Finding]:
    """Return the findings that were raised and not cleared since, the worst first."""
    by_name: dict[tuple[str, str], Finding] = {}
    for event in raised:
        name = event.finding.check, event.finding.cause
        by_name.pop(name, None)
        if not event.cleared:
            by_name[name] = event.finding
    return sorted(by_name.values(), key=lambda finding: SEVERITIES.index(finding.severity))
