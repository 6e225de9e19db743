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
    what = f"the algorithm '{name:.120}'"
    if not isinstance(algorithm, Algorithm):
        raise ConfigError(
            f"{what}: 'build' returns {type(algorithm).__name__}; expected steadyrl.core.protocols.Algorithm"
        )
    if unknown := sorted(map(str, set(algorithm.needs) - NEEDS)):
        raise ConfigError(f"{what}: nothing supplies its needs {unknown}; expected a subset of {sorted(NEEDS)}")
    for name_of_number, number in algorithm.state.items():
        if isinstance(number, bool) or not isinstance(number, int | float | np.number) or not np.isfinite(number):
            raise ConfigError(f"{what}: state['{name_of_number}'] is {number!r:.80}; expected a finite number")
    for function, arguments in _ARGUMENTS.items():
        if not takes(getattr(algorithm, function), len(arguments)):
            raise ConfigError(f"{what}: '{function}' cannot be called as {function}({', '.join(arguments)})")
    return replace(  # partials of functions of a module: a loss is sent to the other ranks of several GPUs
        algorithm,
        select=partial(_called, f"{what}: 'select'", algorithm.select, _not_selected),
        prepare=partial(_called, f"{what}: 'prepare'", algorithm.prepare, _not_prepared),
        loss=partial(_called, f"{what}: 'loss'", algorithm.loss, _no_loss),
        adapt=partial(_called, f"{what}: 'adapt'", algorithm.adapt, _no_numbers),
    )


def _called(what: str, function: Callable[..., Any], lack: Callable[..., str], *arguments: Any) -> Any:
    """Return what a function returns; refuse (ConfigError) what ``lack`` of it and the first argument has a word on."""
    result = function(*arguments)
    if fault := lack(result, arguments[0]):
        raise ConfigError(f"{what} returns {fault}")
    return result


def _not_selected(groups: Any, _: Sequence[Group]) -> str:
    if isinstance(groups, list) and all(isinstance(group, Group) for group in groups):
        return ""
    return f"{_kind(groups)}; expected a list of groups"


def _not_prepared(prepared: Any, batch: Batch) -> str:
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


def _no_loss(result: Any, _: Any) -> str:
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
        return f"{_kind(result)}; expected the loss, and a dict of sums by the names of their metrics"
    loss = getattr(result[0], "data", result[0])  # of the toy backend's tape; an array of torch has itself there
    if (shape := getattr(loss, "shape", None)) is not None and tuple(shape) == ():
        return ""
    what = _kind(result[0]) if shape is None else f"a matrix of the shape {tuple(shape)}"
    return f"{what} as the loss; expected one number made of new.logprobs: the sum over the mask, divided by count"


def _no_numbers(numbers: Any, _: Any) -> str:
    if isinstance(numbers, Mapping) and all(
        isinstance(number, int | float | np.number) and np.isfinite(number) for number in numbers.values()
    ):
        return ""
    got = f"{numbers!r:.80}" if isinstance(numbers, Mapping) else _kind(numbers)
    return f"{got}; expected a dict of finite numbers, those of the next step"


def _kind(thing: Any) -> str:
    return "None" if thing is None else f"the type {type(thing).__name__}"
