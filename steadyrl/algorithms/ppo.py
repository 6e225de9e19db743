"""Proximal policy optimisation with a value head and a KL penalty in the reward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from pydantic import Field

from steadyrl import kl, losses
from steadyrl.advantages import gae, penalised_rewards, scale_to_unit_std, whiten
from steadyrl.protocols import Algorithm, Numbers
from steadyrl.sections import Section
from steadyrl.select import drop_unscored
from steadyrl.types import Array, Batch, TokenScores


class Settings(Section):
    """PPO's own settings."""

    kl_coef: float = Field(
        0.05, ge=0, description="Penalty in the reward per nat of KL to the reference, at the start of the run."
    )
    kl_control: Literal["fixed", "adaptive"] = Field(
        "fixed", description="'adaptive' changes kl_coef so that the KL approaches kl_target."
    )
    kl_target: float = Field(6.0, gt=0, description="Target KL of the adaptive controller, in nats per sequence.")
    kl_horizon: float = Field(
        20.0,
        ge=1,
        description="Horizon of the adaptive controller, in steps. A step changes kl_coef by at most a factor 1 "
        "+- 0.2 / kl_horizon.",
    )
    gamma: float = Field(1.0, ge=0, le=1, description="Discount per token.")
    lam: float = Field(0.95, ge=0, le=1, description="GAE's lambda.")
    clip_low: float = Field(0.2, gt=0, lt=1, description="Lower clip bound of the ratio: 1 - clip_low.")
    clip_high: float = Field(0.2, gt=0, le=1000, description="Upper clip bound of the ratio: 1 + clip_high.")
    clip_value: float = Field(
        0.2, gt=0, description="Clip range for the change of a value per step, in units of the return."
    )
    value_coef: float = Field(0.1, ge=0, description="Weight of the value loss.")
    entropy_coef: float = Field(
        0.0, ge=0, description="Weight of the entropy bonus in the loss, per nat of exact entropy."
    )
    whiten_advantages: bool = Field(
        True, description="Normalise advantages to mean 0 and standard deviation 1 over a step's tokens."
    )
    whiten_rewards: bool = Field(
        False, description="Scale the token rewards to standard deviation 1 and keep their mean."
    )


def build(settings: Settings) -> Algorithm:
    """Return PPO as a record of functions."""
    needs = {"ref_logprobs", "values"} | ({"entropy"} if settings.entropy_coef else set())
    return Algorithm(
        needs=frozenset(needs),
        select=drop_unscored,
        prepare=partial(_prepare, settings=settings),
        loss=partial(_loss, settings=settings),
        adapt=partial(_adapt, settings=settings),
        state={"kl_coef": settings.kl_coef},
    )


def _prepare(batch: Batch, numbers: Numbers, settings: Settings) -> Batch:
    """Turn rewards into advantages and value targets: the KL penalty at every token, the reward at the last."""
    old, mask = batch.old, batch.completion_mask
    assert old is not None and old.values is not None, "score the batch first, values included"
    token_rewards = penalised_rewards(batch.rewards, old.logprobs, old.ref_logprobs, numbers["kl_coef"], mask)  # [B, T]
    if settings.whiten_rewards:
        token_rewards = scale_to_unit_std(token_rewards, mask)
    advantages, returns = gae(token_rewards, old.values, mask, settings.gamma, settings.lam)
    return replace(
        batch,
        advantages=whiten(advantages, batch.trained_mask) if settings.whiten_advantages else advantages,
        returns=returns,
        measured={**batch.measured, "advantages_raw": advantages},
    )


def _loss(
    xp: Any, new: TokenScores, arrays: Mapping[str, Array], count: float, settings: Settings
) -> tuple[Array, dict[str, Array]]:
    mask = arrays["mask"]
    log_ratio = losses.token_log_ratio(xp, new.logprobs, arrays["old_logprobs"], mask)
    policy, clipped = losses.clipped_policy(xp, log_ratio, arrays["advantages"], settings.clip_low, settings.clip_high)
    value, value_clipped = losses.clipped_value(
        xp, new.values, arrays["old_values"], arrays["returns"], settings.clip_value
    )
    per_token = policy + settings.value_coef * value
    if settings.entropy_coef:
        assert new.entropy is not None, "the algorithm needs 'entropy'"
        per_token = per_token - settings.entropy_coef * new.entropy
    sums = {
        **losses.policy_sums(xp, policy, clipped, new.logprobs, arrays),
        "loss/value": (value * mask).sum(),
        "clip_fraction_value": (value_clipped * mask).sum(),
    }
    return losses.reduce(xp, per_token, mask, count), sums


def _adapt(numbers: Numbers, metrics: Numbers, settings: Settings) -> dict[str, float]:
    """Move the KL coefficient towards its target, where it is adaptive and the KL was measured."""
    coef, measured = numbers["kl_coef"], metrics.get("kl_ref_k1_seq")
    if settings.kl_control == "fixed" or measured is None or coef == 0:
        return dict(numbers)
    return {**numbers, "kl_coef": kl.adapt_coefficient(coef, measured, settings.kl_target, settings.kl_horizon)}
