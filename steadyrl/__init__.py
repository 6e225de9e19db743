"""RL fine-tuning for language models that stays steady, and says why when it does not.

    import steadyrl

    run = steadyrl.run("examples/search.toml", ["run.steps=20"])
    print(run.metrics()[-1]["reward/mean"])
    print(steadyrl.sample(run, "put an item into a queue")[0].text)

``run``, ``sample``, ``RunDir``, ``load_config`` and ``write_report`` do things; the other names are what rewards,
tasks and algorithms of your own are written against. The loop itself is ``steadyrl.loop.train.train``. All of them are
imported when they are first asked for, so that ``import steadyrl`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from steadyrl.core.config import Config
    from steadyrl.core.config import load as load_config
    from steadyrl.core.errors import SteadyError
    from steadyrl.core.protocols import Algorithm, Task
    from steadyrl.core.rundir import RunDir
    from steadyrl.core.types import Batch, Group, Problem, Rollout, Sampling, Score
    from steadyrl.loop.launch import run, sample
    from steadyrl.show.report.write import write_report

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "Batch",
    "Config",
    "Group",
    "Problem",
    "Rollout",
    "RunDir",
    "Sampling",
    "Score",
    "SteadyError",
    "Task",
    "load_config",
    "run",
    "sample",
    "write_report",
]

_TYPES = ("Batch", "Group", "Problem", "Rollout", "Sampling", "Score")
_PLACES = dict.fromkeys(_TYPES, "steadyrl.core.types") | {
    "Algorithm": "steadyrl.core.protocols",
    "Config": "steadyrl.core.config",
    "RunDir": "steadyrl.core.rundir",
    "SteadyError": "steadyrl.core.errors",
    "Task": "steadyrl.core.protocols",
    "load_config": "steadyrl.core.config:load",
    "run": "steadyrl.loop.launch",
    "sample": "steadyrl.loop.launch",
    "write_report": "steadyrl.show.report.write",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'steadyrl' has no attribute '{name}'")
    module, _, own_name = _PLACES[name].partition(":")
    return getattr(importlib.import_module(module), own_name or name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
