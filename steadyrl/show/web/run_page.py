"""The pages of one run: what it is, what happened in it, its curves and its settings."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.core.errors import RunError
from steadyrl.core.metrics import finite_number
from steadyrl.core.rundir import RunDir, read_json, stamp
from steadyrl.doctor.causes import Placed, tree
from steadyrl.doctor.examine import Diagnosis
from steadyrl.doctor.readers.completions import step_files
from steadyrl.lab.forecast import LEAST_POINTS, curve_of, finished_beside, forecast_curve, score_name, widths_on
from steadyrl.show.page.markup import number
from steadyrl.show.page.records import Span, Table, Text, numbers
from steadyrl.show.report.rows import describe_action, memory, settings_view
from steadyrl.show.report.topics import overview, panels, topic_of
from steadyrl.show.web.columns import Curves, Shelf
from steadyrl.show.web.diagnosis import Diagnoses, log_names, log_panels, log_pins
from steadyrl.show.web.folder import RunRef
from steadyrl.show.web.overview import Event, Row, events, open_findings, row

MOST_EVENTS = 300  # of findings and actions on one page, the newest
DIGITS = 6  # of a number that is drawn
OTHERS_KEPT_S = 60.0  # that what was read of other runs counts for a forecast
_TABS = (("Curves", ""), ("Rollouts", "/rollouts"), ("Doctor", "/doctor"), ("Report", "/report"))


def head_view(ref: RunRef) -> dict[str, Any]:
    """Return what the head of all pages of a run shows."""
    run_row = row(ref)
    run = RunDir(ref.path)
    info = run.info() if ref.kind == "run" and not run_row.problem else {}
    tabs = _TABS if ref.kind == "run" else tuple(tab for tab in _TABS if tab[0] in ("Curves", "Doctor"))
    return {
        "section": "run",
        "run": {
            "id": ref.id,
            "name": ref.title,
            "path": ref.name,
            "label": ref.label,
            "row": run_row,
            "tabs": tabs,
            "share": run_row.step / run_row.steps if run_row.step is not None and run_row.steps else None,
            "started": info.get("started") if isinstance(info.get("started"), int | float) else None,
            "error": info.get("error"),
            "attempt": info.get("attempt") or 0,
            "memory": memory(info),
        },
    }


def live_view(ref: RunRef, shelf: Shelf, diagnoses: Diagnoses) -> dict[str, Any]:
    """Return what the part of a run's page shows that changes while the run goes on."""
    run, head = RunDir(ref.path), head_view(ref)
    run_row: Row = head["run"]["row"]
    forecast = forecast_of(run, shelf) if run_row.status == "running" else ""
    timeline = run_events(run)
    diagnosis = ended_diagnosis(ref, run_row, diagnoses)
    if diagnosis is not None:  # what was raised meanwhile may be stale, or missing in a short run
        timeline = {**timeline, "standing": tree(diagnosis.findings)}
    verdict = verdict_view(run_row, diagnosis, timeline["standing"])
    return {**head, **timeline, "recorded": recorded_steps(run), "forecast": forecast, "verdict": verdict}


def ended_diagnosis(ref: RunRef, run_row: Row, diagnoses: Diagnoses) -> Diagnosis | None:
    """Return the diagnosis of a run that has ended, as `steadyrl doctor` gives it; None of one that has no step."""
    if run_row.status == "running" or run_row.problem:
        return None
    try:
        return diagnoses.get(ref)[0]
    except RunError:  # it ended before its first step, or it is too long: its Doctor page says so
        return None


def verdict_view(run_row: Row, diagnosis: Diagnosis | None, placed: Sequence[Placed]) -> dict[str, Any]:
    """Return the words that a run is judged by, and its leading finding, the first harmful one that is placed."""
    harmful = [entry.finding for entry in placed if entry.finding.harms]
    word: str = diagnosis.verdict if diagnosis else "sick" if harmful else ""
    judgement = diagnosis.judgement if diagnosis else None
    return {
        "word": word,
        "change": run_row.change,
        "lead": harmful[0] if harmful else None,
        "others": len(harmful) - 1,
        "judgement": judgement.sentence if judgement else "",
        "missing": diagnosis.missing if diagnosis and judgement else (),
    }


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
    # ``when`` is a part of the cache's key alone: it limits how old what was read of the other runs may be.
    run = RunDir(path)
    curve = curve_of(run, name, np.frombuffer(steps, np.int64).astype(np.float64), np.frombuffer(values))
    finished_runs = finished_beside(run, note=lambda line: None)  # a damaged run's own page says so
    outlook = forecast_curve(run, _widths(path, name, tuple(finished.path for finished in finished_runs)), name, *curve)
    return str(outlook.forecast or "")


@lru_cache(maxsize=64)
def _widths(path: Path, metric: str, finished_paths: tuple[Path, ...]) -> list[float | None]:
    return widths_on([RunDir(finished) for finished in finished_paths], RunDir(path), metric)


def run_view(ref: RunRef, shelf: Shelf, diagnoses: Diagnoses) -> dict[str, Any]:
    """Return what the first page of a run shows."""
    run = RunDir(ref.path)
    curves = whole_curves(run, shelf)
    live = live_view(ref, shelf, diagnoses)
    score = f"heldout/{run.info().get('metric') or 'reward'}" if not live["run"]["row"].problem else ""
    first = overview([{name: name for name in curves.lines}], score)
    in_overview = {name for panel in first for name, _ in panel.metrics}
    readable = run.resolved_file.is_file() and not live["run"]["row"].problem
    return {
        **live,
        "overview": first,
        "topics": panels(name for name in curves.lines if name not in in_overview),
        "source": source(ref, live["run"]["name"]),
        "numbers": _numbers(curves),
        "checkpoints": run.checkpoints(),
        "settings": settings_view(run.resolved()) if readable else [],
    }


def log_view(ref: RunRef, diagnosis: Diagnosis) -> dict[str, Any]:
    """Return what the first page of another trainer's log shows of one of its runs."""
    first = overview([log_names(diagnosis)])
    in_overview = {name for panel in first for name, _ in panel.metrics}
    placed = tree(diagnosis.findings)
    topics = {
        topic: [panel for panel in topic_panels if panel.metrics[0][0] not in in_overview]
        for topic, topic_panels in log_panels(diagnosis).items()
    }
    return {
        "log": diagnosis.run.facts,
        "verdict": verdict_view(row(ref), diagnosis, placed),
        "standing": placed,
        "events": [],
        "overview": first,
        "topics": {topic: topic_panels for topic, topic_panels in topics.items() if topic_panels},
    }


def source(ref: RunRef, name: str) -> dict[str, str]:
    """Return what the script that draws curves needs of a run: its name, and where its curves and rollouts are."""
    recorded = ref.kind == "run" and bool(recorded_steps(RunDir(ref.path)))
    address = f"/run/{ref.id}"
    return {"url": f"{address}/curves", "name": name, "rollouts": f"{address}/rollouts" if recorded else ""}


def run_events(run: RunDir) -> dict[str, Any]:
    """Return the findings that hold, and everything that happened in a run with its step, the newest first."""
    return _read_events(run.path, stamp(run.findings_file), stamp(run.actions_file))


@lru_cache(maxsize=32)
def _read_events(path: Path, *stamps: tuple[int, int]) -> dict[str, Any]:
    # The stamps of the two files are a part of the cache's key, so that they are read again when they have changed.
    run = RunDir(path)
    raised = events(run.findings())
    timeline = [*map(_finding_event, raised), *map(_action_event, run.actions())]
    timeline.sort(key=lambda event: event["step"])
    return {
        "standing": [Placed(0, finding) for finding in open_findings(raised)],
        "events": timeline[::-1][:MOST_EVENTS],
        "left_out": max(0, len(timeline) - MOST_EVENTS),
        "pins": _pins(timeline),
    }


def _pins(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    pinned = [event for event in events if event["kind"] != "cleared"]
    return [{name: event[name] for name in ("step", "kind", "title")} for event in pinned][-MOST_EVENTS:]


def whole_curves(run: RunDir, shelf: Shelf) -> Curves:
    """Return all curves of a run; the score before and after training at its ends where none was measured there."""
    curves, ends = shelf.curves(run), score_ends(run)
    if ends is None or len(curves.steps) < 2:
        return curves
    name, *scores = ends
    line = np.full((3, len(curves.steps)), np.nan)  # mean, lowest, highest
    line[:, [0, -1]] = scores
    measured = np.array(curves.lines.get(name, line))
    return replace(curves, lines={**curves.lines, name: tuple(np.where(np.isnan(measured), line, measured))})


def score_ends(run: RunDir) -> tuple[str, float, float] | None:
    """Return the metric of the held-out score, and the score before and after training; None where one is not known."""
    info = run.info() if run.info_file.is_file() else {}
    path = run.report_folder / "summary.json"
    if info.get("status") != "finished" or not path.is_file():
        return None
    summary = read_json(path)
    before, after = (finite_number(summary.get(when)) for when in ("before", "after"))
    return None if before is None or after is None else (f"heldout/{info.get('metric')}", before, after)


def run_pins(ref: RunRef, diagnoses: Diagnoses) -> list[dict[str, Any]]:
    """Return the findings and actions that a board draws; of a run that has ended, the findings of its diagnosis."""
    run = RunDir(ref.path)
    diagnosis = ended_diagnosis(ref, row(ref), diagnoses)
    if diagnosis is None:
        pins: list[dict[str, Any]] = run_events(run)["pins"]
        return pins
    actions = _pins([_action_event(line) for line in run.actions()])
    return sorted([*log_pins(diagnosis), *actions], key=lambda pin: pin["step"])


def _finding_event(event: Event) -> dict[str, Any]:
    finding, cleared = event.finding, event.cleared
    return {
        "step": event.step if cleared or finding.since_step is None else finding.since_step,
        "kind": "cleared" if cleared else finding.severity,
        "title": f"{finding.check} cleared" if cleared else f"{finding.check}: {finding.message}",
        "check": finding.check,
        "text": "no longer holds" if cleared else finding.message,
    }


def _action_event(line: Mapping[str, Any]) -> dict[str, Any]:
    text = describe_action(line)
    return {"step": line["step"], "kind": "action", "title": f"autopilot: {text}", "check": "autopilot", "text": text}


def recorded_steps(run: RunDir) -> list[int]:
    """Return the steps whose rollouts were recorded, oldest first."""
    folder = run.rollouts_file(0).parent
    return [] if folder.is_symlink() else [int(path.stem) for path in step_files(folder)]


def _numbers(curves: Curves) -> Table:
    # For readers without scripts, and for those who want digits.
    by_topic: dict[str, list[Sequence[Text]]] = {}
    for name, (mean, low, high) in curves.lines.items():
        measured = np.flatnonzero(np.isfinite(mean))
        if len(measured):
            ends = (float(mean[measured[0]]), float(mean[measured[-1]]), float(np.nanmin(low)), float(np.nanmax(high)))
            row: Sequence[Text] = (Span(name, "code"), *map(number, ends), f"{curves.steps[measured[-1]]}")
            by_topic.setdefault(topic_of(name), []).append(row)
    rows = [row for topic, topic_rows in by_topic.items() for row in (topic, *topic_rows)]
    return Table(("metric", *numbers("first", "last", "lowest", "highest", "at step")), rows)


def curves_json(curves: Curves) -> dict[str, Any]:
    """Return curves as a page's script takes them; a line of single steps has its values once."""
    return {
        "steps": curves.steps.tolist(),
        "lines": {
            name: [_json_values(line) for line in ((lines[0],) if curves.single else lines)]
            for name, lines in curves.lines.items()
        },
        "axes": {name: _json_values(values) for name, values in curves.axes.items()},
        "single": curves.single,
        "complete": curves.complete,
        "rows": curves.rows,
        "last": curves.last,
        "version": curves.version,
    }


def _json_values(values: np.ndarray) -> list[float | None]:
    return [
        float(f"{value:.{DIGITS}g}") if finite else None
        for value, finite in zip(values.tolist(), np.isfinite(values).tolist(), strict=True)
    ]


def run_version(run: RunDir) -> str:
    """Return what changes whenever the run has something new to show."""
    files = (run.metrics_file, run.findings_file, run.actions_file, run.info_file)
    return "-".join(f"{number}" for file in files for number in stamp(file))
