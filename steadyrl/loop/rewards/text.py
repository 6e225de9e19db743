"""Reward functions of one completion's text: ``lambda completion: 1.0 / len(completion)``.

The parameter ``completion`` gets the text, ``prompt`` the prompt's text, and any other parameter the column of the data
that has its name. A function whose parameters end with ``**columns`` gets all columns.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from steadyrl.core.types import Problem, Rollout
from steadyrl.loop.rewards.functions import AnyRewardFn
from steadyrl.loop.rewards.waiting import is_async

_TEXTS = frozenset({"completion", "prompt"})


def is_for_text(function: Callable[..., Any]) -> bool:
    """Return whether a function takes one ``completion``."""
    return "completion" in inspect.signature(function).parameters


def columns_for_text(function: Callable[..., Any]) -> frozenset[str]:
    """Return the columns of the data without which a function of a completion cannot be called."""
    parameters = inspect.signature(function).parameters.values()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(p.name for p in parameters if p.kind in named and p.default is p.empty) - _TEXTS


def from_text(function: Callable[..., Any]) -> AnyRewardFn:
    """Return a function of a completion as a reward of one rollout, asynchronous where it is."""
    parameters = inspect.signature(function).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())

    def reward(problem: Problem, rollout: Rollout) -> Any:
        available = {**problem.columns, "prompt": problem.prompt, "completion": rollout.text}
        return function(**{key: value for key, value in available.items() if takes_all or key in parameters})

    async def async_reward(problem: Problem, rollout: Rollout) -> Any:
        return await reward(problem, rollout)

    return async_reward if is_async(function) else reward
