"""Prioritized level replay: a curriculum that goes back to the problems from which most can be gained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

import numpy as np
from pydantic import Field

from steadyrl.core.sections import Section
from steadyrl.core.types import Problem
from steadyrl.loop.curriculum.choice import Choice, Curriculum, Request, reason, shares, weighed
from steadyrl.loop.curriculum.memory import Known, Memory, look_up, record_outcomes


def advantage_size(stats: Known) -> np.ndarray:
    """Return the mean absolute advantage of each problem, [N]: what its last rollouts changed.

    Source:
        Jiang et al., "Prioritized Level Replay" (arXiv 2010.03934): the mean absolute advantage of an episode (its
        L1 value loss), here with the group's mean as the baseline.
    """
    return stats.deviation


def best_minus_mean(stats: Known) -> np.ndarray:
    """Return how far each problem's mean reward is from the best it ever earned, [N]: an estimate of the regret.

    Source:
        Jiang et al., "Replay-Guided Adversarial Environment Design" (arXiv 2110.02439): MaxMC, with the mean reward
        in the place of the value function.
    """
    regret: np.ndarray = stats.best - stats.mean
    return regret


SCORES: Mapping[str, Callable[[Known], np.ndarray]] = {"advantage": advantage_size, "best_minus_mean": best_minus_mean}


class Settings(Section):
    """Settings of the curriculum 'plr'."""

    score: Literal["advantage", "best_minus_mean"] = Field("advantage")
    """Score by which problems are ranked."""
    temperature: float = Field(0.3, gt=0)
    """Temperature of the ranking. Weights are (1 / rank) ** (1 / temperature)."""
    stale_share: float = Field(0.1, ge=0, le=1)
    """Share of the replayed problems drawn by staleness (steps since the last draw)."""
    new_share: float = Field(0.5, ge=0, le=1)
    """Share of problems that were never drawn before, as long as there are any."""
    decay: float = Field(0.5, ge=0, lt=1)
    """What earlier rollouts of a problem are multiplied by at each draw."""


def replay_probabilities(score: np.ndarray, stats: Known, settings: Settings) -> np.ndarray:
    """Return the probability with which each problem comes next, [N].

    For seen problems P = (1 - stale_share) * P_score + stale_share * P_stale, with P_score ~ (1 / rank) ** (1 /
    temperature) and P_stale ~ steps since the last draw; together they share what ``new_share`` leaves. Unseen
    problems have equal probabilities.

    Source:
        Jiang et al., "Prioritized Level Replay" (arXiv 2010.03934), section 3, and level-replay's ``level_sampler.py``.
    """
    if not stats.drawn.any():
        return shares(np.ones(len(score)))
    order = np.lexsort((-stats.stale, np.where(stats.drawn, -score, np.inf)))  # of equal scores the stalest first
    rank = np.empty(len(score))
    rank[order] = np.arange(1, len(score) + 1)
    by_score = shares(np.where(stats.drawn, rank ** (-1.0 / settings.temperature), 0.0))
    by_stale = shares(np.where(stats.drawn, stats.stale, 0.0))
    if not (stats.drawn & (stats.stale > 0)).any():  # all were drawn in the last step: none is staler than another
        by_stale = shares(stats.drawn.astype(np.float64))
    replayed = (1 - settings.stale_share) * by_score + settings.stale_share * by_stale
    if stats.drawn.all():
        return replayed
    return settings.new_share * shares(~stats.drawn) + (1 - settings.new_share) * replayed


def build(settings: Settings) -> Curriculum:
    """Return prioritized level replay as a record of functions."""
    return Curriculum(
        choose=lambda request, memory: replay(request.problems, request, memory, settings, request.generator()),
        observe=partial(record_outcomes, decay=settings.decay),
    )


def replay(
    pool: Sequence[Problem], request: Request, memory: Memory, settings: Settings, generator: np.random.Generator
) -> Choice:
    """Draw a step's problems from a pool."""
    stats = look_up([problem.id for problem in pool], memory, request.step)
    score = SCORES[settings.score](stats)
    probabilities = replay_probabilities(score, stats, settings)
    reason_of = partial(reason, settings.score, score, stats, probabilities)
    return weighed(pool, probabilities, request, memory, reason_of, generator)
