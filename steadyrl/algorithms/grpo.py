"""Group relative policy optimisation: no critic, the other rollouts of a problem are the baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import Field

from steadyrl import kl, losses
from steadyrl.advantages import group_baseline, group_scale
from steadyrl.config import Section
from steadyrl.errors import ConfigError
from steadyrl.select import drop_unscored
from steadyrl.types import Algorithm, Array, Batch, Numbers, TokenScores


class GRPOSettings(Section):
    """GRPO's own numbers; it needs rollout.samples_per_prompt of at least 2."""

    kl_coef: float = Field(0.01, ge=0, description="weight of the KL to the reference (k3) in the loss; 0 needs none")
    clip_low: float = Field(0.2, gt=0, lt=1, description="the ratio's lower bound is 1 - clip_low")
    clip_high: float = Field(0.2, gt=0, description="the ratio's upper bound is 1 + clip_high")


class GRPO:
    """Builds the algorithm from its settings; the name that the config loads."""

    Settings = GRPOSettings

    @staticmethod
    def build(settings: GRPOSettings) -> Algorithm:
        """Return GRPO as a record of functions."""

        def loss(
            xp: Any, new: TokenScores, arrays: Mapping[str, Array], count: float
        ) -> tuple[Array, dict[str, Array]]:
            return _loss(xp, new, arrays, count, settings)

        return Algorithm(
            needs=frozenset({"ref_logprobs"} if settings.kl_coef else ()),
            select=drop_unscored,
            prepare=_prepare,
            loss=loss,
            adapt=lambda numbers, metrics: dict(numbers),
            state={},
        )


def _prepare(batch: Batch, numbers: Numbers) -> Batch:
    """Give every token of a rollout its reward less the group's mean, over the group's standard deviation.

    Raises:
        ConfigError: Every group is a single rollout, which is its own mean and teaches nothing.

    Source: Shao et al., "DeepSeekMath" (arXiv 2402.03300), outcome supervision, section 4.1.2.
    """
    if len(np.unique(batch.groups)) == len(batch.groups):
        raise ConfigError(
            "GRPO compares the rollouts of a problem, and every problem has one; set rollout.samples_per_prompt to 2 "
            "or more (8 is usual)"
        )
    advantages = group_scale(group_baseline(batch.rewards, batch.groups), batch.groups)  # [B]
    spread = np.where(batch.completion_mask, advantages[:, None], 0.0)  # [B, T]
    return replace(batch, advantages=spread, measured={**batch.measured, "advantages_raw": spread})


def _loss(
    xp: Any, new: TokenScores, arrays: Mapping[str, Array], count: float, settings: GRPOSettings
) -> tuple[Array, dict[str, Array]]:
    mask, old_logprobs = arrays["mask"], arrays["old_logprobs"]
    policy, clipped = losses.clipped_policy(
        xp, new.logprobs, old_logprobs, arrays["advantages"], settings.clip_low, settings.clip_high
    )
    per_token = policy
    if settings.kl_coef:
        per_token = per_token + settings.kl_coef * kl.k3(xp, new.logprobs, arrays["ref_logprobs"])
    sums = {
        "loss/policy": (policy * mask).sum(),
        "clip_fraction": (clipped * mask).sum(),
        "kl_old_k1": (kl.k1(xp, old_logprobs, new.logprobs) * mask).sum(),
        "kl_old_k3": (kl.k3(xp, old_logprobs, new.logprobs) * mask).sum(),
    }
    return losses.reduce(xp, per_token, mask, count), sums
