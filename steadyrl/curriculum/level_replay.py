"""Prioritized level replay, and the editing of levels on top of it: curricula that go back to where most is to gain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field

from steadyrl.curriculum.choice import Choice, Curriculum, Request, draw, entropy, reason, shares
from steadyrl.curriculum.memory import Known, Memory, look_up, record_outcomes
from steadyrl.sections import Section
from steadyrl.types import Group, Problem


def advantage_size(known: Known) -> np.ndarray:
    """Return the mean absolute advantage of each problem, [N]: what its last rollouts changed.

    Source:
        Jiang et al., "Prioritized Level Replay" (arXiv 2010.03934): the mean absolute advantage of an episode (its
        L1 value loss), here with the group's mean as the baseline.
    """
    return known.deviation


def best_minus_mean(known: Known) -> np.ndarray:
    """Return how far each problem's mean reward is from the best it ever earned, [N]: an estimate of the regret.

    Source:
        Jiang et al., "Replay-Guided Adversarial Environment Design" (arXiv 2110.02439): MaxMC, with the mean reward
        in the place of the value function.
    """
    regret: np.ndarray = known.best - known.mean
    return regret


SCORES: Mapping[str, Callable[[Known], np.ndarray]] = {
    "advantage": advantage_size,
    "best_minus_mean": best_minus_mean,
}


class ReplaySettings(Section):
    """How new problems, high scores and old draws share a step."""

    score: Literal["advantage", "best_minus_mean"] = Field("advantage", description="what problems are ranked by")
    temperature: float = Field(0.3, gt=0, description="weights are (1 / rank) ** (1 / temperature)")
    stale_share: float = Field(0.1, ge=0, le=1, description="of the replayed, drawn by the steps since the last draw")
    new_share: float = Field(0.5, ge=0, le=1, description="never drawn before, while there are any")
    decay: float = Field(0.5, ge=0, lt=1, description="what earlier rollouts of a problem count for at each draw")


def replay_probabilities(score: np.ndarray, known: Known, settings: ReplaySettings) -> np.ndarray:
    """Return with which probability each problem comes next, [N].

    Of the seen ones P = (1 - stale_share) * P_score + stale_share * P_stale, with P_score ~ (1 / rank) ** (1 /
    temperature) and P_stale ~ steps since the last draw; together they share what ``new_share`` leaves. Unseen ones
    are alike.

    Source:
        Jiang et al., "Prioritized Level Replay" (arXiv 2010.03934), section 3, and level-replay's ``level_sampler.py``.
    """
    if not known.seen.any():
        return shares(np.ones(len(score)))
    order = np.lexsort((-known.stale, np.where(known.seen, -score, np.inf)))  # of equal scores the stalest first
    rank = np.empty(len(score))
    rank[order] = np.arange(1, len(score) + 1)
    by_score = shares(np.where(known.seen, rank ** (-1.0 / settings.temperature), 0.0))
    by_stale = shares(np.where(known.seen, known.stale, 0.0))
    if not (known.seen & (known.stale > 0)).any():
        by_stale = shares(known.seen.astype(np.float64))
    replayed = (1 - settings.stale_share) * by_score + settings.stale_share * by_stale
    if known.seen.all():
        return replayed
    return settings.new_share * shares(~known.seen) + (1 - settings.new_share) * replayed


class PLR:
    """Prioritized level replay."""

    Settings = ReplaySettings

    @staticmethod
    def build(settings: ReplaySettings) -> Curriculum:
        """Return the curriculum as a record of functions."""

        def choose(request: Request, memory: Memory) -> Choice:
            return _replay(request.problems, request, memory, settings, request.generator())

        return Curriculum(
            choose=choose,
            observe=lambda memory, groups, step: record_outcomes(memory, groups, step, settings.decay),
        )


def _replay(
    pool: Sequence[Problem], request: Request, memory: Memory, settings: ReplaySettings, generator: np.random.Generator
) -> Choice:
    known = look_up([problem.id for problem in pool], memory, request.step)
    score = SCORES[settings.score](known)
    probabilities = replay_probabilities(score, known, settings)
    chosen = draw(probabilities, request.count, generator)
    why = [reason(settings.score, score, known, probabilities, i) for i in chosen]
    return Choice([pool[i] for i in chosen], why, entropy(probabilities), memory)


class AccelSettings(ReplaySettings):
    """Replay, and how much of a step is edited from it."""

    edit_share: float = Field(0.25, ge=0, le=1, description="of a step, made by editing problems of high scores")
    most_made: int = Field(256, ge=1, description="edited problems kept: those of the highest score")


class Accel:
    """Replay of levels and of their edits: what is worth going back to is changed a little, and kept if it is too."""

    Settings = AccelSettings

    @staticmethod
    def build(settings: AccelSettings) -> Curriculum:
        """Return the curriculum as a record of functions.

        Source: Parker-Holder et al., "Evolving Curricula with Regret-Based Environment Design" (arXiv 2203.01302).
        """

        def observe(memory: Memory, groups: Sequence[Group], step: int) -> Memory:
            return _keep_best(record_outcomes(memory, groups, step, settings.decay), step, settings)

        return Curriculum(
            choose=lambda request, memory: _replay_and_edit(request, memory, settings), observe=observe, edits=True
        )


def _replay_and_edit(request: Request, memory: Memory, settings: AccelSettings) -> Choice:
    assert request.mutate is not None, "a curriculum that edits needs a task that offers mutate"
    generator = request.generator()
    pool = {problem.id: problem for problem in request.problems} | dict(memory.made)
    known = look_up(list(pool), memory, request.step)
    score = np.where(known.seen, SCORES[settings.score](known), 0.0)
    edits = round(settings.edit_share * request.count) if score.any() else 0
    problems, why, made = [], [], dict(memory.made)
    everything = list(pool.values())
    parents = shares(score ** (1.0 / settings.temperature))
    for i in generator.choice(len(everything), edits, p=parents):
        child = request.mutate(everything[i], generator)
        if child.id not in pool:
            made[child.id] = child
        problems.append(pool.get(child.id, child))
        why.append(f"edited from '{everything[i].id}', {settings.score} {score[i]:.3g}")
    rest = replace(request, count=request.count - edits)
    replayed = _replay(everything, rest, memory, settings, generator)
    return Choice(problems + replayed.problems, why + replayed.why, replayed.entropy, replace(memory, made=made))


def _keep_best(memory: Memory, step: int, settings: AccelSettings) -> Memory:
    """Forget the edited problems of the lowest scores when there are too many."""
    names = list(memory.made)
    score = SCORES[settings.score](look_up(names, memory, step))
    kept = {names[i] for i in np.argsort(-score, kind="stable")[: settings.most_made]}
    gone = set(names) - kept
    return Memory(
        {name: numbers for name, numbers in memory.seen.items() if name not in gone},
        {name: problem for name, problem in memory.made.items() if name in kept},
    )
