"""Group relative policy optimisation and its family: no critic, the other rollouts of a problem are the baseline.

Every variant of the family is a choice of functions by settings; docs/algorithms/grpo.md has the choices by paper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from pydantic import Field, model_validator

from steadyrl.core.protocols import Algorithm
from steadyrl.core.sections import Section
from steadyrl.core.types import Array, Batch, TokenScores
from steadyrl.maths import advantages, kl, losses
from steadyrl.maths.batch import mean_of_tokens, sum_of_tokens
from steadyrl.maths.select import drop_unscored, prefer_signal

SELECTS = {"all": drop_unscored, "signal": prefer_signal}
SCALES = {"group": advantages.group_scale, "batch": advantages.batch_scale, "none": advantages.unscaled}
RATIOS = {"token": losses.token_log_ratio, "sequence": losses.sequence_log_ratio}
SURROGATES = {"clip": losses.clipped_policy, "weight": losses.clipped_weight}
WEIGHTS = {"sequence": mean_of_tokens, "constant": sum_of_tokens}
KL_FORMS: Mapping[str, Callable[[Any, Array, Mapping[str, Array]], Array]] = {
    "k3": lambda xp, logprobs, arrays: kl.k3(xp, logprobs, arrays["ref_logprobs"]),
    "k2": lambda xp, logprobs, arrays: kl.k2(xp, logprobs, arrays["ref_logprobs"]),
    "weighted_k3": lambda xp, logprobs, arrays: kl.weighted_k3(
        xp, logprobs, arrays["ref_logprobs"], arrays["old_logprobs"]
    ),
}


class Settings(Section):
    """GRPO's own settings. GRPO needs rollout.samples_per_prompt of at least 2."""

    kl_coef: float = Field(0.01, ge=0)
    """Weight of the KL to the reference in the loss. 0 needs no reference."""
    kl_form: Literal["k3", "k2", "weighted_k3"] = Field("k3")
    """Form of the KL in the loss. 'k3' is the published GRPO. 'k2' and 'weighted_k3' have the gradient of the KL
    itself, 'weighted_k3' also after several updates."""
    credit: Literal["episode", "turn"] = Field("episode")
    """What advantages belong to. 'episode' gives every token the advantage of its rollout. 'turn' compares what was
    earned from a turn on with the same turn of the group's other rollouts, with the rewards that the environment gives
    to turns."""
    gamma: float = Field(1.0, ge=0, le=1, description="Discount per turn with credit = 'turn'.")
    clip_low: float = Field(0.2, gt=0, lt=1, description="Lower clip bound of the ratio: 1 - clip_low.")
    clip_high: float = Field(0.2, gt=0, le=1000, description="Upper clip bound of the ratio: 1 + clip_high.")
    surrogate: Literal["clip", "weight"] = Field("clip")
    """'clip' is PPO's clipped surrogate. 'weight' limits importance weights to 1 + clip_high and keeps the gradient of
    every token."""
    ratio: Literal["token", "sequence"] = Field("token")
    """Ratio of the new to the old policy, per token or per completion."""
    scale: Literal["group", "batch", "none"] = Field("group")
    """What advantages are divided by: the standard deviation of the group, that of the batch, or nothing."""
    mean: Literal["token", "sequence", "constant"] = Field("token")
    """How the loss is averaged: 'token' over all tokens, 'sequence' over the means of the rollouts, 'constant' over the
    sums of the rollouts divided by length_limit."""
    groups: Literal["all", "signal"] = Field("all")
    """Groups that train. 'signal' drops groups whose rewards are all equal."""
    length_limit: int = Field(0, ge=0)
    """Length limit in tokens, for mean = 'constant' and overlong_buffer. Set it to sampling.max_new_tokens."""
    overlong_buffer: int = Field(0, ge=0)
    """Number of tokens before length_limit over which a length penalty rises from 0 to 1. 0 disables it."""

    @model_validator(mode="after")
    def _length_limit_is_given(self) -> Settings:
        if self.mean == "constant" and not self.length_limit:
            raise ValueError("a length_limit above 0 (as sampling.max_new_tokens) for mean = 'constant'")
        if self.gamma != 1 and self.credit == "episode":
            raise ValueError("credit = 'turn' for a gamma other than 1, which discounts turns")
        if self.overlong_buffer > self.length_limit:
            raise ValueError("a length_limit (as sampling.max_new_tokens) of at least overlong_buffer")
        return self


def build(settings: Settings) -> Algorithm:
    """Return GRPO as a record of functions."""
    return Algorithm(
        needs=frozenset({"ref_logprobs"} if settings.kl_coef else ()),
        select=SELECTS[settings.groups],
        prepare=lambda batch, numbers: _prepare(batch, settings),
        loss=partial(_loss, settings=settings),
        compares=True,
    )


def _prepare(batch: Batch, settings: Settings) -> Batch:
    """Give every token of a rollout its reward less the group's mean, scaled; and its weight in the loss.

    Source: Shao et al., "DeepSeekMath" (arXiv 2402.03300), outcome supervision, section 4.1.2.
    """
    rewards, mask = batch.rewards, batch.completion_mask  # [B], [B, T]
    if settings.overlong_buffer:
        rewards = rewards + advantages.overlong_penalty(
            mask.sum(axis=1), settings.length_limit, settings.overlong_buffer
        )
    scale = SCALES[settings.scale]
    if settings.credit == "turn":
        token_rewards = advantages.at_turn_ends(rewards, batch.turn_rewards, mask)  # [B, T]
        token_advantages = advantages.turn_advantages(token_rewards, batch.groups, mask, settings.gamma, scale)
    else:
        scaled = scale(advantages.group_baseline(rewards, batch.groups), batch.groups)  # [B]
        token_advantages = advantages.at_every_token(scaled, mask)
    return replace(
        batch,
        advantages=token_advantages,
        weights=None if settings.mean == "token" else WEIGHTS[settings.mean](mask, settings.length_limit),
        measured={**batch.measured, "advantages_raw": token_advantages},
    )


def _loss(
    xp: Any, new: TokenScores, arrays: Mapping[str, Array], count: float, settings: Settings
) -> tuple[Array, dict[str, Array]]:
    mask = arrays["mask"]
    weights = arrays.get("weights", mask)
    log_ratio = RATIOS[settings.ratio](xp, new.logprobs, arrays["old_logprobs"], mask)  # [B, T]
    policy, clipped = SURROGATES[settings.surrogate](
        xp, log_ratio, arrays["advantages"], settings.clip_low, settings.clip_high
    )
    per_token = policy  # [B, T]
    sums = losses.policy_sums(xp, policy, clipped, new.logprobs, arrays)
    if settings.kl_coef:
        penalty = KL_FORMS[settings.kl_form](xp, new.logprobs, arrays)  # [B, T]
        per_token = per_token + settings.kl_coef * penalty
        sums["loss/kl"] = (penalty * weights).sum()
    return losses.reduce(xp, per_token, weights, count), sums
