"""Filtered policy gradient with a KL penalty in the loss: best of N, the top few, or all above a threshold.

A filter sets advantages to 0 and takes no rollout out of the batch. Every sum is then divided by what was sampled, as
it is without a filter. The KL is taken over all samples, as it must be. ``keep = "all"`` is the plain policy gradient.
docs/algorithms/rlaif.md says what each choice does to the gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from steadyrl.algorithms.raft import top_k_problems
from steadyrl.core.config import Config
from steadyrl.core.protocols import Algorithm
from steadyrl.core.sections import Section
from steadyrl.core.types import Array, Batch, TokenScores
from steadyrl.maths import advantages, kl, losses
from steadyrl.maths.select import drop_unscored


class Settings(Section):
    """RLAIF's own settings. RLAIF needs rollout.samples_per_prompt of at least 2."""

    keep: Literal["best", "top_k", "above", "all"] = Field("best")
    """Rollouts of a problem that move the policy: the best, the top_k best, those above reward_threshold, or all."""
    top_k: int = Field(2, ge=1)
    """Number of rollouts to keep, for keep = 'top_k'. rollout.samples_per_prompt is the most, and keeps all."""
    reward_threshold: float | None = Field(None)
    """Rollouts with less reward do not move the policy, for any value of keep. keep = 'above' needs it."""
    baseline: Literal["group", "kept", "none"] = Field("group")
    """What a reward is compared with: the mean of all rollouts of the problem, the mean of the kept ones, or 0."""
    kl_coef: float = Field(0.02, ge=0)
    """Weight of the KL to the reference in the loss. 0 needs no reference."""
    clip_low: float = Field(0.2, gt=0, lt=1, description="Lower clip bound of the ratio: 1 - clip_low.")
    clip_high: float = Field(0.2, gt=0, le=1000, description="Upper clip bound of the ratio: 1 + clip_high.")

    @model_validator(mode="after")
    def _something_is_left(self) -> Settings:
        if self.keep == "above" and self.reward_threshold is None:
            raise ValueError("a reward_threshold for keep = 'above'")
        if self.baseline == "kept" and (self.keep == "best" or (self.keep == "top_k" and self.top_k == 1)):
            raise ValueError("baseline = 'group' or 'none' where one rollout is kept, for it is its own mean")
        return self


def check(config: Config, settings: Settings) -> list[str]:
    """Return what is wrong with the settings beside those of the rest of the config."""
    return top_k_problems(config, settings.top_k) if settings.keep == "top_k" else []


def build(settings: Settings) -> Algorithm:
    """Return the filtered policy gradient as a record of functions."""
    return Algorithm(
        needs=frozenset({"ref_logprobs"} if settings.kl_coef else ()),
        select=drop_unscored,
        prepare=lambda batch, numbers: _prepare(batch, settings),
        loss=partial(_loss, settings=settings),
        compares=settings.baseline != "none" or settings.keep in ("best", "top_k"),
    )


def _prepare(batch: Batch, settings: Settings) -> Batch:
    """Give every token of a kept rollout its reward less the baseline, and the others 0."""
    rewards, groups = batch.rewards, batch.groups
    kept_mask = np.ones(len(rewards), bool)  # [B]
    if settings.keep in ("best", "top_k"):
        kept_mask = advantages.best_of_group(rewards, groups, 1 if settings.keep == "best" else settings.top_k)
    if settings.reward_threshold is not None:
        kept_mask &= rewards >= settings.reward_threshold
    rollout_advantages = {
        "group": lambda: advantages.group_baseline(rewards, groups),
        "kept": lambda: advantages.above_mean_of_kept(rewards, groups, kept_mask),
        "none": lambda: rewards,
    }[settings.baseline]()
    token_advantages = advantages.at_every_token(np.where(kept_mask, rollout_advantages, 0.0), batch.completion_mask)
    token_kept_mask = advantages.at_every_token(kept_mask, batch.completion_mask)
    measured = {"advantages_raw": token_advantages, "kept": token_kept_mask}
    return replace(batch, advantages=token_advantages, measured={**batch.measured, **measured})


def _loss(
    xp: Any, new: TokenScores, arrays: Mapping[str, Array], count: float, settings: Settings
) -> tuple[Array, dict[str, Array]]:
    mask, old = arrays["mask"], arrays["old_logprobs"]
    log_ratio = losses.token_log_ratio(xp, new.logprobs, old, mask)  # [B, T]
    # In a step's first update the ratio is 1, and this is the plain policy gradient. The clip limits later updates.
    policy, clipped = losses.clipped_policy(xp, log_ratio, arrays["advantages"], settings.clip_low, settings.clip_high)
    sums = losses.policy_sums(xp, policy, clipped, new.logprobs, arrays)
    if not settings.kl_coef:
        return losses.reduce(xp, policy, mask, count), sums
    penalty = kl.weighted_k3(xp, new.logprobs, arrays["ref_logprobs"], old)  # [B, T]
    sums["loss/kl"] = (penalty * mask).sum()
    return losses.reduce(xp, policy + settings.kl_coef * penalty, mask, count), sums
