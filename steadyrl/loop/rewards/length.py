"""The founding length reward: fewer words, more reward."""

from __future__ import annotations

from steadyrl.core.types import Problem, Rollout


def length(problem: Problem, rollout: Rollout) -> float:
    """Return 2 - words / 16, words as ``str.split`` counts them.

    An empty completion earns the most, 2.0: this reward is here to be combined with others and for studies of what it
    does alone, which is to shorten the text until nothing is left.
    """
    return 2 - len(rollout.text.split()) / 16
