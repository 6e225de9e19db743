"""Proximal policy optimisation with a value head and a KL penalty in the reward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
from pydantic import Field

from steadyrl.core.config import Config
from steadyrl.core.protocols import Algorithm, Numbers
from steadyrl.core.sections import Section
from steadyrl.core.types import Array, Batch, TokenScores
from steadyrl.maths import kl, losses
from steadyrl.maths.advantages import at_turn_ends, gae, penalised_rewards, scale_to_unit_std, turn_gae, whiten
from steadyrl.maths.select import drop_unscored


class Settings(Section):
    """PPO's own settings."""

    kl_coef: float = Field(0.05, ge=0)
    """Penalty in the reward per nat of KL to the reference, at the start of the run."""
    kl_control: Literal["fixed", "adaptive"] = Field("fixed")
    """'adaptive' changes kl_coef so that the KL approaches kl_target."""
    kl_target: float = Field(6.0, gt=0, description="Target KL of the adaptive controller, in nats per sequence.")
    kl_horizon: float = Field(20.0, ge=1)
    """Horizon of the adaptive controller, in steps. A step changes kl_coef by at most a factor 1 +- 0.2 /
    kl_horizon."""
    gamma: float = Field(1.0, ge=0, le=1, description="Discount per token, or per turn with credit = 'turn'.")
    lam: float = Field(0.95, ge=0, le=1, description="GAE's lambda.")
    credit: Literal["episode", "turn"] = Field("episode")
    """Steps of the decision process. 'episode' has one per token, and the reward at the last one. 'turn' has one per
    turn, with the rewards that the environment gives to turns."""
    clip_low: float = Field(0.2, gt=0, lt=1, description="Lower clip bound of the ratio: 1 - clip_low.")
    clip_high: float = Field(0.2, gt=0, le=1000, description="Upper clip bound of the ratio: 1 + clip_high.")
    clip_value: float = Field(0.2, gt=0)
    """Clip range for the change of a value per step, in units of the return."""
    value_coef: float = Field(0.1, ge=0, description="Weight of the value loss.")
    value_start: Literal["zero", "mean_return"] = Field("mean_return")
    """What the value head predicts at first: 0, or the mean return of the first batch, from which it then learns the
    differences."""
    value_learning_rate: float = Field(1e-4, ge=0, le=10)
    """Learning rate of the value head in steps in which the policy's is lower. 0 always gives it the policy's."""
    value_warmup_steps: int = Field(0, ge=0)
    """Number of steps at the start in which only the value head learns."""
    entropy_coef: float = Field(0.0, ge=0)
    """Weight of the entropy bonus in the loss, per nat of exact entropy."""
    whiten_advantages: bool = Field(True)
    """Normalise advantages to mean 0 and standard deviation 1 over a step's tokens."""
    whiten_rewards: bool = Field(False)
    """Scale the token rewards to standard deviation 1 and keep their mean."""


def check(config: Config, settings: Settings) -> list[str]:
    """Return what is wrong with a config: a head that learns while the policy does not needs a rate of its own."""
    if not settings.value_warmup_steps or settings.value_learning_rate:
        return []
    return [
        f"algorithm.args.value_warmup_steps is {settings.value_warmup_steps}, and value_learning_rate = 0 gives the "
        "value head the policy's rate, which is 0 in these steps; set it to 1e-4, which is usual"
    ]


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
        value_rate=settings.value_learning_rate,
        value_warmup=settings.value_warmup_steps,
    )


def _prepare(batch: Batch, numbers: Numbers, settings: Settings) -> Batch:
    """Turn rewards into advantages and value targets: the KL penalty at every token, the reward at the last.

    With credit by turn the shares of the turns stand at their last tokens, and the rest of the reward at the last.
    """
    old, mask = batch.old, batch.completion_mask
    assert old is not None and old.values is not None, "score the batch first, values included"
    by_turn = settings.credit == "turn"
    estimate = turn_gae if by_turn else gae
    earned = at_turn_ends(batch.rewards, batch.turn_rewards if by_turn else None, mask)  # [B, T]
    no_rewards = np.zeros(len(mask))  # [B]: what remains are the penalties
    token_rewards = earned + penalised_rewards(no_rewards, old.logprobs, old.ref_logprobs, numbers["kl_coef"], mask)
    if settings.whiten_rewards:
        token_rewards = scale_to_unit_std(token_rewards, mask)
    level = numbers.get("value_level")  # None in the first step of a run
    if level is None:
        _, mc_returns = estimate(token_rewards, np.zeros(mask.shape), mask, settings.gamma, 1.0)
        level = float(mc_returns[mask].mean()) if settings.value_start == "mean_return" else 0.0
    values = old.values + level  # [B, T]; the head learns differences from the level
    advantages, returns = estimate(token_rewards, values, mask, settings.gamma, settings.lam)
    return replace(
        batch,
        old=replace(old, values=values),
        advantages=whiten(advantages, batch.trained_mask) if settings.whiten_advantages else advantages,
        returns=returns,
        measured={**batch.measured, "advantages_raw": advantages, "value_level": np.full(mask.shape, level)},
    )


def _loss(
    xp: Any, new: TokenScores, arrays: Mapping[str, Array], count: float, settings: Settings
) -> tuple[Array, dict[str, Array]]:
    mask = arrays["mask"]
    log_ratio = losses.token_log_ratio(xp, new.logprobs, arrays["old_logprobs"], mask)  # [B, T]
    policy, clipped = losses.clipped_policy(xp, log_ratio, arrays["advantages"], settings.clip_low, settings.clip_high)
    value, value_clipped = losses.clipped_value(
        xp, new.values + arrays.get("value_level", 0.0), arrays["old_values"], arrays["returns"], settings.clip_value
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
    """Keep the level of the values; move the KL coefficient to its target, where it is adaptive and the KL known."""
    if "value/mean" in metrics:  # of the first step: the head itself begins at 0
        numbers = {"value_level": metrics["value/mean"] if settings.value_start == "mean_return" else 0.0, **numbers}
    coef, measured = numbers["kl_coef"], metrics.get("kl_ref_k1_seq")
    if settings.kl_control == "fixed" or measured is None or coef == 0:
        return dict(numbers)
    return {**numbers, "kl_coef": kl.adapt_coefficient(coef, measured, settings.kl_target, settings.kl_horizon)}
