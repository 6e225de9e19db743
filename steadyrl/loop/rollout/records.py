"""What the run directory keeps of rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from steadyrl.core.types import Group, Rollout
from steadyrl.maths.advantages import turn_numbers

LONGEST_SEEN = 4000  # characters of what an environment showed at a turn


def rollout_records(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return a line of rollouts/*.jsonl for every rollout."""
    return [
        {
            "problem": rollout.problem_id,
            "prompt": group.problem.prompt,
            "completion": rollout.text,
            "reward": rollout.reward,
            "parts": dict(rollout.parts),
            "unscored": rollout.unscored,
            "note": rollout.note,
            "stop_reason": rollout.stop_reason,
            "policy_version": rollout.policy_version,
            "tokens": rollout.length,
            **({"messages": list(group.problem.messages)} if group.problem.messages else {}),
            **(episode_record(rollout) if rollout.turns else {}),
        }
        for group in groups
        for rollout in group.rollouts
    ]


def episode_record(rollout: Rollout) -> dict[str, Any]:
    """Return the record of an episode: its turns, what it read between them, calls, outcome and rewards of turns."""
    observed = [text[:LONGEST_SEEN] for text in rollout.seen]
    more: dict[str, Any] = {}
    if rollout.turn_rewards:
        turns = turn_numbers(rollout.completion_mask[None])[0]  # [T]
        by_turn = {int(turns[end - 1]): reward for end, reward in rollout.turn_rewards}
        more["turn_rewards"] = [by_turn.get(turn) for turn in range(len(rollout.turns))]
    if any(rollout.calls):
        more["calls"] = [
            [{**asdict(call), "result": call.result[:LONGEST_SEEN]} for call in turn] for turn in rollout.calls
        ]
    return {"turns": rollout.turns, "seen": observed, "outcome": dict(rollout.outcome), **more}


def choice_records(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return what curriculum.jsonl says of every problem of a step: why it was chosen, and what it earned."""
    return [
        {"problem": group.problem.id, "why": group.why, "rewards": [rollout.reward for rollout in group.rollouts]}
        for group in groups
    ]
