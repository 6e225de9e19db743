"""Problems by what can be learned from them: the variance of their reward."""

from __future__ import annotations

from functools import partial

import numpy as np
from pydantic import Field, model_validator

from steadyrl.core.sections import Section
from steadyrl.loop.curriculum.choice import Choice, Curriculum, Request, reason, shares, weighed
from steadyrl.loop.curriculum.memory import Known, Memory, look_up, record_outcomes

PRIOR_ROLLOUTS = 2.0  # weight of the prior, as much as two rollouts: a uniform prior of a success rate


def learnability(stats: Known) -> np.ndarray:
    """Return the variance of a problem's reward, which is p(1 - p) for a success rate p, [N].

    It is largest at p = 1/2, and 0 for problems that are always or never solved, from which nothing can be learned. For
    graded rewards it is the variance that the rollouts really have. Unseen problems count as average, and every
    estimate is drawn towards the average by the weight of two rollouts.

    Source:
        Rutherford et al., "No Regrets" (arXiv 2408.15099): sampling for learnability, from each level's success rate.
    """
    variance = np.maximum(stats.square - stats.mean**2, 0.0)
    measured = stats.rollouts > 0
    prior = float(variance[measured].mean()) if measured.any() else 0.0
    estimate: np.ndarray = (PRIOR_ROLLOUTS * prior + stats.rollouts * variance) / (PRIOR_ROLLOUTS + stats.rollouts)
    return estimate


class Settings(Section):
    """Settings of the curriculum 'learnability'."""

    stale_share: float = Field(0.1, ge=0, le=1)
    """Share of problems drawn by staleness (steps since the last draw)."""
    uniform_share: float = Field(0.1, ge=0, le=1)
    """Share of problems drawn from all problems with equal probability."""
    sharpness: float = Field(1.0, ge=0)
    """Exponent of the learnability score. 0 gives all problems the same probability."""
    decay: float = Field(0.5, ge=0, lt=1)
    """What earlier rollouts of a problem are multiplied by at each draw."""

    @model_validator(mode="after")
    def _shares_leave_room(self) -> Settings:
        if self.stale_share + self.uniform_share > 1:
            raise ValueError("stale_share + uniform_share of at most 1")
        return self


def build(settings: Settings) -> Curriculum:
    """Return the curriculum as a record of functions."""

    def choose(request: Request, memory: Memory) -> Choice:
        stats = look_up([problem.id for problem in request.problems], memory, request.step)
        score = learnability(stats)
        probabilities = (
            (1 - settings.stale_share - settings.uniform_share) * shares(score**settings.sharpness)
            + settings.stale_share * shares(stats.stale)
            + settings.uniform_share / len(score)
        )
        reason_of = partial(reason, "learnability", score, stats, probabilities)
        return weighed(request.problems, probabilities, request, memory, reason_of)

    return Curriculum(choose=choose, observe=partial(record_outcomes, decay=settings.decay))
