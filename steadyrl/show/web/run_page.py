"""The pages of one run: what it is, what happened in it, its curves and its settings."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.core.errors import RunError
from steadyrl.core.rundir import RunDir
from steadyrl.lab.forecast import LEAST_POINTS, curve_of, finished_beside, forecast_curve, score_name, widths_on
from steadyrl.show.report.actions import describe_action
from steadyrl.show.report.settings import settings_rows
from steadyrl.show.web.columns import Curves, Shelf
from steadyrl.show.web.diagnosis import Diagnoses
from steadyrl.show.web.findings import examined, finding_views, standing
from steadyrl.show.web.folder import Place
from steadyrl.show.web.overview import row
from steadyrl.show.web.topics import panels, topic_of

MOST_EVENTS = 300  # of findings and actions on one page, the newest
DIGITS = 6  # of a number that is drawn
OTHERS_KEPT_S = 60.0  # that what was read of other runs counts for a forecast
_TABS = (("Curves", ""), ("Rollouts", "/rollouts"), ("Doctor", "/doctor"), ("Report", "/report"))


def head_view(place: Place) -> dict[str, Any]:
    """Return what the head of all pages of a run shows."""
    run_row = row(place)
    run = RunDir(place.path)
    info = run.info() if place.kind == "run" and not run_row.problem else {}
    tabs = _TABS if place.kind == "run" else tuple(tab for tab in _TABS if tab[0] in ("Curves", "Doctor"))
    return {
        "section": "run",
        "run": {
            "id": place.id,
            "name": place.name,
            "row": run_row,
            "tabs": tabs,
            "share": run_row.step / run_row.steps if run_row.step is not None and run_row.steps else None,
            "started": info.get("started") if isinstance(info.get("started"), int | float) else None,
            "error": info.get("error"),
            "attempt": info.get("attempt") or 0,
        },
    }


def live_view(place: Place, shelf: Shelf, diagnoses: Diagnoses) -> dict[str, Any]:
    """Return what the part of a run's page shows that changes while the run goes on."""
    run, head = RunDir(place.path), head_view(place)
    forecast = forecast_of(run, shelf) if head["run"]["row"].status == "running" else ""
    happened = what_happened(run)
    if head["run"]["row"].status != "running":  # what was raised meanwhile may be stale, or missing in a short run
        happened = {**happened, "standing": _diagnosed(place, diagnoses)}
    return {**head, **happened, "recorded": recorded_steps(run), "forecast": forecast}


def _diagnosed(place: Place, diagnoses: Diagnoses) -> list[dict[str, Any]]:
    """Return the findings of a run that has ended, as `steadyrl doctor` and the report give them."""
    try:
        return examined(diagnoses.of(place)[0].findings)
    except RunError:  # it ended before its first step
        return []


def forecast_of(run: RunDir, shelf: Shelf) -> str:
    """Return where the held-out score of a run will end, as `steadyrl forecast` says it; "" where it would abstain."""
    try:
        name = score_name(run)
        steps, columns = shelf.columns(run).arrays([name])
        values = columns.get(name, np.full(len(steps), np.nan))
        finite = np.isfinite(values)
        if finite.sum() < LEAST_POINTS - 1:  # the evaluation before training is one more
            return ""
        when = run.path.parent.stat().st_mtime_ns, time.monotonic() // OTHERS_KEPT_S
        return _forecast(run.path, name, steps[finite].tobytes(), values[finite].tobytes(), when)
    except (RunError, FileNotFoundError):  # its page says so
        return ""


@lru_cache(maxsize=64)
def _forecast(path: Path, name: str, steps: bytes, values: bytes, when: tuple[int, float]) -> str:
    """Return the forecast from a curve; ``when`` tells how old what it has read of other runs may be."""
    run = RunDir(path)
    curve = curve_of(run, name, np.frombuffer(steps, np.int64).astype(np.float64), np.frombuffer(values))
    finished_runs = finished_beside(run, note=lambda line: None)  # a damaged run's own page says so
    outlook = forecast_curve(run, _widths(path, name, tuple(finished.path for finished in finished_runs)), name, *curve)
    return str(outlook.forecast or "")


@lru_cache(maxsize=64)
def _widths(path: Path, metric: str, finished_paths: tuple[Path, ...]) -> list[float]:
    return widths_on([RunDir(finished) for finished in finished_paths], RunDir(path), metric)


def run_view(place: Place, shelf: Shelf, diagnoses: Diagnoses) -> dict[str, Any]:
    """Return what the first page of a run shows."""
    run = RunDir(place.path)
    curves = shelf.curves(run)
    live = live_view(place, shelf, diagnoses)
    readable = run.resolved_file.is_file() and not live["run"]["row"].problem
    return {
        **live,
        "topics": panels(curves.lines),
        "numbers": _numbers(curves),
        "checkpoints": run.checkpoints(),
        "settings": settings_rows(run.resolved() if readable else {}),
    }


def what_happened(run: RunDir) -> dict[str, Any]:
    """Return the findings that hold, and everything that happened in a run with its step, the newest first."""
    return _happened(run.path, _stamp(run.findings_file), _stamp(run.actions_file))


@lru_cache(maxsize=32)
def _happened(path: Path, *stamps: tuple[int, int]) -> dict[str, Any]:
    """Return what happened; the stamps of the two files tell whether they have to be read again."""
    run = RunDir(path)
    findings = finding_views(run.findings())
    events = [_raised(finding) for finding in findings] + [_acted(line) for line in run.actions()]
    events.sort(key=lambda event: event["step"])
    return {
        "standing": standing(findings),
        "events": events[::-1][:MOST_EVENTS],
        "left_out": max(0, len(events) - MOST_EVENTS),
        "pins": [
            {name: event[name] for name in ("step", "kind", "title")} for event in events if event["kind"] != "cleared"
        ][-MOST_EVENTS:],
    }


def _raised(finding: Mapping[str, Any]) -> dict[str, Any]:
    cleared, check, since = finding["cleared"], finding["check"], finding["since"]
    return {
        "step": finding["step"] if cleared or since is None else since,
        "kind": "cleared" if cleared else finding["severity"],
        "title": f"{check} cleared" if cleared else f"{check}: {finding['message']}",
        "check": check,
        "text": "no longer holds" if cleared else finding["message"],
    }


def _acted(line: Mapping[str, Any]) -> dict[str, Any]:
    text = describe_action(line)
    return {"step": line["step"], "kind": "action", "title": f"autopilot: {text}", "check": "autopilot", "text": text}


def recorded_steps(run: RunDir) -> list[int]:
    """Return the steps whose rollouts were recorded, oldest first."""
    folder = run.rollouts_file(0).parent
    if not folder.is_dir() or folder.is_symlink():
        return []
    names = (path.stem for path in folder.iterdir() if path.suffix == ".jsonl")
    return sorted(int(name) for name in names if name.isdecimal() and len(name) <= 12)


def _numbers(curves: Curves) -> dict[str, list[dict[str, Any]]]:
    """Return the numbers of a run in a table, by topic: for readers without scripts, and for those who want digits."""
    by_topic: dict[str, list[dict[str, Any]]] = {}
    for name, (mean, low, high) in curves.lines.items():
        measured = np.flatnonzero(np.isfinite(mean))
        if not len(measured):
            continue
        topic_rows = by_topic.setdefault(topic_of(name), [])
        topic_rows.append(
            {
                "name": name,
                "first": float(mean[measured[0]]),
                "last": float(mean[measured[-1]]),
                "low": float(np.nanmin(low)),
                "high": float(np.nanmax(high)),
                "step": int(curves.steps[measured[-1]]),
            }
        )
    return by_topic


def curves_json(curves: Curves) -> dict[str, Any]:
    """Return curves as a page's script takes them; a line of single steps has its values once."""
    return {
        "steps": curves.steps.tolist(),
        "lines": {
            name: [_plain(line) for line in ((lines[0],) if curves.single else lines)]
            for name, lines in curves.lines.items()
        },
        "single": curves.single,
        "complete": curves.complete,
        "rows": curves.rows,
        "last": curves.last,
        "version": curves.version,
    }


def _plain(values: np.ndarray) -> list[float | None]:
    return [
        float(f"{value:.{DIGITS}g}") if finite else None
        for value, finite in zip(values.tolist(), np.isfinite(values).tolist(), strict=True)
    ]


def stamp(run: RunDir) -> list[int]:
    """Return numbers that change whenever the run has something new to show."""
    files = (run.metrics_file, run.findings_file, run.actions_file, run.info_file)
    return [number for file in files for number in _stamp(file)]


def _stamp(file: Path) -> tuple[int, int]:
    try:
        stat = file.stat()
    except OSError:
        return 0, 0
    return stat.st_size, stat.st_mtime_ns
