"""Hides the reasoning of an answer from a reward.

A mark such as ``</think>`` ends the reasoning. A text without the mark is an answer alone, or was cut off in the middle
of its reasoning and holds no answer.
"""

from __future__ import annotations

from dataclasses import replace

from steadyrl.core.types import Rollout, Score
from steadyrl.loop.rewards.functions import BatchReward, Pairs


def answers_alone(reward: BatchReward, mark: str) -> BatchReward:
    """Return a reward that sees what stands behind the last mark of every text."""

    def of_answers(pairs: Pairs) -> list[Score]:
        return reward([(problem, replace(rollout, text=answer_of(rollout, mark))) for problem, rollout in pairs])

    return of_answers


def answer_of(rollout: Rollout, mark: str) -> str:
    """Return the answer in a text that may begin with reasoning; empty where the reasoning did not come to an end."""
    _, separator, answer = rollout.text.rpartition(mark)
    if separator:
        return answer.lstrip()  # space behind the mark parts the answer from the reasoning, and is part of neither
    began = mark.replace("/", "", 1) in rollout.text  # <think>; the prompt may have held it in the text's place
    return "" if began or rollout.stop_reason == "length" else rollout.text
