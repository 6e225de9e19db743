"""Run directories with changed files: commands read them, leave bad records out, or say in one line why not."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import random
import shutil
import tempfile
from pathlib import Path

from bench.campaign.trial import Failure, changed_json, changed_lines, changed_text, command
from steadyrl import launch
from steadyrl.rundir import RunDir

COMMAND_S = 60.0  # of processor time: a report draws all its figures
CONFIG = {
    "task": {"name": "search", "args": {"corpus": "generated"}},
    "rewards": {"retrieval": 1.0, "length": 0.1},
    "backend": {"name": "toy"},
    "run": {"steps": 6, "checkpoint_every": 3, "rollouts_every": 2, "preflight": "off", "doctor_every": 3},
    "rollout": {"prompts_per_step": 4},
    "sampling": {"max_new_tokens": 6},
    "evaluate": {"problems": 4},
    "curriculum": {"name": "plr"},
    "autopilot": {"mode": "advise"},
}


@functools.cache
def _home() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that is removed when the campaign ends."""
    return tempfile.TemporaryDirectory(prefix="campaign-")


@functools.cache
def good_run() -> Path:
    """Make the run whose copies are changed: of the toy backend, with every kind of file."""
    folder = Path(_home().name)
    with contextlib.redirect_stdout(io.StringIO()):
        run = launch.run({**CONFIG, "run": {**CONFIG["run"], "folder": str(folder)}})
    return run.path


def attack(rng: random.Random, folder: Path) -> Failure:
    """Change one or two files of a run, and give it to one command."""
    run = RunDir(shutil.copytree(good_run(), folder / "run"))
    files = sorted(path for path in run.path.rglob("*") if path.suffix in (".json", ".jsonl") and path.is_file())
    changed = rng.sample(files, rng.choice((1, 1, 2)))
    for path in changed:
        text = path.read_text(encoding="utf-8")
        change = changed_text if not text.strip() else changed_lines if path.suffix == ".jsonl" else changed_json
        path.write_bytes(change(text, rng))
    asked = {
        "report": ["report", str(run.path)],
        "doctor": ["doctor", str(run.path)],
        "compare": ["compare", "base", str(run.path), "--task", str(run.path), "--samples", "1", "--problems", "2"],
        "sample": ["sample", str(run.path), "what is this"],
        "resume": ["train", "--resume", str(run.path), "run.steps=7"],
    }
    name = rng.choice(list(asked))
    here = Path.cwd()
    os.chdir(folder)  # what a command writes beside the run stays in the trial's folder
    try:
        failure = command(asked[name], COMMAND_S)
    finally:
        os.chdir(here)
    return f"{failure} | {[str(path.relative_to(run.path)) for path in changed]}" if failure else ""
