"""All mutable state of a run on disk: the backend's weights and optimizer, and one small ``State``.

A checkpoint is written into a folder of another name and renamed when it is complete, with a marker written last.
Whatever lacks the marker is no checkpoint.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from steadyrl.errors import AccessError, CheckpointError, EngineError
from steadyrl.protocols import Backend
from steadyrl.rundir import DONE, RunDir, append_line

_STATE = "state.json"


@dataclass
class State:
    """What the loop needs to go on.

    Attributes:
        step: Steps that are finished.
        updates: Optimizer steps so far: the policy's version.
        problems_drawn: For the order of problems.
        tokens: Completion tokens sampled so far.
        algorithm: The algorithm's numbers.
        curriculum: What the curriculum remembers, see ``curriculum.Memory.plain``.
        autopilot: The autopilot's, and the settings that it changed, by their names.
    """

    step: int = 0
    updates: int = 0
    problems_drawn: int = 0
    tokens: int = 0
    algorithm: dict[str, float] = field(default_factory=dict)
    curriculum: dict[str, Any] = field(default_factory=dict)
    autopilot: dict[str, float | str] = field(default_factory=dict)


def save(run: RunDir, backend: Backend, state: State, keep: int) -> Path:
    """Write a checkpoint and remove all but the newest ``keep``.

    Raises:
        AccessError: The disk is full or not writable.
    """
    folder = run.checkpoint_folder(state.step)
    part = folder.with_name(folder.name + ".part")
    try:
        for old in (part, folder):
            if old.exists():
                shutil.rmtree(old)
        part.mkdir(parents=True)
        backend.save(part)
        (part / _STATE).write_text(json.dumps(asdict(state)), encoding="utf-8")
        (part / DONE).touch()
        part.replace(folder)
        for step in run.checkpoints()[:-keep]:
            shutil.rmtree(run.checkpoint_folder(step))
    except OSError as error:
        raise AccessError(f"cannot write the checkpoint '{folder}': {error}; free some space and resume") from error
    return folder


@contextmanager
def kept(
    run: RunDir, backend: Backend, state: State, keep: int, record: Mapping[str, Any] | None = None
) -> Iterator[None]:
    """Leave a checkpoint where an outside engine (a judge, a sampler's server) ends the run: the policy is sound.

    Args:
        run: Where to.
        backend: As ``state`` says: nothing may have been trained since.
        state: What to go on from.
        keep: See ``save``.
        record: The metrics of the step that ``state`` ends with, where they are not written yet.
    """
    try:
        yield
    except EngineError:
        if record is not None:
            append_line(run.metrics_file, record)
        save(run, backend, state, keep)
        raise


def forget_after(run: RunDir, step: int) -> None:
    """Remove the checkpoints later than ``step``: the run went back, and a resume must not start from them."""
    for later in run.checkpoints():
        if later > step:
            shutil.rmtree(run.checkpoint_folder(later))


def load(run: RunDir, backend: Backend, step: int | None = None) -> State | None:
    """Read a complete checkpoint into the backend and return its state, or None if there is none.

    Args:
        run: Whose.
        backend: Where to.
        step: One of ``run.checkpoints()``; None takes the newest.

    Raises:
        CheckpointError: It is damaged.
    """
    steps = run.checkpoints()
    if not steps:
        return None
    folder = run.checkpoint_folder(steps[-1] if step is None else step)
    try:
        state = State(**json.loads((folder / _STATE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"the checkpoint '{folder}' is damaged ({_STATE}: {error}); delete that folder to resume from an earlier "
            "one"
        ) from error
    backend.load(folder)
    return state
