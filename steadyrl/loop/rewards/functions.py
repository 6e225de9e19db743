"""What reward functions are brought to: one call that scores all rollouts of a step, in order."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from steadyrl.core.counting.count import tell
from steadyrl.core.errors import DataError, raised_line
from steadyrl.core.metrics import finite_number
from steadyrl.core.sections import FunctionSettings
from steadyrl.core.types import Problem, Rollout, Score
from steadyrl.loop.rewards.calls import NO_LIMITS, is_async, repeated, wait_for, within

log = logging.getLogger(__name__)

Pairs = Sequence[tuple[Problem, Rollout]]
BatchReward = Callable[[Pairs], list[Score]]
# A RewardFn of protocols, or one that gives a coroutine.
AnyRewardFn = Callable[[Problem, Rollout], Any]
# What leaves rollouts unscored, for user code may raise anything. KeyboardInterrupt is not among it and ends the run.
RAISED = (Exception, SystemExit, asyncio.CancelledError)

# reward/<name> of these says something of the total; see metrics.CATALOGUE.
TAKEN = frozenset({"mean", "std", "min", "max", "std_within", "unscored"})


@runtime_checkable
class Prepared(Protocol):
    """A reward of one rollout that wants to see all of a step first, to work on several at a time."""

    def prepare(self, pairs: Sequence[tuple[Problem, Rollout]]) -> None:
        """Do now what the calls for these rollouts will need; never raises for what a model wrote."""

    def __call__(self, problem: Problem, rollout: Rollout) -> Score:
        """Score one rollout."""


def required(function: Callable[..., Any]) -> frozenset[str]:
    """Return the names of the parameters without which a function cannot be called."""
    parameters = inspect.signature(function).parameters.values()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(p.name for p in parameters if p.kind in named and p.default is p.empty)


def accepts(function: Callable[..., Any]) -> Callable[[str], bool]:
    """Return whether a function takes an argument of a name; it takes any where it ends with ``**columns``."""
    parameters = inspect.signature(function).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return lambda name: takes_all or name in parameters


def by_name(function: Callable[..., Any]) -> Callable[[Mapping[str, Any]], Any]:
    """Return a call of a function with those of some arguments that it takes."""
    accepted = accepts(function)
    return lambda arguments: function(**{name: value for name, value in arguments.items() if accepted(name)})


def of_rollout(
    function: Callable[..., Any],
    arguments: Callable[[Problem, Rollout], Mapping[str, Any]],
    score: Callable[[Any], Any] = lambda value: value,
) -> AnyRewardFn:
    """Return a function as a reward of one rollout, asynchronous where it is.

    Args:
        function: Is called by name with those of the arguments that it takes.
        arguments: All that may be taken, by name.
        score: Makes what a reward returns of what the function returns.
    """
    call = by_name(function)

    def reward(problem: Problem, rollout: Rollout) -> Any:
        return score(call(arguments(problem, rollout)))

    async def async_reward(problem: Problem, rollout: Rollout) -> Any:
        return score(await call(arguments(problem, rollout)))

    return async_reward if is_async(function) else reward


def from_text(function: Callable[..., Any]) -> AnyRewardFn:
    """Return a function of one completion's text, such as ``lambda completion: 1 / len(completion)``, as a reward.

    The parameter ``completion`` gets the text, ``prompt`` the prompt's text, and any other parameter the column of the
    data that has its name. A function whose parameters end with ``**columns`` gets all columns.
    """
    return of_rollout(function, lambda problem, rollout: {
        **problem.columns, "prompt": problem.prompt, "completion": rollout.text,
    })  # fmt: skip


def per_rollout(name: str, function: AnyRewardFn, settings: FunctionSettings = NO_LIMITS) -> BatchReward:
    """Lift a function of one rollout. What it raises at last becomes an unscored rollout with the reason.

    An asynchronous function is called for all rollouts of a step at the same time.
    """

    def call(pairs: Pairs) -> list[Any]:
        if is_async(function):
            return wait_for([function(*pair) for pair in pairs], settings.timeout_s)
        values: list[Any] = []
        for pair in pairs:
            try:
                values.append(within(settings.timeout_s, function, *pair))
            except RAISED as error:  # the rollout boundary
                values.append(error)
            tell(f"rollouts scored by {name}", len(values), len(pairs))
        return values

    def reward(pairs: Pairs) -> list[Score]:
        if isinstance(function, Prepared):
            function.prepare(pairs)
        values = repeated(name, call, pairs, settings.retries)
        scores, raised = [], []
        for value in values:
            if isinstance(value, BaseException):
                raised.append(raised_reason(name, value))
                value = Score(None, unscored=raised[-1])
            scores.append(as_score(name, value))
        if raised:
            log.warning("%d of %d rollouts unscored; the first: %s", len(raised), len(pairs), raised[0])
        return scores

    return reward


def raised_reason(name: str, error: BaseException) -> str:
    """Return why a rollout has no reward, where the reward raised an exception."""
    return f"{name} raised {raised_line(error)}"


def as_score(name: str, value: object) -> Score:
    """Bring what a reward returned to a Score.

    Raises:
        DataError: It is no number, mapping, Score or None, or the mapping lacks the reward's own name.
    """
    if isinstance(value, Score):
        number = None if value.value is None else _number(name, value.value)
        shares = tuple((int(end), _number(name, share)) for end, share in value.turn_rewards)
        components = _finite_parts(name, value.parts)
        score = replace(value, value=number, parts=components, note=str(value.note), turn_rewards=shares)
        numbers = [number, *(share for _, share in shares)]
        wrong = [given for given in numbers if given is not None and finite_number(given) is None]
        return replace(score, value=None, unscored=f"{name} returned {wrong[0]}") if wrong else score
    if value is None:
        return Score(None, unscored=f"{name} returned None")
    if isinstance(value, Mapping):
        if name not in value:
            raise DataError(
                f"the reward '{name}' returned the parts {', '.join(map(str, value)):.300}; expected one called "
                f"'{name}', which counts, beside the others, which are logged"
            )
        logged = {key: item for key, item in value.items() if key != name}
        return replace(as_score(name, value[name]), parts=_finite_parts(name, logged))
    number = _number(name, value)
    if finite_number(number) is None:
        return Score(None, unscored=f"{name} returned {number}")
    return Score(number)


def _finite_parts(name: str, values: object) -> dict[str, float]:
    """Return the parts that are known: without those that are None or not finite."""
    if not isinstance(values, Mapping):
        raise DataError(f"the reward '{name}' returned the parts {reprlib.repr(values)}; expected a dict of numbers")
    numbers = {str(key): _number(name, value) for key, value in values.items() if value is not None}
    if reserved := TAKEN.intersection(numbers):
        raise DataError(f"the reward '{name}' returned a part called '{min(reserved)}', a statistic's name; rename it")
    return {key: value for key, value in numbers.items() if finite_number(value) is not None}


def _number(name: str, value: object) -> float:
    try:
        if isinstance(value, str | bytes | bytearray):  # float() would read "1.0"
            raise TypeError("text")
        return float(value)  # type: ignore[arg-type]  # whatever a user's function returned
    except OverflowError:  # an int that no float holds
        return math.inf
    except (TypeError, ValueError) as error:
        raise DataError(
            f"the reward '{name}' returned {reprlib.repr(value)} ({type(value).__name__}); expected a number, a "
            "dict or None"
        ) from error


def answers_alone(reward: BatchReward, mark: str) -> BatchReward:
    """Return a reward that sees what stands behind the last mark of every text."""

    def of_answers(pairs: Pairs) -> list[Score]:
        return reward([(problem, replace(rollout, text=answer_of(rollout, mark))) for problem, rollout in pairs])

    return of_answers


def answer_of(rollout: Rollout, mark: str) -> str:
    """Return the answer in a text that may begin with reasoning; empty where the reasoning did not come to an end.

    A mark such as ``</think>`` ends the reasoning. A text without the mark is an answer alone, or was cut off in the
    middle of its reasoning and holds no answer.
    """
    _, separator, answer = rollout.text.rpartition(mark)
    if separator:
        return answer.lstrip()  # space behind the mark parts the answer from the reasoning, and is part of neither
    began = mark.replace("/", "", 1) in rollout.text  # <think>; the prompt may have held it in the text's place
    return "" if began or rollout.stop_reason == "length" else rollout.text
