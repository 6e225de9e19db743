"""Fine-tune language models by reinforcement learning that stays steady, and see why when it does not.

    import steadyrl

    run = steadyrl.train(
        model="Qwen/Qwen2.5-0.5B-Instruct",               # a hub name, a folder, "base", or a loaded model
        prompts="questions.jsonl",                        # or a list, a Dataset, a DataFrame
        reward=lambda completion, answer: float(answer in completion),
    )
    run                                                   # shows itself in a notebook
    run.plot(), run.doctor(), run.metrics_frame(), run.sample("a request"), run.export("my-model")
    steadyrl.diagnose("output/trainer_state.json")        # the doctor, on the log of another trainer

``Run`` opens a run that is there already. Rewards, tasks and algorithms of your own are written against ``Problem``,
``Rollout``, ``Score``, ``Task`` and ``Algorithm``; what a user can fix is raised as ``SteadyError``. All names are
imported when they are first asked for, so that ``import steadyrl`` costs nothing. `steadyrl --help` lists the command
line, and docs/start.md begins with both.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from steadyrl.core.config import Config as Config
    from steadyrl.core.config import load as load_config
    from steadyrl.core.errors import SteadyError as SteadyError
    from steadyrl.core.protocols import Algorithm as Algorithm
    from steadyrl.core.protocols import Task as Task
    from steadyrl.core.rundir import RunDir as RunDir
    from steadyrl.core.types import Batch as Batch
    from steadyrl.core.types import Group as Group
    from steadyrl.core.types import Problem as Problem
    from steadyrl.core.types import Rollout as Rollout
    from steadyrl.core.types import Sampling as Sampling
    from steadyrl.core.types import Score as Score
    from steadyrl.doctor.examine import diagnose
    from steadyrl.loop.launch import sample
    from steadyrl.loop.train import Watch as Watch
    from steadyrl.python.result import Run as Run
    from steadyrl.python.train import run, train
    from steadyrl.show.report.write import write_report

__version__ = "0.1.0"

# What does something. ``help(steadyrl)`` shows these; the types of ``dir(steadyrl)`` have pages of their own.
__all__ = ["diagnose", "load_config", "run", "sample", "train", "write_report"]

_TYPES = ("Batch", "Group", "Problem", "Rollout", "Sampling", "Score")
_PLACES = dict.fromkeys(_TYPES, "steadyrl.core.types") | {
    "Algorithm": "steadyrl.core.protocols",
    "Config": "steadyrl.core.config",
    "Run": "steadyrl.python.result",
    "RunDir": "steadyrl.core.rundir",
    "SteadyError": "steadyrl.core.errors",
    "Task": "steadyrl.core.protocols",
    "Watch": "steadyrl.loop.train",
    "diagnose": "steadyrl.doctor.examine",
    "load_config": "steadyrl.core.config:load",
    "run": "steadyrl.python.train",
    "sample": "steadyrl.loop.launch",
    "train": "steadyrl.python.train",
    "write_report": "steadyrl.show.report.write",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'steadyrl' has no attribute '{name}'")
    module, _, own_name = _PLACES[name].partition(":")
    return getattr(importlib.import_module(module), own_name or name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
