"""Run directories with changed files: commands read them, leave bad records out, or say in one line why not."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import random
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.campaign.trial import Failure, changed_json, changed_lines, changed_text, command
from steadyrl.core.rundir import RunDir
from steadyrl.loop import launch

COMMAND_S = 60.0  # of processor time: a report draws all its figures
FEW = ("--samples", "1", "--problems", "2")
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
    """Damage one or two files of a run, or the folder itself, and give it to one command."""
    run = RunDir(shutil.copytree(good_run(), folder / "run"))
    changed = [rng.choice((_change_text, _change_text, _change_bytes, _change_place, _add))(run, rng)]
    changed += [_change_text(run, rng)] if rng.random() < 0.3 else []
    asked = {
        "report": ["report", str(run.path)],
        "doctor": ["doctor", str(run.path)],
        "doctor of a folder": ["doctor", str(folder), "--full", "--report", str(folder / "diagnosis")],
        "doctor as JSON": ["doctor", str(run.path), "--json"],
        "compare": ["compare", "base", str(run.path), "--task", str(run.path), *FEW],
        "compare with a whole one": ["compare", str(good_run()), str(run.path), *FEW, "--task", str(good_run())],
        "sample": ["sample", str(run.path), "what is this"],
        "resume": ["train", "--resume", str(run.path), "run.steps=7"],
        "resume of what is finished": ["train", "--resume", str(run.path)],
    }
    (name,) = rng.choices(list(asked), [0.2 if "compare" in name or name == "report" else 1.0 for name in asked])
    room = rng.choice((0, 100, 5000, 60_000)) if rng.random() < 0.1 else None
    here = Path.cwd()
    os.chdir(folder)  # what a command writes beside the run stays in the trial's folder
    try:
        with _files_end_after(room):
            failure = command(asked[name], COMMAND_S)
    finally:
        os.chdir(here)
    return f"{name}: {failure} | {changed}, files of at most {room} bytes" if failure else ""


def _change_text(run: RunDir, rng: random.Random) -> str:
    """Change the text or the values of a file."""
    path = rng.choice(_files(run, ".json", ".jsonl", ".toml"))
    text = path.read_text(encoding="utf-8", errors="replace")
    change = changed_lines if path.suffix == ".jsonl" else changed_json if path.suffix == ".json" else changed_text
    path.write_bytes(changed_text(text, rng) if not text.strip() or not _is_json(path) else change(text, rng))
    return f"text of {path.relative_to(run.path)}"


def _change_bytes(run: RunDir, rng: random.Random) -> str:
    """Flip, cut or add bytes of the weights."""
    path = rng.choice(_files(run, ".npz"))
    data = bytearray(path.read_bytes())
    match rng.randrange(4):
        case 0:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 1:
            del data[rng.randrange(len(data)) :]
        case 2:
            data[:0] = rng.randbytes(rng.randint(1, 50))
        case _:
            at = rng.randrange(len(data))
            data[at : at + 200] = rng.randbytes(200)
    path.write_bytes(data)
    return f"bytes of {path.relative_to(run.path)}"


def _change_place(run: RunDir, rng: random.Random) -> str:
    """Remove a file or folder, put another in its place, or a link that leads nowhere."""
    places = sorted(path for path in run.path.rglob("*") if path.is_file() or path.is_dir())
    path, other = rng.sample(places, 2)
    what = rng.choice(("removed", "a folder", "a link to itself", "a link to nothing", "empty", "another's content"))
    content = other.read_bytes() if other.is_file() else b""
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    match what:
        case "a folder":
            path.mkdir()
        case "a link to itself":
            path.symlink_to(path.name)
        case "a link to nothing":
            path.symlink_to("nothing")
        case "empty":
            path.touch()
        case "another's content":
            path.write_bytes(content)
    return f"{path.relative_to(run.path)}: {what}"


def _add(run: RunDir, rng: random.Random) -> str:
    """Add what no run has: checkpoints and rollouts of strange numbers, parts of files, records of other steps."""
    strange = (
        "-1",
        "0000000",
        "999999999999999999999999",
        "1e9",
        "000003x",
        "\x1b[31m",
        "x" * 200,
        " ",
        "ü",
        ".hidden",
    )
    name = rng.choice(strange)
    match rng.randrange(5):
        case 0:
            shutil.copytree(run.checkpoint_folder(3), run.path / "checkpoints" / name)
        case 1:
            shutil.copytree(run.checkpoint_folder(3), run.checkpoint_folder(rng.choice((0, 7, 10**9, 10**30))))
        case 2:
            shutil.copy(rng.choice(_files(run, ".jsonl")), run.path / "rollouts" / f"{name}.jsonl")
        case 3:
            shutil.copy(rng.choice(_files(run, ".jsonl")), run.path / "evaluations" / f"{name}.jsonl")
        case _:
            with run.metrics_file.open("a", encoding="utf-8") as file:
                steps = rng.choice(([10**8], range(7, 40), [5] * 50, [-1, 2**63, 3]))
                file.writelines(
                    json.dumps({"step": n, "attempt": rng.randrange(3), "reward/mean": 1.0}) + "\n" for n in steps
                )
    return f"added {name!r}"


def _files(run: RunDir, *endings: str) -> list[Path]:
    return sorted(path for path in run.path.rglob("*") if path.suffix in endings and path.is_file())


def _is_json(path: Path) -> bool:
    """Say whether a file is still what its name says: it may have been changed before."""
    try:
        for text in path.read_text(encoding="utf-8").splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
            json.loads(text)
    except (ValueError, RecursionError):
        return path.suffix == ".toml"
    return True


@contextlib.contextmanager
def _files_end_after(size: int | None) -> Iterator[None]:
    """Let no file grow beyond a size, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (before[0] if size is None else size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
