"""Categories of problems as the arms of a bandit: a curriculum for problems that carry their difficulty."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from pydantic import Field

from steadyrl.core.errors import DataError
from steadyrl.core.sections import Section
from steadyrl.core.types import Problem
from steadyrl.loop.curriculum.choice import Choice, Curriculum, Request, require_several, shares, weighed
from steadyrl.loop.curriculum.memory import Memory, look_up, record_outcomes

MAX_ARMS = 100  # a column with more values is not a category but a number that should be rounded


class Settings(Section):
    """Settings of the curriculum 'bandit'."""

    column: str = Field("difficulty", description="Column of the problems that names their arm.")
    temperature: float = Field(0.3, gt=0)
    """Temperature of the choice among arms, in units of the best arm's worth."""
    uniform_share: float = Field(0.1, ge=0, le=1, description="Share of draws from all arms with equal probability.")
    decay: float = Field(0.5, ge=0, lt=1, description="What earlier rollouts of an arm are multiplied by at each draw.")


def build(settings: Settings) -> Curriculum:
    """Return the bandit as a record of functions.

    Source: Chen et al., "Self-Evolving Curriculum for LLM Reasoning" (arXiv 2505.14970): a Boltzmann choice among
    categories, each worth a running mean of the absolute advantage. Here the worth is divided by the best arm's,
    so that one temperature serves rewards of any scale, and an arm that was never drawn is worth the best.
    """

    def arm(problem: Problem) -> str:
        return str(problem.columns.get(settings.column))

    def choose(request: Request, memory: Memory) -> Choice:
        arms = [arm(problem) for problem in request.problems]
        names = sorted(set(arms))
        _require_arms(names, settings.column)
        stats = look_up(names, memory, request.step)
        best = float(stats.deviation.max())
        worth = np.where(stats.rollouts > 0, stats.deviation / best if best > 0 else 1.0, 1.0)
        by_arm = shares(np.exp((worth - 1.0) / settings.temperature))
        by_arm = (1 - settings.uniform_share) * by_arm + settings.uniform_share / len(names)
        arm_index = np.array([names.index(name) for name in arms])
        # An arm's probability is shared by its problems.
        probabilities = by_arm[arm_index] / np.bincount(arm_index)[arm_index]  # [N]

        def reason(i: int) -> str:
            return (
                f"arm {arms[i]}: mean |advantage| {stats.deviation[arm_index[i]]:.3g}; "
                f"probability {by_arm[arm_index[i]]:.3g} of {len(names)} arms"
            )

        return weighed(request.problems, probabilities, request, memory, reason)

    return Curriculum(choose=choose, observe=partial(record_outcomes, decay=settings.decay, name=arm))


def _require_arms(names: Sequence[str], column: str) -> None:
    if list(names) == ["None"]:
        raise DataError(
            f"curriculum.name = 'bandit' needs the column '{column}' in the task's problems, and none has it; set "
            "curriculum.args.column, or take 'learnability', which needs no column"
        )
    require_several("bandit", column, names)
    if len(names) > MAX_ARMS:
        raise DataError(
            f"the column '{column}' has {len(names)} different values; expected at most {MAX_ARMS}, each an arm of "
            "the bandit: round it, or take 'learnability'"
        )
