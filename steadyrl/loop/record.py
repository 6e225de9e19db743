"""What a run says of itself in run.json: command, commit, packages, machine, status, times."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from steadyrl.backends.torch.device_memory import memory_now
from steadyrl.core.config import Config, dump
from steadyrl.core.errors import AccessError, SteadyError, exception_line, without_keys
from steadyrl.core.rundir import RunDir, file_digests, write_json, write_text
from steadyrl.loop import checkpoint
from steadyrl.loop.evaluate import out_of_patience
from steadyrl.loop.train import Session

_PACKAGES = tuple("steadyrl numpy scipy torch transformers tokenizers peft safetensors mlx mlx-lm".split())


def begin(config: Config, text: str) -> RunDir:
    """Make a run directory that can be resumed from its first moment, with the text of the user's config file.

    Raises:
        AccessError: It cannot be written; nothing of it is left.
    """
    task, algorithm = (re.split("[:.]", name)[-1] for name in (config.task.name, config.algorithm.name))
    run = RunDir.create(config.run.folder, f"{algorithm}-{task}-s{config.run.seed}")
    info = {
        "id": run.path.name,
        "task": config.task.name,
        "algorithm": config.algorithm.name,
        "model": config.model.path,
        "seed": config.run.seed,
        "command": without_keys(shlex.join(["steadyrl", *sys.argv[1:]])),
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": _packages(),
        "machine": {"system": platform.platform(), "processor": platform.machine(), "cores": os.cpu_count()},
        "status": "running",
        "error": None,
        "started": time.time(),
        "ended": None,
        "processor_s": 0.0,
        "memory": None,
        "attempt": 0,
        "process": _process(),
    }
    try:
        write_text(run.config_file, without_keys(text))  # comments may hold some
        write_json(run.resolved_file, dump(config))
        write_json(run.info_file, info)
    except AccessError:
        shutil.rmtree(run.path, ignore_errors=True)  # a directory without run.json is no run
        raise
    return run


def begin_again(run: RunDir, config: Config, accepted: Mapping[str, Any] | None) -> int:
    """Note that a run goes on, with which settings, and from when on with changed data; return the attempt's number."""
    info = run.info()
    attempt: int = 1 + max(info.get("attempt", 0), *(record["attempt"] for record in run.metrics()), 0)
    changes: dict[str, Any] = {"status": "running", "error": None, "ended": None, "best": None, "stopped_early": None}
    # A run that was killed did not say what it had spent.
    processor_s = None if info.get("ended") is None else info.get("processor_s")
    changes |= {"processor_s": processor_s, "attempt": attempt, "process": _process()}
    steps = 1 + max((record["step"] for record in run.metrics()), default=-1)
    if accepted is not None:
        acceptance = {"step": max(run.checkpoints(), default=0), "time": time.time(), "data": dict(accepted)}
        changes["accepted_data"] = [*(info.get("accepted_data") or ()), acceptance]
    write_settings(run, config, info | changes)
    # In a run that trains longer it is that of one step among others; one killed at its very end makes no more steps.
    for name in ("", *run.heldout_sets()):
        if (after := run.evaluation_file("after", name)).is_file() and 0 < steps < config.run.steps:
            after.replace(run.evaluation_file(f"{steps:06d}", name))
    return attempt


def write_settings(run: RunDir, config: Config, info: Mapping[str, Any]) -> None:
    """Write the settings that a run goes on with, and run.json with their digest: an edit by hand is another one."""
    write_json(run.resolved_file, dump(config))
    code = (info.get("code") or {}) | file_digests({run.resolved_file.name: run.resolved_file})
    write_json(run.info_file, {**info, "code": code})


def add_model(run: RunDir, session: Session) -> None:
    """Record what is trained, and what evaluations compare."""
    policy = session.backend.describe()
    model = policy.get("model", run.info().get("model"))
    metric = session.task.metric or "reward"  # "" is the weighted total
    _update_info(run, metric=metric, model=model, policy=policy, heldout=len(session.heldout))


def add_origin(run: RunDir, data: Mapping[str, Any], tokenizer: str | None, code: Mapping[str, str]) -> None:
    """Record what the run began with: its problems, its tokenizer, and the files of the user's own parts."""
    _update_info(run, data=dict(data), tokenizer=tokenizer, code=dict(code))


def close(run: RunDir, status: str, config: Config, **spent: Any) -> None:
    """Record how the run ended, what it ``spent`` (see ``recording_end``), its best score, and why it stopped early."""
    state, patience = checkpoint.read_state(run, run.checkpoints()[-1]), config.evaluate.patience
    stop_reason: dict[str, float] = {}
    if state.step < config.run.steps and out_of_patience(patience, state):
        stop_reason = {"patience": patience}
    elif state.step < config.run.steps and status == "finished" and config.run.target is not None:
        stop_reason = {"target": config.run.target}
    _update_info(
        run,
        status=status,
        ended=time.time(),
        best=None if state.best is None else asdict(state.best),
        stopped_early={"step": state.step, **stop_reason} if stop_reason else None,
        **spent,
    )


@contextmanager
def recording_end(run: RunDir) -> Iterator[Callable[[], dict[str, Any]]]:
    """Record an error or an interrupt that ends a run which has not ended yet, and let it pass on.

    Yields a function that returns the processor time and the memory of the run so far. They are written together with
    how the run ended: a kill after the end finds nothing half-written.
    """
    earlier, began, began_at = run.info().get("processor_s"), _processor_seconds(), time.monotonic()

    def spent() -> dict[str, Any]:
        processor_s = None if earlier is None else round(earlier + _processor_seconds() - began, 2)
        elapsed_s = round(time.monotonic() - began_at, 2)  # the clock of "started" and "ended" may jump
        return {"processor_s": processor_s, "elapsed_s": elapsed_s, "memory": asdict(memory_now())}

    try:
        yield spent
    except BaseException as error:
        status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        message = without_keys(str(error)) if isinstance(error, SteadyError) else exception_line(error)
        with suppress(SteadyError):  # on a full disk, or without run.json, what ended the run is what its user must see
            if run.status == "running":
                _update_info(run, status=status, error=message, ended=time.time(), **spent())
        raise


def _processor_seconds() -> float:
    """Return the processor time of this process and of its children that have ended."""
    return sum(os.times()[:4])


def _update_info(run: RunDir, **values: Any) -> None:
    write_json(run.info_file, {**run.info(), **values})


@cache
def _packages() -> dict[str, str]:
    """Return the versions of what is installed, looked up once: a study begins many runs in one process."""
    versions = {}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def _process() -> dict[str, Any]:
    """Return which process writes the run, so that a reader can tell a run that goes on from a killed one."""
    return {"id": os.getpid(), "node": platform.node()}


def _commit() -> str | None:
    """Return the commit of the folder that the run was started in, where git knows one."""
    git = shutil.which("git")
    if git is None:
        return None
    done = subprocess.run([git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
