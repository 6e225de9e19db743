"""Which rollouts train: functions from groups to groups, named in algorithms and configs.

A group whose last rollout goes is dropped as well. Groups and rollouts that stay keep their order. None lets an
unscored rollout pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from steadyrl.types import Group, Rollout


def drop_unscored(groups: Sequence[Group]) -> list[Group]:
    """Drop rollouts without a reward: no reward is not a reward of 0, and must not enter a baseline as one."""
    kept = []
    for group in groups:
        scored = tuple(rollout for rollout in group.rollouts if rollout.reward is not None)
        if scored:
            kept.append(replace(group, rollouts=scored))
    return kept


def drop_equal_rewards(groups: Sequence[Group]) -> list[Group]:
    """Drop groups in which all scored rollouts have the same reward, and unscored rollouts everywhere.

    Such a group has advantages of 0 under every group baseline: it costs a backward pass, and its tokens dilute
    the mean over the minibatch. A group with a single scored rollout is one of them.

    Source:
        Yu et al., "DAPO" (arXiv 2503.14476), section 3.2 (dynamic sampling), without drawing replacements.
    """
    return [group for group in drop_unscored(groups) if len({rollout.reward for rollout in group.rollouts}) > 1]


def prefer_signal(groups: Sequence[Group]) -> list[Group]:
    """Drop groups of equal rewards like ``drop_equal_rewards``, unless there are no others.

    A step in which nothing differs (all problems mastered, or none solved) is then a step of zero advantages, and
    not the end of the run.
    """
    return drop_equal_rewards(groups) or drop_unscored(groups)


def best_of_n(groups: Sequence[Group], count: int = 1) -> list[Group]:
    """Keep the ``count`` rollouts with the highest rewards of each group, the first among equals, the best first.

    For imitation of the policy's own best answers (rejection sampling); a group baseline over one rollout is 0.
    """
    assert count >= 1, f"count {count} must be at least 1"
    return [
        replace(group, rollouts=tuple(sorted(group.rollouts, key=_reward, reverse=True)[:count]))
        for group in drop_unscored(groups)
    ]


def _reward(rollout: Rollout) -> float:
    """Return the reward of a scored rollout."""
    assert rollout.reward is not None, "unscored rollouts are dropped before they are compared"
    return rollout.reward
