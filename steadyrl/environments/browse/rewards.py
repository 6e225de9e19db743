"""The parts of the browse task's reward, read from what an episode came to. Success outweighs all others together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from steadyrl.core.protocols import RewardFn
from steadyrl.core.types import Problem, Rollout, Score

INVALID_COST = 0.1  # of an action that is none or impossible; a fifth of it in total with the weight of the examples
MOST_INVALID = 1.0  # where the cost ends: a policy that has gone wrong cannot lose more and more by staying


def browse_rewards(max_turns: int) -> Mapping[str, RewardFn]:
    """Return the rewards by name: success, efficiency, progress, invalid, raw."""
    parts: dict[str, Callable[[Mapping[str, Any]], float]] = {
        "success": lambda outcome: outcome["success"],
        # Gated: a policy that fails fast earns nothing for being fast.
        "efficiency": lambda outcome: outcome["success"] * (1.0 - outcome["turns"] / max_turns),
        # A difference of potentials, end less start: whatever is done and undone in between adds up to nothing.
        "progress": lambda outcome: outcome["progress"],
        "invalid": lambda outcome: -min(MOST_INVALID, INVALID_COST * outcome["invalid"]),
        "raw": lambda outcome: outcome["raw"],
    }
    return {name: partial(_score, part) for name, part in parts.items()}


def _score(part: Callable[[Mapping[str, Any]], float], problem: Problem, rollout: Rollout) -> Score:
    if rollout.unscored is not None:
        return Score(None, unscored=rollout.unscored)
    if "success" not in rollout.outcome:
        return Score(None, unscored="no episode was played; the browse task scores episodes, not texts")
    return Score(float(part(rollout.outcome)))
