"""Level replay with edits: a problem that is worth going back to is changed a little, and kept if that is worth it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from pydantic import Field

from steadyrl.core.types import Group
from steadyrl.loop.curriculum import level_replay
from steadyrl.loop.curriculum.choice import Choice, Curriculum, Request, shares
from steadyrl.loop.curriculum.memory import Memory, look_up, record_outcomes


class Settings(level_replay.Settings):
    """Settings of the curriculum 'accel': those of 'plr', and how many problems are edited."""

    edit_share: float = Field(0.25, ge=0, le=1)
    """Share of a step that is made by editing problems with high scores."""
    most_made: int = Field(256, ge=1)
    """Maximum number of edited problems to keep. Those with the highest scores stay."""


def build(settings: Settings) -> Curriculum:
    """Return the curriculum as a record of functions.

    Source: Parker-Holder et al., "Evolving Curricula with Regret-Based Environment Design" (arXiv 2203.01302).
    """

    def choose(request: Request, memory: Memory) -> Choice:
        assert request.mutate is not None, "a curriculum that edits needs a task that offers mutate"
        generator = request.generator()
        pool = {problem.id: problem for problem in request.problems} | dict(memory.made)
        stats = look_up(list(pool), memory, request.step)
        # [N]; an edit begins at a problem of which it is known what it is worth.
        score = np.where(stats.drawn, level_replay.SCORES[settings.score](stats), 0.0)
        edits = round(settings.edit_share * request.count) if score.any() else 0
        problems, reasons, edited = [], [], dict(memory.made)
        candidates = list(pool.values())
        parents = shares(score ** (1.0 / settings.temperature))
        for i in generator.choice(len(candidates), edits, p=parents):
            child = request.mutate(candidates[i], generator)
            if child.id not in pool:
                edited[child.id] = child
            problems.append(pool.get(child.id, child))
            reasons.append(f"edited from '{candidates[i].id}', {settings.score} {score[i]:.3g}")
        remaining = replace(request, count=request.count - edits)
        replayed = level_replay.replay(candidates, remaining, memory, settings, generator)
        remembered = replace(memory, made=edited)
        return Choice(problems + replayed.problems, reasons + replayed.why, replayed.entropy, remembered)

    def observe(memory: Memory, groups: Sequence[Group], step: int) -> Memory:
        updated = record_outcomes(memory, groups, step, settings.decay)
        names = list(updated.made)
        score = level_replay.SCORES[settings.score](look_up(names, updated, step))
        # Of too many edited problems those of the lowest scores are forgotten.
        forgotten = {names[i] for i in np.argsort(-score, kind="stable")[settings.most_made :]}
        return Memory(
            {name: numbers for name, numbers in updated.seen.items() if name not in forgotten},
            {name: problem for name, problem in updated.made.items() if name not in forgotten},
        )

    return Curriculum(choose=choose, observe=observe, edits=True)
