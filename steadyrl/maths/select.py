"""Which rollouts train: functions from groups to groups, named in algorithms and configs.

A group without remaining rollouts is dropped too. The remaining groups and rollouts keep their order. Every function
drops unscored rollouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from steadyrl.core.types import Group, Rollout


def drop_unscored(groups: Sequence[Group]) -> list[Group]:
    """Drop rollouts without a reward: a missing reward is not 0 and must not count as 0 in a baseline."""
    scored_groups = []
    for group in groups:
        scored = tuple(rollout for rollout in group.rollouts if rollout.reward is not None)
        if scored:
            scored_groups.append(replace(group, rollouts=scored))
    return scored_groups


def drop_equal_rewards(groups: Sequence[Group]) -> list[Group]:
    """Drop groups in which all scored rollouts have the same reward, and unscored rollouts everywhere.

    Under every group baseline such a group has advantages of 0: it costs a backward pass, and its tokens dilute the
    mean over the minibatch. A group with a single scored rollout is such a group.

    Source:
        Yu et al., "DAPO" (arXiv 2503.14476), section 3.2 (dynamic sampling), without drawing replacements.
    """
    return [group for group in drop_unscored(groups) if len({rollout.reward for rollout in group.rollouts}) > 1]


def prefer_signal(groups: Sequence[Group]) -> list[Group]:
    """Drop groups of equal rewards like ``drop_equal_rewards``, unless there are no others.

    A step in which no rewards differ (all problems mastered, or none solved) then has advantages of 0 and does not end
    the run.
    """
    return drop_equal_rewards(groups) or drop_unscored(groups)


def best_of_n(groups: Sequence[Group], count: int = 1) -> list[Group]:
    """Keep the ``count`` rollouts with the highest rewards of each group, the first among equals, the best first.

    This is for imitating the policy's own best answers (rejection sampling): a group baseline of one rollout leaves 0.
    """
    assert count >= 1, f"count {count} must be at least 1"
    return [
        replace(group, rollouts=tuple(sorted(group.rollouts, key=_reward, reverse=True)[:count]))
        for group in drop_unscored(groups)
    ]


def _reward(rollout: Rollout) -> float:
    assert rollout.reward is not None, "unscored rollouts are dropped before they are compared"
    return rollout.reward
