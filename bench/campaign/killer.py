"""Runs killed at random moments and at file operations, and resumed: they end as if nothing had happened.

Each trial forks a process that trains with the toy backend, so that a kill costs no start of Python.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.campaign.trial import Failure
from bench.kill_resume import outcome
from steadyrl import launch
from steadyrl.errors import SteadyError
from steadyrl.rundir import RunDir
from steadyrl.tasks.prompts import PromptsTask
from steadyrl.types import Problem

KILLS = 3  # of one run, at most
PATIENCE_S = 300.0  # for one process that trains some steps; the machine may be busy
STEPS = 8
ALGORITHMS = ("ppo", "grpo", "rloo", "reinforce", "raft", "rwr")
CURRICULA = ("uniform", "learnability", "plr", "bandit", "accel")
WRITES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.link")


class Prompts(PromptsTask):
    """A task whose problems have a difficulty and can be edited, for curricula that need one or the other."""

    def __init__(self, settings: PromptsTask.Settings, seed: int = 0) -> None:
        super().__init__(settings, seed)
        self.metric = "length"

    def mutate(self, problem: Problem, generator: np.random.Generator) -> Problem:
        """Return another problem like a given one."""
        word = str(generator.integers(1000))
        return replace(problem, id=f"{problem.id}-{word}", prompt=f"{problem.prompt} {word}")


def attack(rng: random.Random, folder: Path) -> Failure:
    """Kill one kind of run up to three times, resume it each time, and compare with the unbroken one."""
    algorithm, curriculum = rng.choice(ALGORITHMS), rng.choice(CURRICULA)
    pilot = rng.choice(("off", "act"))
    what = f"{algorithm}, {curriculum}, autopilot {pilot}"
    expected, seconds, operations = unbroken(algorithm, curriculum, pilot, folder / "whole")
    runs = folder / "killed"
    kills: list[str] = []
    for _ in range(KILLS):
        if rng.random() < 0.5:
            at, after = rng.randint(1, operations), None
        else:
            at, after = 0, rng.uniform(0.0, seconds)
        code, said = _in_child(lambda n=at: _train(algorithm, curriculum, pilot, runs, n), after)
        kills.append(f"operation {at}" if at else f"{after:.3f} s")
        if code == 0:
            break
        if code != -signal.SIGKILL:
            return f"{what}: killed at {kills}: the next start ended with {code}: {said}"
    else:
        code, said = _in_child(lambda: _train(algorithm, curriculum, pilot, runs, 0), None)
        if code != 0:
            return f"{what}: killed at {kills}: the last resume ended with {code}: {said}"
    whole = [RunDir(path.parent) for path in runs.glob("*/run.json")]
    finished = [run for run in whole if run.status == "finished"]
    if len(finished) != 1:
        return f"{what}: killed at {kills}: {len(finished)} of {len(whole)} runs are finished"
    return "" if outcome(finished[0]) == expected else f"{what}: killed at {kills}: the outcome is another"


_KNOWN: dict[tuple[str, str, str], tuple[Any, float, int]] = {}


def unbroken(algorithm: str, curriculum: str, pilot: str, folder: Path) -> tuple[Any, float, int]:
    """Return the outcome of the run that nothing disturbs, its seconds, and how many file operations it makes."""
    key = algorithm, curriculum, pilot
    if key not in _KNOWN:
        began = time.monotonic()
        code, said = _in_child(lambda: _count(algorithm, curriculum, pilot, folder), None)
        if code != 0:
            raise RuntimeError(f"the unbroken run of {key} failed: {said}")
        (run,) = (RunDir(path.parent) for path in folder.glob("*/run.json"))
        operations = int((folder / "operations").read_text())
        _KNOWN[key] = outcome(run), time.monotonic() - began, operations
    return _KNOWN[key]


def _config(algorithm: str, curriculum: str, pilot: str, folder: Path) -> dict[str, Any]:
    task: dict[str, Any] = {"name": "search", "args": {"corpus": "generated"}}
    if curriculum in ("bandit", "accel"):
        problems = folder.with_name("problems.jsonl")
        lines = (json.dumps({"prompt": f"say {i}", "difficulty": i % 3}) + "\n" for i in range(20))
        problems.write_text("".join(lines), encoding="utf-8")
        task = {"name": "bench.campaign.killer:Prompts", "args": {"path": str(problems)}}
    return {
        "task": task,
        "rewards": {"length": 0.1} if "path" in task["args"] else {"retrieval": 1.0, "length": 0.1},
        "backend": {"name": "toy"},
        "algorithm": {"name": algorithm},
        "curriculum": {"name": curriculum},
        "autopilot": {"mode": pilot, "kl_low": 1e-6, "kl_high": 2e-6},  # so narrow that it acts
        "run": {
            "folder": str(folder), "steps": STEPS, "checkpoint_every": 2, "rollouts_every": 3, "doctor_every": 2,
            "preflight": "off",
        },
        "rollout": {"prompts_per_step": 4, "samples_per_prompt": 4},
        "sampling": {"max_new_tokens": 6},
        "update": {"learning_rate": 0.05},
        "evaluate": {"problems": 4},
    }  # fmt: skip


def _train(algorithm: str, curriculum: str, pilot: str, folder: Path, kill_at: int) -> None:
    """Begin a run, or go on with the one that was killed; die at an operation on files, counted from 1, if asked to."""
    if kill_at:
        _watch_files(folder, lambda count: os.kill(os.getpid(), signal.SIGKILL) if count == kill_at else None)
    begun = sorted(path.parent for path in folder.glob("*/run.json")) if folder.is_dir() else []
    if begun:
        launch.run(resume=begun[-1])
    else:
        launch.run(_config(algorithm, curriculum, pilot, folder))


def _count(algorithm: str, curriculum: str, pilot: str, folder: Path) -> None:
    counts: list[int] = []
    _watch_files(folder, counts.append)
    launch.run(_config(algorithm, curriculum, pilot, folder))
    (folder / "operations").write_text(str(counts[-1]))


def _watch_files(folder: Path, seen: Callable[[int], object]) -> None:
    """Call ``seen`` with a running number before every operation that changes files below a folder."""
    number = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal number
        if event == "open":
            path, mode, _ = arguments
            writes = isinstance(mode, str) and any(letter in mode for letter in "wax+")
        else:
            path, writes = arguments[0] if arguments else None, event in WRITES
        if writes and isinstance(path, str | os.PathLike) and str(path).startswith(str(folder)):
            number += 1
            seen(number)

    sys.addaudithook(hook)


def _in_child(work: Callable[[], None], kill_after: float | None) -> tuple[int, str]:
    """Do something in a fork of this process; return its exit code (negative: the signal) and why it failed."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                work()
            code = 0
        except SteadyError as error:
            os.write(tell, str(error)[:2000].encode("utf-8", "replace"))
            code = 2
        except Exception as error:  # what no caller expects is what the campaign looks for
            os.write(tell, f"{type(error).__name__}: {error}"[:2000].encode("utf-8", "replace"))
        finally:
            os._exit(code)
    os.close(tell)
    until = time.monotonic() + (PATIENCE_S if kill_after is None else kill_after)
    while (done := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() >= until:
            os.kill(child, signal.SIGKILL)
            done = os.waitpid(child, 0)
            break
        time.sleep(0.005)
    with os.fdopen(told, "rb") as pipe:
        said = pipe.read().decode("utf-8", "replace")
    return os.waitstatus_to_exitcode(done[1]), said
