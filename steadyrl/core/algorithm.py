"""Open an algorithm, and check what its functions take and return.

Own algorithms are written by hand, and a wrong shape would only fail deep inside a backend, or train on numbers that
nobody meant. The built-in ones pass through the same checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from steadyrl.core import plugins
from steadyrl.core.arguments import takes
from steadyrl.core.errors import ConfigError
from steadyrl.core.protocols import Algorithm
from steadyrl.core.types import Batch, Group

NEEDS = frozenset({"old_logprobs", "ref_logprobs", "values", "entropy"})  # see Algorithm.needs

_ARGUMENTS = {
    "select": ("groups",),
    "prepare": ("batch", "numbers"),
    "loss": ("xp", "new", "arrays", "count"),
    "adapt": ("numbers", "metrics"),
    "update": ("backend", "batch", "update"),
}


def open_algorithm(name: str, args: Any) -> Algorithm:
    """Return the algorithm of that name, with its settings.

    Raises:
        ConfigError: Nothing has that name, or what has it is no algorithm; its functions raise the same error where
            they return something that cannot train.
        MissingExtraError: It needs a package that is not installed.
    """
    algorithm = plugins.make("algorithm", name, args)
    subject = f"the algorithm '{name:.120}'"
    if not isinstance(algorithm, Algorithm):
        raise ConfigError(
            f"{subject}: 'build' returns {type(algorithm).__name__}; expected steadyrl.core.protocols.Algorithm"
        )
    if unknown := sorted(map(str, set(algorithm.needs) - NEEDS)):
        raise ConfigError(f"{subject}: nothing supplies its needs {unknown}; expected a subset of {sorted(NEEDS)}")
    for key, number in algorithm.state.items():
        if isinstance(number, bool) or not isinstance(number, int | float | np.number) or not np.isfinite(number):
            raise ConfigError(f"{subject}: state['{key}'] is {number!r:.80}; expected a finite number")
    for function, arguments in _ARGUMENTS.items():
        if not takes(getattr(algorithm, function), len(arguments)):
            raise ConfigError(f"{subject}: '{function}' cannot be called as {function}({', '.join(arguments)})")
    # Partials of a module's functions, which pickle finds: a loss is sent to the other ranks of several GPUs.
    return replace(
        algorithm,
        select=partial(_checked_call, f"{subject}: 'select'", algorithm.select, _select_fault),
        prepare=partial(_checked_call, f"{subject}: 'prepare'", algorithm.prepare, _prepare_fault),
        loss=partial(_checked_call, f"{subject}: 'loss'", algorithm.loss, _loss_fault),
        adapt=partial(_checked_call, f"{subject}: 'adapt'", algorithm.adapt, _adapt_fault),
    )


def _checked_call(subject: str, function: Callable[..., Any], fault_of: Callable[..., str], *arguments: Any) -> Any:
    result = function(*arguments)
    if fault := fault_of(result, arguments[0]):  # "" where nothing is wrong
        raise ConfigError(f"{subject} returns {fault}")
    return result


def _select_fault(groups: Any, _: Sequence[Group]) -> str:
    if isinstance(groups, list) and all(isinstance(group, Group) for group in groups):
        return ""
    return f"{_kind(groups)}; expected a list of groups"


def _prepare_fault(prepared: Any, batch: Batch) -> str:
    if not isinstance(prepared, Batch):
        return f"{_kind(prepared)}; expected the batch, as dataclasses.replace(batch, advantages=...) gives it"
    arrays = {"returns": prepared.returns, "weights": prepared.weights, **prepared.measured}
    shape = batch.completion_mask.shape
    # A policy that has diverged, or a reference that is broken, is no fault of the algorithm: their own errors say so.
    scores = () if batch.old is None else vars(batch.old).values()
    scored = all(np.isfinite(array).all() for array in scores if array is not None)
    for name, array in {"advantages": prepared.advantages, **arrays}.items():
        if array is None:
            continue
        if np.shape(array) != shape:
            return f"{name} of the shape {np.shape(array)}; expected {shape}: a number for each token of each rollout"
        if scored and (count := int((~np.isfinite(array)).sum())):
            return f"{name} that are not finite at {count} of {array.size} tokens"
    return ""


def _loss_fault(result: Any, _: Any) -> str:
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
        return f"{_kind(result)}; expected the loss, and a dict of sums by the names of their metrics"
    # The toy backend's tape has an array under "data", and a tensor of torch has itself there.
    loss = getattr(result[0], "data", result[0])
    if (shape := getattr(loss, "shape", None)) is not None and tuple(shape) == ():
        return ""
    received = _kind(result[0]) if shape is None else f"a matrix of the shape {tuple(shape)}"
    return f"{received} as the loss; expected one number made of new.logprobs: the sum over the mask, divided by count"


def _adapt_fault(numbers: Any, _: Any) -> str:
    if isinstance(numbers, Mapping) and all(
        isinstance(number, int | float | np.number) and np.isfinite(number) for number in numbers.values()
    ):
        return ""
    got = f"{numbers!r:.80}" if isinstance(numbers, Mapping) else _kind(numbers)
    return f"{got}; expected a dict of finite numbers, those of the next step"


def _kind(value: Any) -> str:
    return "None" if value is None else f"the type {type(value).__name__}"
