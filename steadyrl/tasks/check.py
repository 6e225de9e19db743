"""Is a task sound? To be asked before anyone trains on it: no model is needed.

The gold answer scores high, an empty one low, scoring repeats, and nothing that a model may write raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steadyrl import plugins
from steadyrl.config import Config
from steadyrl.evaluate import written
from steadyrl.rewards.combine import Term, make_terms, score_groups
from steadyrl.types import Group, Problem, Task

GOLD_AT_LEAST, EMPTY_AT_MOST = 0.8, 0.05
_PROBLEMS = 200  # of each split, spread evenly
_HOSTILE = ("(", '"', "AND", "x" * 5000, "( " * 400, "\x00", "NOT NOT", "'; DROP TABLE documents; --", "a:b", "\ud800")


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    passed: bool
    detail: str


def check_task(config: Config) -> list[Check]:
    """Look at the task and the rewards of a config.

    Raises:
        SteadyError: The task cannot be built at all.
    """
    task, terms = _build(config)
    train, heldout = list(task.problems("train")), list(task.problems("heldout"))
    some = [*_spread(train), *_spread(heldout)]
    checks = [_splits(train, heldout)]
    gold, empty = _mean(task, terms, some, "gold"), _mean(task, terms, some, "empty")
    if gold is None:
        checks.append(Check("gold answer", True, "the task knows none; give one to have it checked"))
    else:
        checks.append(_compare("gold answer", gold, gold >= GOLD_AT_LEAST, f"expected at least {GOLD_AT_LEAST}", task))
    if empty is not None:
        limit = EMPTY_AT_MOST if gold is None else min(EMPTY_AT_MOST, gold)
        checks.append(_compare("empty answer", empty, empty <= limit, f"expected at most {limit:g}", task))
    checks += [_repeats(config, terms, some), _hostile(terms, some[0])]
    return checks


def _build(config: Config) -> tuple[Task, list[Term]]:
    task = plugins.load("task", config.task.name)(config.task.args, config.run.seed)
    return task, make_terms(config.rewards, task)


def _spread(problems: Sequence[Problem]) -> list[Problem]:
    if len(problems) <= _PROBLEMS:
        return list(problems)
    return [problems[i] for i in np.linspace(0, len(problems) - 1, _PROBLEMS).astype(int)]


def _splits(train: Sequence[Problem], heldout: Sequence[Problem]) -> Check:
    ids, held_ids = [p.id for p in train], [p.id for p in heldout]
    common = set(ids) & set(held_ids)
    repeated = len(ids) + len(held_ids) - len(set(ids)) - len(set(held_ids))
    detail = f"{len(ids)} to train on, {len(held_ids)} held out"
    if common or repeated:
        detail += f"; {len(common)} in both, {repeated} repeated"
    return Check("problems", bool(ids) and not common and not repeated, detail)


def _scores(terms: Sequence[Term], answers: Sequence[tuple[Problem, str]], metric: str) -> list[float | None]:
    groups = score_groups([Group(p, (written(p, text),)) for p, text in answers], terms)
    rollouts = [group.rollouts[0] for group in groups]
    return [r.parts.get(metric) if metric else r.reward for r in rollouts]


def _mean(task: Task, terms: Sequence[Term], problems: Sequence[Problem], kind: str) -> float | None:
    found = [(p, "" if kind == "empty" else task.gold(p)) for p in problems]
    answers = [(p, text) for p, text in found if text is not None]
    if not answers:
        return None
    values = [value for value in _scores(terms, answers, task.metric) if value is not None]
    return float(np.mean(values)) if values else None


def _compare(name: str, value: float, passed: bool, expected: str, task: Task) -> Check:
    return Check(name, passed, f"mean {task.metric or 'reward'} {value:.3f}, {expected}")


def _repeats(config: Config, terms: Sequence[Term], problems: Sequence[Problem]) -> Check:
    """Score the same answers with a second task, built anew, so that no cache can answer."""
    again_task, again = _build(config)
    answers = [(p, again_task.gold(p) or p.prompt) for p in problems[:50]]
    first, second = (_scores(t, answers, again_task.metric) for t in (terms, again))
    differing = sum(a != b for a, b in zip(first, second, strict=True))
    return Check("scoring repeats", differing == 0, f"{differing} of {len(answers)} answers scored differently")


def _hostile(terms: Sequence[Term], problem: Problem) -> Check:
    groups = score_groups([Group(problem, tuple(written(problem, text) for text in _HOSTILE))], terms)
    unscored = [r for r in groups[0].rollouts if r.unscored]
    detail = f"{len(_HOSTILE)} malformed answers, {len(unscored)} left unscored"
    if unscored:
        detail += f" ({unscored[0].unscored})"
    return Check("hostile answers", not unscored, detail)
