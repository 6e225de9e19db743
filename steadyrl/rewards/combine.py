"""Reward parts to one number: every part is named, weighted, logged; what cannot be had leaves a rollout unscored."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from steadyrl import plugins
from steadyrl.errors import ConfigError, DataError
from steadyrl.protocols import RewardFn, Task
from steadyrl.sections import RewardSettings
from steadyrl.types import Group, Problem, Rollout, Score

log = logging.getLogger(__name__)

# Scores of all rollouts at once, in order: what every kind of reward function is brought to.
BatchReward = Callable[[Sequence[tuple[Problem, Rollout]]], list[Score]]

# reward/<name> of these says something of the total; see metrics.CATALOGUE.
_TAKEN = frozenset({"mean", "std", "std_within", "unscored"})


@dataclass(frozen=True)
class Term:
    """One part of the reward; weight 0 is measured and logged but does not count.

    Attributes:
        metrics: What it measured of itself since the last call, by names of the catalogue.
    """

    name: str
    weight: float
    reward: BatchReward
    metrics: Callable[[], dict[str, float]] = field(default=dict)


@runtime_checkable
class Prepared(Protocol):
    """A reward of one rollout that wants to see all of a step first, to work on several at a time."""

    def prepare(self, pairs: Sequence[tuple[Problem, Rollout]]) -> None:
        """Do now what the calls for these rollouts will need; never raises for what a model wrote."""

    def __call__(self, problem: Problem, rollout: Rollout) -> Score:
        """Score one rollout."""


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


def make_terms(rewards: Mapping[str, float | RewardSettings], task: Task) -> list[Term]:
    """Find the reward of every name: the task's own first, then built-ins, then import paths.

    The task's metric is always among the terms, with weight 0 where the user gave none, so that every run measures
    what its evaluation compares.

    Args:
        rewards: Weights by name, or settings where a reward has some.
        task: Gives rewards of its own.

    Raises:
        ConfigError: A name is unknown, or a reward lacks a setting.
    """
    own = task.rewards()
    wanted = dict(rewards)
    # Where the user's own rewards give the metric, itself or as one of their parts, nothing has to be added.
    if task.metric in own or (task.metric in plugins.BUILT_IN["reward"] and task.metric not in map(_short, wanted)):
        wanted.setdefault(task.metric, 0.0)
    terms = [_term(name, entry, task, own) for name, entry in wanted.items()]
    names = [term.name for term in terms]
    if taken := _TAKEN.intersection(names):
        raise ConfigError(f"rewards: '{min(taken)}' is the name of a statistic of all rewards; rename the function")
    if len(set(names)) < len(names):
        raise ConfigError(f"rewards: two rewards share a name among {', '.join(names)}; rename one of the functions")
    return terms


def score_groups(groups: Sequence[Group], terms: Sequence[Term]) -> list[Group]:
    """Score every rollout of every group; what could not be scored has no reward and says why.

    A rollout that says so already, since the environment of its episode broke, stays as it is.
    """
    whole = [(group.problem, rollout) for group in groups for rollout in group.rollouts if rollout.unscored is None]
    scored = iter(_totals(whole, [(term, term.reward(whole)) for term in terms] if whole else []))
    return [
        replace(group, rollouts=tuple(next(scored) if r.unscored is None else r for r in group.rollouts))
        for group in groups
    ]


def term_metrics(terms: Sequence[Term]) -> dict[str, float]:
    """Return what the terms measured of themselves since the last call."""
    return {name: value for term in terms for name, value in term.metrics().items()}


def require_scores(groups: Sequence[Group]) -> None:
    """Refuse a step in which nothing could be scored.

    Raises:
        DataError: With the first reason.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    if all(rollout.reward is None for rollout in rollouts):
        raise DataError(
            f"none of {len(rollouts)} rollouts could be scored; the first reason: {rollouts[0].unscored}. "
            "A run without rewards learns nothing; fix the reward"
        )


def score_texts(answers: Sequence[tuple[Problem, str]], terms: Sequence[Term]) -> list[Rollout]:
    """Score texts that no policy sampled, such as a rule's or a known good answer; one rollout each, in order.

    Nothing is refused: a text that could not be scored has no reward.
    """
    pairs = [(problem, written(problem, text)) for problem, text in answers]
    return _totals(pairs, [(term, term.reward(pairs)) for term in terms])


def written(problem: Problem, text: str) -> Rollout:
    """Return a text that no policy sampled as a rollout without tokens."""
    return Rollout(
        problem_id=problem.id,
        prompt_ids=np.zeros(0, np.int32),
        completion_ids=np.zeros(0, np.int32),
        completion_mask=np.zeros(0, bool),
        sampling_logprobs=np.zeros(0, np.float32),
        text=text,
        stop_reason="stop",
    )


def per_rollout(name: str, function: RewardFn) -> BatchReward:
    """Lift a function of one rollout. What it raises becomes an unscored rollout with the reason."""

    def reward(pairs: Sequence[tuple[Problem, Rollout]]) -> list[Score]:
        if isinstance(function, Prepared):
            function.prepare(pairs)
        scores, raised = [], []
        for problem, rollout in pairs:
            try:
                value = function(problem, rollout)
            except Exception as error:  # the rollout boundary: user code may raise anything
                raised.append(f"{name} raised {type(error).__name__}: {error}")
                value = Score(None, unscored=raised[-1])
            scores.append(as_score(name, value))
        if raised:
            log.warning("%d of %d rollouts unscored; the first: %s", len(raised), len(pairs), raised[0])
        return scores

    return reward


def from_trl(name: str, function: Callable[..., Sequence[float | None]]) -> BatchReward:
    """Lift a reward function written for TRL: ``(prompts, completions, **columns) -> list[float | None]``.

    It is called once a step with plain strings; a problem's columns are passed as lists, as TRL does; columns that
    only some problems have are filled with None. ``completion_ids`` is passed where the function takes it.
    """
    parameters = inspect.signature(function).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())

    def reward(pairs: Sequence[tuple[Problem, Rollout]]) -> list[Score]:
        columns = sorted({key for problem, _ in pairs for key in problem.columns})
        given: dict[str, Sequence[object]] = {key: [p.columns.get(key) for p, _ in pairs] for key in columns}
        given |= {
            "prompts": [problem.prompt for problem, _ in pairs],
            "completions": [rollout.text for _, rollout in pairs],
            "completion_ids": [rollout.completion_ids.tolist() for _, rollout in pairs],
        }
        if not takes_all:
            given = {key: value for key, value in given.items() if key in parameters}
        try:
            values = list(function(**given))
        except Exception as error:  # the rollout boundary: user code may raise anything
            reason = f"{name} raised {type(error).__name__}: {error}"
            log.warning("%d rollouts unscored; %s", len(pairs), reason)
            return [Score(None, unscored=reason) for _ in pairs]
        if len(values) != len(pairs):
            raise DataError(f"the reward '{name}' returned {len(values)} values for {len(pairs)} completions")
        return [as_score(name, value) for value in values]

    return reward


def as_score(name: str, value: object) -> Score:
    """Bring what a reward returned to a Score.

    Raises:
        DataError: It is no number, mapping, Score or None, or the mapping lacks the reward's own name.
    """
    if isinstance(value, Score):
        if value.value is None or math.isfinite(value.value):
            return value
        return replace(value, value=None, unscored=f"{name} returned {value.value}")
    if value is None:
        return Score(None, unscored=f"{name} returned None")
    if isinstance(value, Mapping):
        if name not in value:
            raise DataError(
                f"the reward '{name}' returned the parts {', '.join(map(str, value))}; expected one called '{name}', "
                "which counts, beside the others, which are logged"
            )
        if taken := _TAKEN.intersection(value):
            raise DataError(f"the reward '{name}' returned a part called '{min(taken)}', a statistic's name; rename it")
        parts = {str(key): _number(name, part) for key, part in value.items() if key != name and part is not None}
        known = {key: part for key, part in parts.items() if math.isfinite(part)}  # an unknown part is left out
        return replace(as_score(name, value[name]), parts=known)
    number = _number(name, value)
    if not math.isfinite(number):
        return Score(None, unscored=f"{name} returned {number}")
    return Score(number)


def _number(name: str, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]  # whatever a user's function returned
    except (TypeError, ValueError) as error:
        raise DataError(
            f"the reward '{name}' returned {value!r} ({type(value).__name__}); expected a number, a dict or None"
        ) from error


def _totals(pairs: Sequence[tuple[Problem, Rollout]], by_term: Sequence[tuple[Term, Sequence[Score]]]) -> list[Rollout]:
    return [_total(rollout, [(term, scores[i]) for term, scores in by_term]) for i, (_, rollout) in enumerate(pairs)]


def _total(rollout: Rollout, scores: Sequence[tuple[Term, Score]]) -> Rollout:
    parts: dict[str, float] = {}
    missing: list[str] = []
    for term, score in scores:
        if score.value is not None:
            parts[term.name] = score.value
        elif term.weight:
            missing.append(score.unscored or f"{term.name} gave no value")
        parts |= score.parts
    total = sum(term.weight * score.value for term, score in scores if score.value is not None)
    return replace(
        rollout,
        reward=None if missing else total,
        parts=parts,
        unscored="; ".join(missing) or None,
        note="; ".join(score.note for _, score in scores if score.note),
    )


def _term(name: str, entry: float | RewardSettings, task: Task, own: Mapping[str, RewardFn]) -> Term:
    weight = entry.weight if isinstance(entry, RewardSettings) else entry
    if name in own:
        return Term(name, weight, per_rollout(name, own[name]))
    found = _load(name, own)
    if not isinstance(found, Configured):
        return Term(_short(name), weight, _adapt(name, found))
    settings = entry if isinstance(entry, RewardSettings) else found.Settings(weight=weight)
    reward = found.build(settings, task, own)
    return Term(_short(name), weight, reward, reward.metrics if isinstance(reward, Measured) else dict)


def _load(name: str, own: Mapping[str, RewardFn]) -> Any:
    try:
        function = plugins.load("reward", name)
    except ConfigError as error:
        if own and ":" not in name:
            raise ConfigError(f"rewards: {error}; the task gives: {', '.join(sorted(own))}") from error
        raise
    if not callable(function) and not isinstance(function, Configured):
        raise ConfigError(f"rewards: '{name}' is {function!r}; expected a function (problem, rollout) -> float")
    return function


def _adapt(name: str, function: Callable[..., Any]) -> BatchReward:
    if "completions" in inspect.signature(function).parameters:
        return from_trl(_short(name), function)
    return per_rollout(_short(name), function)


def _short(name: str) -> str:
    """Return the name of a part: of an import path what stands after the colon."""
    return name.rpartition(":")[2]
