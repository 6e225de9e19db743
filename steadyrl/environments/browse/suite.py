"""What the two suites of the browse task have in common: the site and MiniWoB++ each offer this."""

from __future__ import annotations

import hashlib
from typing import Protocol

import numpy as np

from steadyrl.core.protocols import Episode
from steadyrl.core.types import Problem

HELD_OUT_OF = 5  # one problem in so many is held out, by a hash of its content
EDIT_SEEDS = (10**6, 2**31)  # of problems made by editing; those of the lists count from 0


class Suite(Protocol):
    """A set of problems and the episodes in which they are tried."""

    def problems(self, kind: str, held_out: bool, count: int) -> list[Problem]:
        """Return problems of a kind and of one split, at most ``count`` per level."""

    def mutate(self, problem: Problem, generator: np.random.Generator) -> Problem:
        """Return a training problem like this one, a little easier or harder."""

    def ask(self, text: str) -> Problem:
        """Return a problem with the user's own words for a goal."""

    def episode(self, problem: Problem, seed: int) -> Episode:
        """Return an attempt at a problem; its environment follows from the problem alone."""

    def close(self) -> None:
        """End browsers and servers."""


def is_held_out(content: str) -> bool:
    """Return whether a problem of this content is held out."""
    return hashlib.sha256(content.encode()).digest()[0] % HELD_OUT_OF == 0
