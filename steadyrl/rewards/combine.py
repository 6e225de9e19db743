"""Reward parts to one number: every part is named, weighted, logged; what cannot be had leaves a rollout unscored."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from steadyrl import plugins
from steadyrl.errors import ConfigError, DataError
from steadyrl.types import Group, Problem, RewardFn, Rollout, Score, Task

log = logging.getLogger(__name__)

# Scores of all rollouts at once, in order: what every kind of reward function is brought to.
BatchReward = Callable[[Sequence[tuple[Problem, Rollout]]], list[Score]]


@dataclass(frozen=True)
class Term:
    """One part of the reward; weight 0 is measured and logged but does not count."""

    name: str
    weight: float
    reward: BatchReward


def make_terms(weights: Mapping[str, float], task: Task) -> list[Term]:
    """Find the reward of every name: the task's own first, then built-ins, then import paths.

    The task's metric is always among the terms, with weight 0 where the user gave none, so that every run measures
    what its evaluation compares.

    Raises:
        ConfigError: A name is unknown.
    """
    own = task.rewards()
    wanted = dict(weights)
    if task.metric:
        wanted.setdefault(task.metric, 0.0)
    terms = []
    for name, weight in wanted.items():
        if name in own:
            reward: BatchReward = per_rollout(name, own[name])
        else:
            reward = _adapt(name, _load(name, own))
        terms.append(Term(name.rpartition(":")[2], weight, reward))
    names = [term.name for term in terms]
    if len(set(names)) < len(names):
        raise ConfigError(f"rewards: two rewards share a name among {', '.join(names)}; rename one of the functions")
    return terms


def score_groups(groups: Sequence[Group], terms: Sequence[Term]) -> list[Group]:
    """Score every rollout of every group.

    Raises:
        DataError: A reward could score nothing at all, with the first reason.
    """
    pairs = [(group.problem, rollout) for group in groups for rollout in group.rollouts]
    by_term = [(term, term.reward(pairs)) for term in terms]
    for term, scores in by_term:
        if term.weight and all(score.value is None for score in scores):
            raise DataError(
                f"the reward '{term.name}' scored none of {len(scores)} rollouts; the first reason: "
                f"{scores[0].unscored}. A run without rewards learns nothing; mend the reward"
            )
    scored = iter([_total(pairs[i][1], [(t, scores[i]) for t, scores in by_term]) for i in range(len(pairs))])
    return [replace(group, rollouts=tuple(next(scored) for _ in group.rollouts)) for group in groups]


def per_rollout(name: str, function: RewardFn) -> BatchReward:
    """Lift a function of one rollout. What it raises becomes an unscored rollout with the reason."""

    def reward(pairs: Sequence[tuple[Problem, Rollout]]) -> list[Score]:
        scores = []
        for problem, rollout in pairs:
            try:
                value = function(problem, rollout)
            except Exception as error:  # the rollout boundary: user code may raise anything
                log.warning("reward %s raised %s: %s", name, type(error).__name__, error)
                value = Score(None, unscored=f"{name} raised {type(error).__name__}: {error}")
            scores.append(as_score(name, value))
        return scores

    return reward


def from_trl(name: str, function: Callable[..., Sequence[float | None]]) -> BatchReward:
    """Lift a reward function written for TRL: ``(prompts, completions, **columns) -> list[float | None]``.

    It is called once a step with plain strings; a problem's columns are passed as lists, as TRL does; columns that
    only some problems have are filled with None. ``completion_ids`` is passed where the function takes it.
    """

    def reward(pairs: Sequence[tuple[Problem, Rollout]]) -> list[Score]:
        columns = sorted({key for problem, _ in pairs for key in problem.columns})
        given = {key: [problem.columns.get(key) for problem, _ in pairs] for key in columns}
        given["completion_ids"] = [rollout.completion_ids.tolist() for _, rollout in pairs]
        takes_all = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values())
        if not takes_all:
            given = {key: value for key, value in given.items() if key in inspect.signature(function).parameters}
        try:
            values = list(
                function(prompts=[p.prompt for p, _ in pairs], completions=[r.text for _, r in pairs], **given)
            )
        except Exception as error:  # the rollout boundary: user code may raise anything
            log.warning("reward %s raised %s: %s", name, type(error).__name__, error)
            return [Score(None, unscored=f"{name} raised {type(error).__name__}: {error}") for _ in pairs]
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
        return value
    if value is None:
        return Score(None, unscored=f"{name} returned None")
    if isinstance(value, Mapping):
        if name not in value:
            raise DataError(
                f"the reward '{name}' returned the parts {', '.join(map(str, value))}; expected one called '{name}', "
                "which counts, beside the others, which are logged"
            )
        parts = {str(key): float(part) for key, part in value.items() if key != name}
        return replace(as_score(name, value[name]), parts=parts)
    try:
        number = float(value)  # type: ignore[arg-type]  # whatever a user's function returned
    except (TypeError, ValueError) as error:
        raise DataError(
            f"the reward '{name}' returned {value!r} ({type(value).__name__}); expected a number, a dict or None"
        ) from error
    if not math.isfinite(number):
        return Score(None, unscored=f"{name} returned {number}")
    return Score(number)


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


def _load(name: str, own: Mapping[str, RewardFn]) -> Callable[..., object]:
    try:
        return plugins.load("reward", name)
    except ConfigError as error:
        if own and ":" not in name:
            raise ConfigError(f"rewards: {error}; the task gives: {', '.join(sorted(own))}") from error
        raise


def _adapt(name: str, function: Callable[..., object]) -> BatchReward:
    short = name.rpartition(":")[2]
    parameters = inspect.signature(function).parameters
    if "completions" in parameters:
        return from_trl(short, function)  # type: ignore[arg-type]  # the signature was just looked at
    return per_rollout(short, function)  # type: ignore[arg-type]  # what it returns is checked by as_score
