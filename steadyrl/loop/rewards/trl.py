"""Reward functions written for TRL, called as TRL calls them.

A function gets all completions of a step at once, by name: ``prompts``, ``completions``, ``completion_ids``,
``trainer_state``, ``log_extra``, ``log_metric`` and every column of the data but the prompt, as lists. Where the data
are conversations, prompts and completions are lists of messages. TRL's ``environments`` and reward models are not
known here.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from steadyrl.core.errors import ConfigError, DataError
from steadyrl.core.sections import FunctionSettings
from steadyrl.core.types import Score
from steadyrl.loop.rewards.calls import NO_LIMITS, is_async, repeated, wait_for, within
from steadyrl.loop.rewards.functions import (
    RAISED,
    BatchReward,
    Pairs,
    accepts,
    as_score,
    by_name,
    raised_reason,
    required,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainerState:
    """How far the training is; the two fields of transformers' TrainerState that rewards use."""

    global_step: int
    """Optimizer steps so far; 0 in held-out evaluations, which thereby use one function throughout."""
    max_steps: int
    """Optimizer steps of the whole run."""


@dataclass(frozen=True)
class Logged:
    """What a function logs beside its rewards: values per completion, and numbers of the whole call."""

    extra: dict[str, Sequence[Any]] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)

    def log_extra(self, column: str, values: Iterable[Any]) -> None:
        """Keep a value for every completion; it becomes part of the note in rollouts/.

        Raises:
            TypeError: There are no values.
        """
        if not isinstance(values, Iterable):
            raise TypeError(f"log_extra('{column}', {values!r}): expected a value for each completion")
        self.extra[column] = list(values)

    def log_metric(self, name: str, value: float) -> None:
        """Keep a number of the call; it becomes the metric reward/<name> by its first completion.

        Copies of it at the others would pass for a measurement of each, and reports would compare them in pairs.
        """
        self.metrics[name] = float(value)

    def added_to(self, score: Score, row: int) -> Score:
        """Return a score with what was logged for its completion."""
        note = ", ".join(f"{column}: {values[row]}" for column, values in self.extra.items())
        return replace(score, parts=score.parts if row else {**score.parts, **self.metrics}, note=note)


def is_for_trl(function: Callable[..., Any]) -> bool:
    """Return whether a function takes completions by name, or nothing but names."""
    parameters = inspect.signature(function).parameters.values()
    named = all(parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD) for parameter in parameters)
    return any(parameter.name == "completions" for parameter in parameters) or (bool(parameters) and named)


def columns_for_trl(function: Callable[..., Any]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the columns of the data without which a function cannot be called, and those that it cannot get.

    The latter have the name of an argument that it takes.
    """
    arguments = _arguments([], Logged(), 0)
    return required(function) - arguments.keys(), frozenset(filter(accepts(function), arguments))


def from_trl(
    name: str, function: Callable[..., Any], max_steps: int = 0, settings: FunctionSettings = NO_LIMITS
) -> BatchReward:
    """Lift a reward function written for TRL, asynchronous or not.

    Columns that only some problems have are filled with None. A completion for which the function returns None is not
    its business: the other rewards count alone, as in TRL.

    Raises:
        ConfigError: It needs what only TRL's environments give.
    """
    if "environments" in required(function):
        raise ConfigError(
            f"the reward '{name}' takes the environments of TRL, which are not known here; expected a function of "
            "completions and columns, or rewards of rollout.outcome (see docs/environments.md)"
        )

    def reward(pairs: Pairs) -> list[Score]:
        if not pairs:
            return []
        logged = Logged()

        def call(batch: Pairs) -> list[Any]:
            nonlocal logged
            logged = Logged()  # a call that is repeated logs anew
            named_call = partial(by_name(function), _arguments(batch, logged, max_steps))
            try:
                if not is_async(function):
                    return within(settings.timeout_s, lambda: _listed(named_call()))  # type: ignore[no-any-return]  # a list
                (returned,) = wait_for([named_call()], settings.timeout_s)
                if isinstance(returned, BaseException):
                    raise returned
                return _listed(returned)
            except RAISED as error:  # the rollout boundary
                return [error] * len(batch)

        values = repeated(name, call, pairs, settings.retries)
        if values and isinstance(values[0], BaseException):
            reason = raised_reason(name, values[0])
            log.warning("%d rollouts unscored; %s", len(pairs), reason)
            return [Score(None, unscored=reason) for _ in pairs]
        for column, returned in {"returned": values, **logged.extra}.items():
            if len(returned) != len(pairs):
                verb = column if returned is values else f"logged as '{column}'"
                count = "1 value" if len(returned) == 1 else f"{len(returned)} values"
                raise DataError(
                    f"the reward '{name}' {verb} {count} for {len(pairs)} completions; expected a list with one value "
                    "for each, in their order"
                )
        return [as_score(name, logged.added_to(_score(name, value), row)) for row, value in enumerate(values)]

    return reward


def _listed(returned: Any) -> list[Any]:
    """Return what a function returned as a list; what has no order, or is a number, is one value."""
    try:
        values = iter([returned] if isinstance(returned, str | bytes | Mapping | Set) else returned)
    except TypeError:  # a number, or an array without an axis
        return [returned]
    return list(values)


def _arguments(pairs: Pairs, logged: Logged, max_steps: int) -> dict[str, Any]:
    columns = sorted({key for problem, _ in pairs for key in problem.columns})
    return {
        **{key: [problem.columns.get(key) for problem, _ in pairs] for key in columns},
        "prompts": [[dict(message) for message in problem.messages] or problem.prompt for problem, _ in pairs],
        "completions": [
            [{"role": "assistant", "content": rollout.text}] if problem.messages else rollout.text
            for problem, rollout in pairs
        ],
        "completion_ids": [rollout.completion_ids.tolist() for _, rollout in pairs],
        "trainer_state": TrainerState(max((rollout.policy_version for _, rollout in pairs), default=0), max_steps),
        "log_extra": logged.log_extra,
        "log_metric": logged.log_metric,
    }


def _score(name: str, value: object) -> Score:
    score = as_score(name, value)
    return replace(score, applies=False) if value is None else score
