"""The pages of studies: which experiments there are, how far their runs are, and what they answered.

A study is a folder with a plan.json and runs/ARM-sSEED-DIGEST/RUN, as `steadyrl study run` makes it. Verdicts are those
of the study's report, which is written when its runs are done.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from steadyrl.core.errors import RunError
from steadyrl.core.metrics import finite_number
from steadyrl.core.rundir import JOBS, RunDir, read_json
from steadyrl.lab.measure import heldout_mean
from steadyrl.lab.study.file import HELDOUT
from steadyrl.show.web.folder import Folder, RunRef, id_of
from steadyrl.show.web.overview import Row, last_records, row
from steadyrl.show.web.run_page import source

MOST_SHOWN = 7  # curves in one picture, as many as there are colours
VERDICTS = ("supported", "refuted", "undecided", "not asked")
_KEY = re.compile(r"(?P<arm>[a-z0-9][a-z0-9._-]*)-s(?P<seed>\d{1,9})-[0-9a-f]{8}")
Kind = TypeVar("Kind", str, list[Any], dict[str, Any])
_MOST_BYTES = 4 << 20  # of plan.json and summary.json


@dataclass(frozen=True)
class Study:
    """A study of the folder."""

    id: str  # its name in addresses
    name: str  # of its folder, below the one that is served
    path: Path
    runs: Mapping[tuple[str, int], RunRef]  # the newest run of each experiment and seed, by both


def find_studies(folder: Folder) -> list[Study]:
    """Return the studies that have a run, sorted by name."""
    by_study: dict[Path, dict[tuple[str, int], RunRef]] = {}
    for ref in folder.runs():
        match, study = _KEY.fullmatch(ref.path.parent.name), ref.path.parent.parent.parent
        inside = ref.path.parent.parent.name == JOBS and study.is_relative_to(folder.root)
        if ref.kind == "run" and match and inside and folder.file(study / "plan.json"):
            runs = by_study.setdefault(study, {})
            key = match["arm"], int(match["seed"])
            # Names of run directories begin with the time of their start.
            runs[key] = max(runs.get(key, ref), ref, key=lambda run: run.path.name)
    names = {path: folder.name_of(path) for path in sorted(by_study)}
    return [Study(id_of(name), name, path, by_study[path]) for path, name in names.items()]


def studies_view(folder: Folder) -> dict[str, Any]:
    """Return what the table of all studies shows."""
    return {
        "section": "studies",
        "root": folder.root.name,
        "studies": [_head(folder, study) for study in find_studies(folder)],
    }


def study_view(folder: Folder, study_id: str, arms: Sequence[str]) -> dict[str, Any]:
    """Return what the page of a study shows, with the curves of the experiments ``arms``, or else of the first.

    Raises:
        RunError: There is no such study.
    """
    study = next((study for study in find_studies(folder) if study.id == study_id), None)
    if study is None:
        raise RunError(f"there is no study '{study_id}' in '{folder.root}'; it may have been moved, or have no run yet")
    head = _head(folder, study)
    first = {arm: study.runs[arm, min(seeds)] for arm, seeds in head["seeds_of"].items() if seeds}
    charted = [arm for arm in first if arm in arms][:MOST_SHOWN] or list(first)[:MOST_SHOWN]
    return {
        **head,
        "section": "studies",
        "rows": [_arm(study, head, arm, charted, first) for arm in head["arms"]],
        "charted": [first[arm] for arm in charted],
        "sources": [source(first[arm], arm) for arm in charted],
        "most_shown": MOST_SHOWN,
    }


def _head(folder: Folder, study: Study) -> dict[str, Any]:
    plan, summary = (_read(folder, study.path / name) for name in ("plan.json", "report/summary.json"))
    described = _read_as(plan.get("study"), dict)
    arm_plans = {str(arm["name"]): arm for arm in _mappings(described.get("arms")) if isinstance(arm.get("name"), str)}
    expectations = _read_as(plan.get("expect"), dict)
    arms = list(dict.fromkeys([*arm_plans, *expectations, *(arm for arm, _ in study.runs)]))
    seeds = [seed for seed in _read_as(described.get("seeds"), list) if type(seed) is int]
    planned = sorted({*seeds, *(seed for _, seed in study.runs)})
    rows = {key: row(ref) for key, ref in study.runs.items()}
    states = {key: _state(summary, *key, run_row) for key, run_row in rows.items()}
    verdicts = Counter(_verdict(summary, arm) for arm in arms)
    return {
        "id": study.id,
        "name": study.name,
        "title": _read_as(described.get("title"), str) or study.name,
        "question": _read_as(described.get("question"), str),
        "file": _read_as(described.get("file"), str) or f"{study.path.name}.toml",
        "metric": _read_as(plan.get("metric"), str),
        "quick": described.get("quick") is True,
        "arm_plans": arm_plans,
        "arms": arms,
        "seeds": planned,
        "seeds_of": {arm: [seed for seed in planned if (arm, seed) in study.runs] for arm in arms},
        "states": states,
        "done": sum(  # a warm start is no experiment
            state in ("finished", "ended by a rule")
            for (arm, _), state in states.items()
            if arm in arm_plans or not arm_plans
        ),
        "running": sum(state == "running" for state in states.values()),
        "total": len(arm_plans) * len(seeds) if arm_plans and seeds else None,
        "verdicts": [(word, verdicts[word]) for word in VERDICTS if verdicts[word]],
        "summary": summary,
        "run_rows": rows,
        "time": max((run_row.time for run_row in rows.values() if run_row.time is not None), default=None),
    }


def _arm(
    study: Study, head: Mapping[str, Any], arm: str, charted: Sequence[str], first: Mapping[str, RunRef]
) -> dict[str, Any]:
    plan, summary = head["arm_plans"].get(arm, {}), _read_as(head["summary"].get(arm), dict)
    base = _read_as(plan.get("from"), str)
    changed = {key: _read_as(values, list) for key, values in _read_as(plan.get("changed"), dict).items()}
    return {
        "name": arm,
        "title": _read_as(plan.get("title"), str),
        "base": base,
        "changed": [(key, *map(_value, values)) for key, values in changed.items() if len(values) == 2],
        "verdict": _verdict(head["summary"], arm),
        "finding": _read_as(summary.get("finding"), str),
        "expectations": [
            {"says": _read_as(expectation.get("says"), str), "word": _read_as(expectation.get("verdict"), str),
             "values": _numbers(expectation.get("values")), "others": _numbers(expectation.get("others"))}
            for expectation in _mappings(summary.get("expectations"))
        ],
        "cells": [_cell(study, head, arm, seed) for seed in head["seeds"]],
        "number": charted.index(arm) + 1 if arm in charted else None,
        "compare": f"run={first[base].id}&run={first[arm].id}" if base in first and arm in first else "",
    }  # fmt: skip


def _cell(study: Study, head: Mapping[str, Any], arm: str, seed: int) -> dict[str, Any]:
    ref = study.runs.get((arm, seed))
    if ref is None:
        return {"seed": seed, "run": None}
    run_row: Row = head["run_rows"][arm, seed]
    run, (when, _, part) = RunDir(ref.path), head["metric"].partition("/")
    value: float | None = None
    if when in HELDOUT:
        with suppress(RunError):  # an evaluation that cannot be read is none
            value = heldout_mean(run, when, part)
    elif last := last_records(run.metrics_file, 1):
        value = finite_number(last[-1].get(head["metric"]))
    return {
        "seed": seed,
        "run": ref.id,
        "state": head["states"][arm, seed],
        "step": run_row.step,
        "steps": run_row.steps,
        "value": value,
        "finding": run_row.finding,
    }


def _state(summary: Mapping[str, Any], arm: str, seed: int, run_row: Row) -> str:
    """Return how far a run is; one that a rule of the study ended is interrupted for itself, and done for the study."""
    runs = _mappings(_read_as(summary.get(arm), dict).get("runs"))
    by_rule = any(run.get("seed") == seed and run.get("state") == "ended by a rule" for run in runs)
    return "ended by a rule" if by_rule and run_row.status in ("interrupted", "finished") else run_row.status


def _verdict(summary: Mapping[str, Any], arm: str) -> str:
    """Return the verdict of the study's report, "" before there is one."""
    word = _read_as(summary.get(arm), dict).get("verdict")
    return word if word in VERDICTS else ""


def _read(folder: Folder, path: Path) -> dict[str, Any]:
    """Return a JSON object of a study, empty where the file is missing, too large or damaged."""
    if folder.file(path) is None or path.stat().st_size > _MOST_BYTES:
        return {}
    try:
        return read_json(path)
    except RunError:
        return {}  # a study whose plan cannot be read still shows its runs


def _value(value: Any) -> str:
    return "not set" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)


def _read_as(value: Any, kind: type[Kind]) -> Kind:
    """Return a value of a file that somebody may have changed; an empty one where it is of another kind."""
    return value if isinstance(value, kind) else kind()


def _mappings(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in _read_as(value, list) if isinstance(entry, dict)]


def _numbers(value: Any) -> list[float]:
    return [number for entry in _read_as(value, list) if (number := finite_number(entry)) is not None]
