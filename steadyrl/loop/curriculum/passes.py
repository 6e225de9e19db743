"""Shuffled passes over all problems."""

from __future__ import annotations

import numpy as np

from steadyrl.core.sections import Section
from steadyrl.loop.curriculum.choice import Choice, Curriculum, Request
from steadyrl.loop.curriculum.memory import Memory


def uniform(problems: int, position: int, count: int, seed: int) -> list[int]:
    """Return the next problems of an endless series of shuffled passes over all of them.

    It depends only on how many were drawn before, so that nothing but that number has to be saved.

    Args:
        problems: How many there are, at least one.
        position: How many were drawn so far.
        count: How many to draw.
        seed: The run's; every pass has a shuffle of its own.

    Returns:
        ``count`` indices below ``problems``.
    """
    indices: list[int] = []
    while len(indices) < count:
        pass_number, start = divmod(position + len(indices), problems)
        order = np.random.default_rng([seed, pass_number]).permutation(problems)
        indices += order[start : start + count - len(indices)].tolist()
    return indices


class Settings(Section):
    """The curriculum 'uniform' has no settings."""


def build(settings: Settings) -> Curriculum:
    """Return the passes as a record of functions."""

    def choose(request: Request, memory: Memory) -> Choice:
        indices = uniform(len(request.problems), request.drawn, request.count, request.seed)
        return Choice([request.problems[i] for i in indices], [""] * len(indices), None, memory)

    return Curriculum(choose=choose, observe=lambda memory, groups, step: memory)
