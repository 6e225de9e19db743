"""Is a task sound? To be asked before anyone trains on it: no model is needed.

The gold answer scores high, an empty one low, scoring repeats, and nothing that a model may write raises.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steadyrl import plugins
from steadyrl.config import Config
from steadyrl.rewards.combine import Term, make_terms, score_texts
from steadyrl.types import Problem, Task

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
    if not some:
        return [_splits(train, heldout)]
    return [
        _splits(train, heldout),
        _gold(task, terms, some),
        _empty(task, terms, some),
        _repeats(config, terms, some),
        _hostile(terms, some[0]),
    ]


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
    return [r.parts.get(metric) if metric else r.reward for r in score_texts(answers, terms)]


def _gold(task: Task, terms: Sequence[Term], problems: Sequence[Problem]) -> Check:
    golds = [(problem, task.gold(problem)) for problem in problems]
    answers = [(problem, text) for problem, text in golds if text is not None]
    if not answers:
        return Check("gold answer", True, "the task knows none; give one to have it checked")
    return _mean("gold answer", _scores(terms, answers, task.metric), task.metric, GOLD_AT_LEAST, math.inf)


def _empty(task: Task, terms: Sequence[Term], problems: Sequence[Problem]) -> Check:
    scores = _scores(terms, [(problem, "") for problem in problems], task.metric)
    return _mean("empty answer", scores, task.metric, -math.inf, EMPTY_AT_MOST)


def _mean(name: str, scores: Sequence[float | None], metric: str, low: float, high: float) -> Check:
    """Compare the mean with its bounds; what was left unscored is no evidence of health and fails."""
    known = [score for score in scores if score is not None]
    if len(known) < len(scores):
        return Check(name, False, f"{len(scores) - len(known)} of {len(scores)} left unscored, expected none")
    mean = float(np.mean(known))
    bound = f"at least {low:g}" if math.isfinite(low) else f"at most {high:g}"
    return Check(name, low <= mean <= high, f"mean {metric or 'reward'} {mean:.3f}, expected {bound}")


def _repeats(config: Config, terms: Sequence[Term], problems: Sequence[Problem]) -> Check:
    """Score the same answers with a second task, built anew, so that no cache can answer."""
    again_task, again = _build(config)
    answers = [(p, again_task.gold(p) or p.prompt) for p in problems[:50]]
    first, second = (_scores(t, answers, again_task.metric) for t in (terms, again))
    differing = sum(a != b for a, b in zip(first, second, strict=True))
    return Check("scoring repeats", differing == 0, f"{differing} of {len(answers)} answers scored differently")


def _hostile(terms: Sequence[Term], problem: Problem) -> Check:
    unscored = [r for r in score_texts([(problem, text) for text in _HOSTILE], terms) if r.unscored]
    detail = f"{len(_HOSTILE)} malformed answers, {len(unscored)} left unscored"
    if unscored:
        detail += f" ({unscored[0].unscored})"
    return Check("hostile answers", not unscored, detail)
