"""Which part of the reward drives the policy: what each of them has in the variance of the total."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steadyrl.core.types import Group
from steadyrl.loop.rewards.combine import Term


def reward_shares(groups: Sequence[Group], terms: Sequence[Term]) -> dict[str, float]:
    """Return ``reward_share/<part>``: weight * cov(part, total) / var(total), over the scored rollouts.

    The shares of all parts add up to 1. One below 0 belongs to a part that works against the others. Nothing is
    returned where fewer than two parts have a weight, or where the total does not vary.
    """
    weighted = [term for term in terms if term.weight]
    rollouts = [r for group in groups for r in group.rollouts if r.reward is not None]
    if len(weighted) < 2 or not rollouts:
        return {}
    # A part that does not apply to a rollout adds nothing to its total.
    parts = np.array([[term.weight * r.parts.get(term.name, 0.0) for r in rollouts] for term in weighted])
    total = parts.sum(axis=0)
    total -= total.mean()
    variance = float(np.mean(total**2))
    if variance < 1e-12:
        return {}
    return {
        f"reward_share/{term.name}": float(np.mean(part * total)) / variance
        for term, part in zip(weighted, parts, strict=True)
    }
