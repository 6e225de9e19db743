"""Reward functions of one completion's text: ``lambda completion: 1.0 / len(completion)``.

The parameter ``completion`` gets the text, ``prompt`` the prompt's text, and any other parameter the column of the data
that has its name. A function whose parameters end with ``**columns`` gets all columns.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from steadyrl.loop.rewards.functions import AnyRewardFn, of_rollout, required


def is_for_text(function: Callable[..., Any]) -> bool:
    """Return whether a function takes one ``completion``."""
    return "completion" in inspect.signature(function).parameters


def columns_for_text(function: Callable[..., Any]) -> frozenset[str]:
    """Return the columns of the data without which a function of a completion cannot be called."""
    return required(function) - {"completion", "prompt"}


def from_text(function: Callable[..., Any]) -> AnyRewardFn:
    """Return a function of a completion as a reward of one rollout."""
    return of_rollout(function, lambda problem, rollout: {
        **problem.columns, "prompt": problem.prompt, "completion": rollout.text,
    })  # fmt: skip
