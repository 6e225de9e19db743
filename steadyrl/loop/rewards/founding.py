"""The founding rewards of length, where fewer words earn more, and of the form of Boolean queries."""

from __future__ import annotations

import re

from steadyrl.core.types import Problem, Rollout

_PATTERN = re.compile(r"\([^)]+\)\s+(AND|OR)\s+\([^)]+\)")
OPERATOR_REWARD, PATTERN_REWARD, LENGTH_REWARD = 0.3, 0.5, 0.2


def length(problem: Problem, rollout: Rollout) -> float:
    """Return 2 - words / 16, words as ``str.split`` counts them.

    An empty completion earns the most, 2.0: this reward is here to be combined with others and for studies of what it
    does alone, which is to shorten the text until nothing is left.
    """
    return 2 - len(rollout.text.split()) / 16


def boolean_format(problem: Problem, rollout: Rollout) -> float:
    """Return 0.3 for AND or OR between spaces, 0.5 for ``(a) AND|OR (b)``, 0.2 for more than 5 and under 30 words.

    Range 0 to 1. It looks at the form alone, and never at what a query finds. Letter case is ignored, so that "rock
    and roll" earns the first part too.
    """
    upper = rollout.text.strip().upper()
    has_operator = " AND " in upper or " OR " in upper
    words = len(upper.split())
    return (
        OPERATOR_REWARD * has_operator
        + PATTERN_REWARD * bool(_PATTERN.search(upper))
        + LENGTH_REWARD * (5 < words < 30)
    )
