"""Problems by level, from easy to hard: the next level comes once the present one is solved often enough."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from pydantic import Field

from steadyrl.core.errors import DataError
from steadyrl.core.sections import Section
from steadyrl.core.types import Group, Problem
from steadyrl.loop.curriculum.choice import Choice, Curriculum, Request, require_several, shares, weighed
from steadyrl.loop.curriculum.memory import Memory, record_outcomes

_STAGE = "stage"  # the memory's entry that holds the present level
_NEVER_FORGOTTEN = 1e15  # a step that no run reaches: the memory drops what was not drawn for longest


class Settings(Section):
    """Settings of the curriculum 'stages'."""

    column: str = Field("level", description="Column of the problems that holds their level, a number.")
    success: float = Field(0.7)
    """Mean reward of the present level at which the next one begins, in units of the reward."""
    rollouts: int = Field(64, ge=1)
    """Minimum number of rollouts of the present level before the next one begins."""
    earlier_share: float = Field(0.2, ge=0, lt=1)
    """Share of problems drawn from levels that are passed, so that they are not lost."""
    decay: float = Field(0.9, ge=0, lt=1)
    """What earlier rollouts of a level are multiplied by at each step."""


def build(settings: Settings) -> Curriculum:
    """Return the curriculum as a record of functions."""

    def choose(request: Request, memory: Memory) -> Choice:
        levels = np.array([level_of(problem, settings.column) for problem in request.problems])  # [N]
        require_several("stages", settings.column, levels)
        stage = float(memory.seen.get(_STAGE, {}).get("level", levels.min()))  # the lowest at first
        passed = levels < stage
        earlier_share = settings.earlier_share if passed.any() else 0.0
        probabilities = (1 - earlier_share) * shares((levels == stage).astype(float))
        if earlier_share:
            probabilities = probabilities + earlier_share * shares(passed.astype(float))
        record = memory.seen.get(_name(stage))
        mean = f"mean reward {record['mean']:.3g}" if record and "mean" in record else "not tried yet"

        def reason(i: int) -> str:
            if levels[i] > stage:
                return f"beyond level {stage:g}, for lack of others"
            if levels[i] < stage:
                return f"a passed level; the present one is {stage:g}"
            return f"the present level {stage:g}, {mean}"

        above = levels[levels > stage]
        stage_record = {"level": stage, "last": _NEVER_FORGOTTEN, "rollouts": 0.0}
        if above.size:
            stage_record["next"] = float(above.min())
        remembered = replace(memory, seen={**memory.seen, _STAGE: stage_record})
        return weighed(request.problems, probabilities, request, remembered, reason)

    def observe(memory: Memory, groups: Sequence[Group], step: int) -> Memory:
        updated = record_outcomes(
            memory, groups, step, settings.decay, lambda problem: _name(level_of(problem, settings.column))
        )
        stage, above = updated.seen[_STAGE]["level"], updated.seen[_STAGE].get("next")
        record = updated.seen.get(_name(stage), {})
        solved = record.get("mean", -math.inf) >= settings.success and record.get("rollouts", 0.0) >= settings.rollouts
        if above is None or not solved:
            return updated
        return replace(updated, seen={**updated.seen, _STAGE: {**updated.seen[_STAGE], "level": above}})

    return Curriculum(choose=choose, observe=observe)


def level_of(problem: Problem, column: str) -> float:
    """Return a problem's level.

    Raises:
        DataError: It has none, or it is no number.
    """
    level = problem.columns.get(column)
    if not isinstance(level, int | float) or isinstance(level, bool) or not math.isfinite(level):
        raise DataError(
            f"the problem '{problem.id}' ({problem.prompt!r:.60}) has {column} = {level!r:.60}; the curriculum "
            "'stages' needs a number there. Set curriculum.args.column, or give the problems a level"
        )
    return float(level)


def _name(level: float) -> str:
    return f"level {level:g}"
