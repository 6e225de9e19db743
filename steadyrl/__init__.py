"""RL fine-tuning for language models that stays steady, and says why when it does not.

The names below are what user code needs: ``load_config``, ``open_session``, ``RunDir`` and ``write_report`` to run
things, the others to write rewards, tasks and algorithms against. The loop itself is ``steadyrl.train.train``.
They are imported when they are first asked for, so that ``import steadyrl`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from steadyrl.config import Config
    from steadyrl.config import load as load_config
    from steadyrl.errors import SteadyError
    from steadyrl.protocols import Algorithm, Task
    from steadyrl.report.write import write_report
    from steadyrl.rundir import RunDir
    from steadyrl.train import Session, open_session
    from steadyrl.types import Batch, Group, Problem, Rollout, Sampling, Score

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
    "Session",
    "SteadyError",
    "Task",
    "load_config",
    "open_session",
    "write_report",
]

_TYPES = ("Batch", "Group", "Problem", "Rollout", "Sampling", "Score")
_PLACES = dict.fromkeys(_TYPES, "steadyrl.types") | {
    "Algorithm": "steadyrl.protocols",
    "Config": "steadyrl.config",
    "RunDir": "steadyrl.rundir",
    "Session": "steadyrl.train",
    "SteadyError": "steadyrl.errors",
    "Task": "steadyrl.protocols",
    "load_config": "steadyrl.config:load",
    "open_session": "steadyrl.train",
    "write_report": "steadyrl.report.write",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'steadyrl' has no attribute '{name}'")
    module, _, own_name = _PLACES[name].partition(":")
    return getattr(importlib.import_module(module), own_name or name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
