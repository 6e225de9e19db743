"""Runs that are killed, or run out of disk or memory, and are resumed: they end as if nothing had happened.

Each trial forks a process that trains, so that a kill costs no start of Python. A kill comes at a random moment, or
before an operation on files. A full disk refuses new files from an operation on, or lets none grow. Memory is short by
some MiB. Then the run goes on, and what it leaves is compared with the run that nothing disturbed: every step's
metrics, recorded rollouts, choices of problems, the autopilot's actions, held-out answers, and the last checkpoint to
the last bit.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.campaign.child import Fault, fair_judge, in_child, watch_files
from bench.campaign.kinds import REAL, TOY, Kind
from bench.campaign.model_folders import good_folder
from bench.campaign.trial import Failure
from steadyrl.core import scratch
from steadyrl.core.metrics import repeatable
from steadyrl.core.rundir import RunDir, read_lines
from steadyrl.loop import launch

MOST_FAULTS = 6  # that one run meets
KILLS = ("operation", "moment")
SHARES = {"operation": 10, "moment": 5, "full": 2, "size": 1, "memory": 0.3}  # of the faults
WORDS = {
    "operation": "a run killed at an operation on files ends as if nothing had happened",
    "moment": "a run killed at a random moment ends as if nothing had happened",
    "full": "a run that can make no more files says so in one line, and goes on later as if nothing had happened",
    "size": "a run whose files can grow no more says so in one line, and goes on later as if nothing had happened",
    "memory": "a run that is short of memory goes on later as if nothing had happened",
}
CLEAN = "nothing of a killed run stays in the folder for temporary files"


@dataclass(frozen=True)
class Whole:
    """A run that nothing disturbed: what it left, its seconds, its operations on files, and its largest file."""

    left: dict[str, Any]
    seconds: float
    operations: int
    largest: int


class Killer:
    """Tries kinds of runs, and counts what happened to them.

    Attributes:
        met: How often each kind of fault has hit a run.
        failed: How often a run that it hit has not ended as it should.
    """

    def __init__(self, kinds: tuple[Kind, ...] | None = None) -> None:
        self._kinds = kinds if kinds is not None else tuple(kind for kind in (*TOY, *REAL) if _can_run(kind))
        self._whole: dict[str, Whole] = {}
        self._open = contextlib.ExitStack()
        self._judge = ""
        self.met: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()

    def take(self, text: str) -> None:
        """Try only the kinds whose names hold a text."""
        self._kinds = tuple(kind for kind in self._kinds if text in kind.name)

    def attack(self, rng: random.Random, folder: Path) -> Failure:
        """Let up to six things happen to one run, go on with it each time, and compare with the unbroken one."""
        (kind,) = rng.choices(self._kinds, [kind.share for kind in self._kinds])
        whole = self._unbroken(kind, folder / "whole")
        place = folder / "broken"
        place.mkdir()
        met: list[Fault] = []
        failure = self._break(kind, rng, whole, place, met)
        if not failure:
            (run,) = (path.parent for path in place.glob("runs/*/run.json") if RunDir(path.parent).status == "finished")
            failure = _differences(traces(RunDir(run)), whole.left)
        remains = _remains(place / "tmp")
        for fault in {fault.kind for fault in met} or {"none"}:
            self.failed[fault] += bool(failure)
        self.met[CLEAN] += 1
        self.failed[CLEAN] += bool(remains)
        failure = failure or (f"left in the folder for temporary files: {remains}" if remains else "")
        return f"{kind.name}: {', '.join(map(str, met)) or 'nothing happened'}: {failure}" if failure else ""

    def rows(self) -> list[tuple[str, int, int]]:
        """Return a row of the table for each kind of fault."""
        names = {**WORDS, CLEAN: CLEAN}
        return [(words, self.met[name], self.failed[name]) for name, words in names.items() if self.met[name]]

    def close(self) -> None:
        """End the judge's server."""
        self._open.close()

    def _break(self, kind: Kind, rng: random.Random, whole: Whole, place: Path, met: list[Fault]) -> Failure:
        """Start the run and go on with it until nothing happens to it any more; note what did."""
        config = kind.config(place / "runs", self._judge, _model(kind))
        for _ in range(MOST_FAULTS):
            fault = _fault(rng, whole)
            code, said = in_child(lambda: _train(config, place), place, fault)
            if code == 0:
                break
            self.met[fault.kind] += 1
            met.append(fault)
            if wrong := _wrong_end(fault, code, said):
                return wrong
        else:
            code, said = in_child(lambda: _train(config, place), place, Fault("none"))
            if code != 0:
                return f"the last resume ended with {code}: {said}"
        statuses = [RunDir(path.parent).status for path in sorted(place.glob("runs/*/run.json"))]
        return "" if statuses.count("finished") == 1 else f"the runs are {statuses}"

    def _unbroken(self, kind: Kind, place: Path) -> Whole:
        """Make the run that nothing disturbs, once for each kind."""
        if kind.name not in self._whole:
            place.mkdir()
            if kind.judged and not self._judge:
                self._judge = self._open.enter_context(fair_judge())
            if kind.needs == "torch":
                good_folder("llama")  # here, so that no child has to load torch and make the model
            config = kind.config(place / "runs", self._judge, _model(kind))
            began = time.monotonic()
            code, said = in_child(lambda: _count(config, place), place, Fault("none"))
            if code != 0:
                raise RuntimeError(f"the unbroken run of '{kind.name}' failed: {said}")
            (run,) = (RunDir(path.parent) for path in place.glob("runs/*/run.json"))
            if kind.acts and not any(line.get("done") for line in run.actions()):
                raise RuntimeError(f"the autopilot did nothing in '{kind.name}'")
            files = [path.stat().st_size for path in run.path.rglob("*") if path.is_file()]
            operations = int((place / "operations").read_text())
            self._whole[kind.name] = Whole(traces(run), time.monotonic() - began, operations, max(files))
        return self._whole[kind.name]


def _train(config: dict[str, Any], place: Path) -> None:
    """Begin a run, or go on with the one that was begun; one that has ended is left as it is."""
    begun = sorted(path.parent for path in place.glob("runs/*/run.json"))
    if not begun:
        launch.run(config)
    elif RunDir(begun[-1]).status != "finished":
        launch.run(resume=begun[-1])


def _count(config: dict[str, Any], place: Path) -> None:
    counts: list[int] = []
    watch_files(place, lambda count, _: counts.append(count))
    _train(config, place)
    operations = counts[-1]
    (place / "operations").write_text(str(operations))


def traces(run: RunDir) -> dict[str, Any]:
    """Return all that a run leaves which must not depend on what happened to it."""
    newest = run.checkpoint_folder(run.checkpoints()[-1])
    # What was asked of a judge counts since the line before, and a process may end between.
    lines = [
        {name: value for name, value in repeatable(record).items() if not name.startswith("judge/")}
        for record in run.metrics()
    ]
    files = [str(path.relative_to(run.path)) for path in run.path.rglob("*") if path.is_file()]
    chosen = {record["step"]: record["choices"] for record in read_lines(run.curriculum_file)}
    return {
        "metrics": json.dumps(lines),
        "rollouts": {str(path): _content(run.path / path) for path in map(Path, files) if path.parts[0] == "rollouts"},
        "choices": json.dumps(chosen, sort_keys=True),
        "actions": json.dumps(run.actions()),
        "answers": {path.name: path.read_text(encoding="utf-8") for path in (run.path / "evaluations").iterdir()},
        "checkpoints": sorted(path.name for path in newest.parent.iterdir()),
        "weights": {str(path.relative_to(newest)): _content(path) for path in sorted(newest.rglob("*"))},
        "files": sorted(set(files) - {run.findings_file.name}),  # a finding may be about the speed of a step
    }


def _differences(found: dict[str, Any], expected: dict[str, Any]) -> Failure:
    """Name what differs; of lists of files also how, and of metrics the first step with its values."""
    other = [name for name, value in found.items() if value != expected[name]]
    files = sorted(set(found["files"]) ^ set(expected["files"]))
    return f"other than undisturbed: {', '.join(other)} {files}{_first_step(found, expected)}" if other else ""


def _first_step(found: dict[str, Any], expected: dict[str, Any]) -> str:
    """Return the first line of metrics that differs, and its values here and in the undisturbed run."""
    for line, whole in itertools.zip_longest(
        json.loads(found["metrics"]), json.loads(expected["metrics"]), fillvalue={}
    ):
        if line != whole:
            names = sorted(name for name in {**line, **whole} if line.get(name) != whole.get(name))
            values = ", ".join(f"{name} {line.get(name)} for {whole.get(name)}" for name in names[:8])
            return f"; first at step {line.get('step', whole.get('step'))} in {len(names)} metrics: {values}"
    return ""


def _content(path: Path) -> Any:
    if path.suffix == ".npz":  # a zip has the time in it
        with np.load(path, allow_pickle=False) as saved:
            return {name: saved[name].tobytes() for name in saved.files}
    return path.read_bytes() if path.is_file() else None


def _can_run(kind: Kind) -> bool:
    return not kind.needs or importlib.util.find_spec(kind.needs) is not None


def _model(kind: Kind) -> Path | None:
    return good_folder("llama") if kind.needs == "torch" else None


def _fault(rng: random.Random, whole: Whole) -> Fault:
    (kind,) = rng.choices(list(SHARES), list(SHARES.values()))
    at = {
        "operation": lambda: rng.randint(1, whole.operations),
        "moment": lambda: rng.uniform(0.0, whole.seconds),
        "full": lambda: rng.randint(1, whole.operations),
        "size": lambda: rng.choice((0, 1, 4096, rng.randint(0, whole.largest))),
        "memory": lambda: rng.choice((0.0, 1.0, rng.uniform(0.0, 64.0))),
    }[kind]()
    return Fault(kind, at)


def _wrong_end(fault: Fault, code: int, said: str) -> Failure:
    """Say why a fault should not have ended a process in this way."""
    if fault.kind in KILLS and code != -signal.SIGKILL:
        return f"the process ended by itself with {code}: {said}"
    if fault.kind in ("full", "size") and (code != 2 or not said.strip() or "\n" in said):
        return f"the process ended with {code}: {said}"
    return ""


def _remains(folder: Path) -> list[str]:
    """Return what is left of temporary files after the sweep that the next program makes."""
    before, os.environ["TMPDIR"] = os.environ.get("TMPDIR"), str(folder)
    scratch.tempfile.tempdir = str(folder)
    try:
        scratch.sweep()
    finally:
        scratch.tempfile.tempdir = None
        os.environ.pop("TMPDIR")
        if before is not None:
            os.environ["TMPDIR"] = before
    return sorted(path.name for path in itertools.islice(folder.iterdir(), 5)) if folder.is_dir() else []
