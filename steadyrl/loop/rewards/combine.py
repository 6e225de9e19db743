"""Reward parts to one number: every part is named, weighted, logged; what cannot be had leaves a rollout unscored."""

from __future__ import annotations

import inspect
import reprlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from steadyrl.core import plugins
from steadyrl.core.arguments import takes
from steadyrl.core.config import Config, validate
from steadyrl.core.counting.interrupts import at_once
from steadyrl.core.errors import ConfigError, DataError
from steadyrl.core.protocols import Checking, RewardFn, Task
from steadyrl.core.sections import FunctionSettings, RewardSettings
from steadyrl.core.types import Group, Problem, Rollout, Score
from steadyrl.core.words import counted
from steadyrl.loop.rewards.calls import NO_LIMITS
from steadyrl.loop.rewards.functions import (
    TAKEN,
    BatchReward,
    Prepared,
    answers_alone,
    from_text,
    per_rollout,
    required,
)
from steadyrl.loop.rewards.trl import columns_for_trl, from_trl, is_for_trl
from steadyrl.loop.rewards.verl import from_verl

_EXPECTED = (
    "a function (problem, rollout), a function of the text 'completion' and of columns of the data by their names, as "
    "in lambda completion: len(completion), or one that takes TRL's 'completions' or verl's 'solution_str'"
)

# A function with one of these parameters gets its arguments by their names.
_BY_NAME = {"completion", "completions", "solution_str"}


@dataclass(frozen=True)
class Term:
    """One part of the reward; weight 0 is measured and logged but does not count."""

    name: str
    weight: float
    reward: BatchReward
    metrics: Callable[[], dict[str, float]] = field(default=dict)
    """What it measured of itself since the last call, by names of the catalogue."""
    columns: frozenset[str] = frozenset()
    """Columns of the data without which it cannot be called."""
    hidden: frozenset[str] = frozenset()
    """Columns that it cannot get, for arguments of its have their names."""


@runtime_checkable
class Configured(Protocol):
    """A reward with settings of its own, as a module or an object."""

    Settings: type[RewardSettings]

    def build(self, settings: Any, task: Task, own: Mapping[str, RewardFn]) -> BatchReward:
        """Return the reward of all rollouts of a step; ``own`` are the task's rewards."""


@runtime_checkable
class Measured(Protocol):
    """A reward that measures something of itself."""

    def metrics(self) -> dict[str, float]:
        """Return what was measured since the last call, by names of the catalogue."""


def make_terms(rewards: Mapping[str, float | RewardSettings], task: Task, max_steps: int = 0) -> list[Term]:
    """Find the reward of every name: the task's own first, then built-ins, then import paths.

    The task's metric is always among the terms, with weight 0 where the user gave none, so that every run measures
    what its evaluation compares.

    Raises:
        ConfigError: A name is unknown, or a reward lacks a setting.
    """
    task_rewards = plugins.functions_of(task, "rewards")
    weights = dict(rewards)
    # Where the user's own rewards give the metric, itself or as one of their parts, nothing has to be added.
    metric = task.metric
    if metric in task_rewards or (metric in plugins.BUILT_IN["reward"] and metric not in map(_base_name, weights)):
        weights.setdefault(metric, 0.0)
    terms = [_term(name, setting, task, task_rewards, max_steps) for name, setting in weights.items()]
    names = [term.name for term in terms]
    if reserved := TAKEN.intersection(names):
        raise ConfigError(f"rewards: '{min(reserved)}' is the name of a statistic of all rewards; rename the function")
    if len(set(names)) < len(names):
        raise ConfigError(f"rewards: two rewards share a name among {', '.join(names)}; rename one of the functions")
    return terms


def require_columns(terms: Sequence[Term], split: str, problems: Sequence[Problem]) -> None:
    """Refuse a reward that takes a column which no problem of a split has, or that cannot get one which there is.

    Without its column every rollout would be unscored.

    Raises:
        ConfigError: With the columns.
    """
    columns = {column for problem in problems for column in problem.columns}
    for term in terms:
        if problems and (missing := sorted(term.columns - columns)):
            raise ConfigError(
                f"the reward '{term.name}' takes {', '.join(missing)}, and no problem of the split '{split}' has such "
                f"a column; beside the prompt there are: {', '.join(sorted(columns)) or 'none'}. Rename the parameter "
                "or the column, or give the parameter a default"
            )
        if hidden := sorted(term.hidden & columns):
            raise ConfigError(
                f"the reward '{term.name}' gets its own {', '.join(hidden)}, as functions written for TRL do, and not "
                f"the data's: the split '{split}' has such a column too. Rename the column, or write a function "
                f"(problem, rollout), which finds it in problem.columns['{hidden[0]}']"
            )


def planned_updates(config: Config) -> int:
    """Return how many optimizer steps a run makes if none is skipped."""
    return config.run.steps * config.update.epochs * config.update.minibatches


def score_groups(groups: Sequence[Group], terms: Sequence[Term]) -> list[Group]:
    """Score every rollout of every group; what could not be scored has no reward and says why.

    A rollout that says so already, since the environment of its episode broke, stays as it is.
    """
    pairs = [(group.problem, rollout) for group in groups for rollout in group.rollouts if rollout.unscored is None]
    scored = iter(_totals(pairs, terms))
    return [
        replace(group, rollouts=tuple(next(scored) if r.unscored is None else r for r in group.rollouts))
        for group in groups
    ]


def term_metrics(terms: Sequence[Term]) -> dict[str, float]:
    """Return what the terms measured of themselves since the last call."""
    return {name: value for term in terms for name, value in term.metrics().items()}


def require_scores(groups: Sequence[Group]) -> None:
    """Refuse a step in which nothing could be scored: a DataError with the first reason."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    if all(rollout.reward is None for rollout in rollouts):
        raise DataError(
            f"none of {counted(len(rollouts), 'rollout')} could be scored; the first reason: {rollouts[0].unscored}. "
            "A run without rewards learns nothing; fix its cause"
        )


def nothing_to_compare(groups: Sequence[Group]) -> str:
    """Say how many rollouts of the groups could be scored, and why not the others; "" where any group has two."""
    scored = [len(group.rewards) for group in groups]
    if max(scored) > 1:
        return ""
    reasons = Counter(r.unscored for group in groups for r in group.rollouts if r.unscored)
    counts = " or ".join(map(str, sorted(set(scored))))
    group_size = max(len(group.rollouts) for group in groups)
    reason = f"; most often: {reasons.most_common(1)[0][0]}" if reasons else ""
    return f"only {counts} of {counted(group_size, 'rollout')} of each problem could be scored{reason}"


def score_texts(answers: Sequence[tuple[Problem, str]], terms: Sequence[Term]) -> list[Rollout]:
    """Score texts that no policy sampled, such as a rule's or a known good answer; one rollout each, in order.

    Nothing is refused: a text that could not be scored has no reward.
    """
    pairs = [(problem, text_rollout(problem, text)) for problem, text in answers]
    return _totals(pairs, terms)


def text_rollout(problem: Problem, text: str) -> Rollout:
    """Return a text that no policy sampled as a rollout without tokens.

    Raises:
        DataError: It is no text.
    """
    if not isinstance(text, str):
        raise DataError(
            f"the answer {reprlib.repr(text)} ({type(text).__name__}) of gold or of a baseline to the problem "
            f"'{problem.id:.80}' is no text; expected text"
        )
    return Rollout(
        problem_id=problem.id,
        prompt_ids=np.zeros(0, np.int32),
        completion_ids=np.zeros(0, np.int32),
        completion_mask=np.zeros(0, bool),
        sampling_logprobs=np.zeros(0, np.float32),
        text=text,
        stop_reason="stop",
    )


def _totals(pairs: Sequence[tuple[Problem, Rollout]], terms: Sequence[Term]) -> list[Rollout]:
    if not pairs:
        return []
    with at_once():  # a reward may hang
        by_term = [(term, term.reward(pairs)) for term in terms]
    logged = Counter(name for _, scores in by_term for name in set[str]().union(*(score.parts for score in scores)))
    shared = {name for name, count in logged.items() if count > 1}
    return [
        _total(rollout, [(term, scores[i]) for term, scores in by_term], shared) for i, (_, rollout) in enumerate(pairs)
    ]


def _total(rollout: Rollout, scores: Sequence[tuple[Term, Score]], shared: Set[str]) -> Rollout:
    """Return a rollout with its parts and their weighted sum.

    A part that several rewards log (``shared``) gets the name of its reward in front, or one would hide the others.
    Rewards that do not apply to it are left out of the sum, unless no other with a weight is left: it is unscored then.
    """
    components = {
        f"{term.name}_{name}" if name in shared else name: value
        for term, score in scores
        for name, value in score.parts.items()
    }
    # A number that a reward logs never takes the place of a reward of that name.
    components |= {term.name: score.value for term, score in scores if score.value is not None}
    weighted = [(term, score) for term, score in scores if term.weight]
    counting = [(term, score) for term, score in weighted if score.applies] or weighted
    missing = [s.unscored or f"{term.name} gave no value" for term, s in counting if s.value is None]
    total = sum(term.weight * score.value for term, score in counting if score.value is not None)
    return replace(
        rollout,
        reward=None if missing else total,
        parts=components,
        unscored="; ".join(missing) or None,
        note="; ".join(score.note for _, score in scores if score.note),
        trains=all(score.trains for _, score in scores),
        turn_shares=tuple((end, term.weight * share) for term, score in counting for end, share in score.turn_rewards),
    )


def _term(
    name: str, setting: float | RewardSettings, task: Task, task_rewards: Mapping[str, RewardFn], max_steps: int
) -> Term:
    settings = setting if isinstance(setting, RewardSettings) else FunctionSettings(weight=setting)
    limits = settings if isinstance(settings, FunctionSettings) else NO_LIMITS
    measured: Callable[[], dict[str, float]] = dict
    columns = hidden = frozenset[str]()
    function = task_rewards[name] if name in task_rewards else _load(name, task_rewards)
    plugins.require_members(f"the reward '{name}'", function, optional=(Configured, Prepared, Measured, Checking))
    if name in task_rewards:
        reward = per_rollout(name, function, limits)
    elif isinstance(function, Configured):
        if not isinstance(setting, RewardSettings):
            setting = validate(function.Settings, {"weight": setting}, f"rewards.{name}")
        reward = function.build(setting, task, task_rewards)
        if not callable(reward):
            raise ConfigError(f"rewards: '{name}' builds {reprlib.repr(reward)}; expected a function of all rollouts")
        measured = reward.metrics if isinstance(reward, Measured) else dict
    else:
        reward, columns, hidden = _adapt(_base_name(name), function, max_steps, limits)
    if settings.answer_after:
        reward = answers_alone(reward, settings.answer_after)
    return Term(_base_name(name), settings.weight, reward, measured, columns, hidden)


def _load(name: str, task_rewards: Mapping[str, RewardFn]) -> Any:
    try:
        function = plugins.load("reward", name)
    except ConfigError as error:
        if task_rewards and ":" not in name:
            raise ConfigError(f"rewards: {error}; the task gives: {', '.join(sorted(task_rewards))}") from error
        raise
    if isinstance(function, Configured):
        settings = function.Settings
        if isinstance(settings, type) and issubclass(settings, RewardSettings) and takes(function.build, 3):
            return function
        raise ConfigError(
            f"rewards: '{name}' has 'Settings' and 'build', as rewards with settings have; expected Settings derived "
            "from steadyrl.core.sections.RewardSettings, and build(settings, task, own)"
        )
    if isinstance(function, type):
        raise ConfigError(
            f"rewards: '{name}' is a class; name an instance of it: a line such as `score = {function.__name__}()` in "
            "its module, and the import path of that name"
        )
    if not callable(function):
        raise ConfigError(f"rewards: '{name}' is {reprlib.repr(function)}; expected {_EXPECTED}")
    generators = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(is_generator(called) for is_generator in generators for called in (function, type(function).__call__)):
        raise ConfigError(f"rewards: '{name}' is a generator; expected a function that returns its value")
    return function


def _adapt(
    name: str, function: Callable[..., Any], max_steps: int, limits: FunctionSettings
) -> tuple[BatchReward, frozenset[str], frozenset[str]]:
    """Bring a function to one call for all rollouts, by its parameters; with the columns it needs, and cannot get."""
    try:
        signature = inspect.signature(function)
    except ValueError as error:  # of some functions in C the parameters are not known
        raise ConfigError(f"the reward '{name}': {error}; expected {_EXPECTED}") from error
    needed, kinds = required(function), {parameter.kind for parameter in signature.parameters.values()}
    if inspect.Parameter.POSITIONAL_ONLY in kinds and (named := _BY_NAME & signature.parameters.keys()):
        raise ConfigError(
            f"the reward '{name}' takes {signature}, and its arguments are given by their names, as {min(named)} is; "
            "remove the / from its parameters"
        )
    if kinds == {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        raise ConfigError(
            f"the reward '{name}' takes {signature}, as a decorator's inner function does, which hides what it reads; "
            f"put functools.wraps(...) over that one, or name the parameters: expected {_EXPECTED}"
        )
    if "completion" in signature.parameters:
        return per_rollout(name, from_text(function), limits), needed - {"completion", "prompt"}, frozenset()
    if is_for_trl(function):
        return from_trl(name, function, max_steps, limits), *columns_for_trl(function)
    if "solution_str" in signature.parameters:
        columns = frozenset({"reward_model"} if "ground_truth" in needed else ())
        return per_rollout(name, from_verl(name, function), limits), columns, frozenset()
    peers = plugins.of_peers("rewards")
    if needed and needed <= peers.keys():
        peer = peers[min(needed)]
        raise ConfigError(
            f"the reward '{name}' takes {', '.join(sorted(needed))}, as functions for {peer} do; expected {_EXPECTED}. "
            "The text of a completion is rollout.text, and columns of the data are in problem.columns"
        )
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise ConfigError(
            f"the reward '{name}' cannot be called with (problem, rollout): {error}; expected {_EXPECTED}"
        ) from error
    return per_rollout(name, function, limits), frozenset(), frozenset()


def _base_name(name: str) -> str:
    """Return the name of a part: of an import path what stands after the colon."""
    return name.rpartition(":")[2]


def reward_shares(groups: Sequence[Group], terms: Sequence[Term]) -> dict[str, float]:
    """Return ``reward_share/<part>``: weight * cov(part, total) / var(total), over the scored rollouts.

    The shares of all parts add up to 1. One below 0 belongs to a part that works against the others. Nothing is
    returned where fewer than two parts have a weight, or where the total does not vary.
    """
    weighted = [term for term in terms if term.weight]
    rollouts = [r for group in groups for r in group.rollouts if r.reward is not None]
    if len(weighted) < 2 or not rollouts:
        return {}
    # A part that does not apply to a rollout adds nothing to its total.
    contributions = np.array([[term.weight * r.parts.get(term.name, 0.0) for r in rollouts] for term in weighted])
    total = contributions.sum(axis=0)
    total -= total.mean()
    variance = float(np.mean(total**2))
    if variance < 1e-12:
        return {}
    return {
        f"reward_share/{term.name}": float(np.mean(contribution * total)) / variance
        for term, contribution in zip(weighted, contributions, strict=True)
    }
