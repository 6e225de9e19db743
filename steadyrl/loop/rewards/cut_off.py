"""The reward ``cut_off``: 1 for an answer that reached the token limit; a negative weight makes it a penalty.

With ``mask`` such an answer does not train at all. Its reward still counts in the baseline of its group.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from steadyrl.core.protocols import RewardFn, Task
from steadyrl.core.sections import RewardSettings
from steadyrl.core.types import Score
from steadyrl.loop.rewards.functions import BatchReward, Pairs


class Settings(RewardSettings):
    """Settings of the reward for cut-off answers."""

    mask: bool = Field(False, description="Leave the tokens of answers that were cut off out of the loss.")


def build(settings: Settings, task: Task, own: Mapping[str, RewardFn]) -> BatchReward:
    """Return the reward."""

    def reward(pairs: Pairs) -> list[Score]:
        cut = [rollout.stop_reason == "length" for _, rollout in pairs]
        return [Score(float(is_cut), trains=not (is_cut and settings.mask)) for is_cut in cut]

    return reward
