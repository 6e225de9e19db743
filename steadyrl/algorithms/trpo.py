"""Trust region policy optimisation, experimental: no critic, the other rollouts of a problem are the baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from steadyrl.algorithms.natural import Region, natural_step
from steadyrl.algorithms.rloo import prepare
from steadyrl.core.config import Config
from steadyrl.core.protocols import Algorithm
from steadyrl.core.sections import Section
from steadyrl.core.types import Array, TokenScores
from steadyrl.maths import losses
from steadyrl.maths.select import drop_unscored


class Settings(Section):
    """TRPO's own settings. Experimental. It needs rollout.samples_per_prompt of at least 2.

    update.learning_rate and update.max_grad_norm have no effect: max_kl says how far a step goes.
    """

    max_kl: float = Field(0.01, gt=0, description="Maximum KL of an update to the policy before it, nats per token.")
    iterations: int = Field(
        10, ge=1, le=1000, description="Iterations of conjugate gradients. Each computes the batch's gradient twice."
    )
    damping: float = Field(
        0.1, gt=0, description="Added to the curvature, as a share of the curvature along the gradient."
    )
    halvings: int = Field(8, ge=0, le=50, description="How many times the line search halves a step at most.")
    kl_coef: float = Field(
        0.0, ge=0, description="Penalty in the reward per nat of KL to the reference. 0 needs no reference."
    )


def check(config: Config, settings: Settings) -> list[str]:
    """Return what is wrong with a config: the autopilot controls the learning rate, which moves nothing here."""
    if config.autopilot.mode == "off":
        return []
    return [
        f"autopilot.mode is '{config.autopilot.mode}', but update.learning_rate has no effect with algorithm.name = "
        f"'{config.algorithm.name}', where algorithm.args.max_kl says how far a step goes; set autopilot.mode to 'off'"
    ]


def build(settings: Settings) -> Algorithm:
    """Return TRPO as a record of functions."""
    region = Region(settings.max_kl, settings.iterations, settings.damping, settings.halvings)
    return Algorithm(
        needs=frozenset({"ref_logprobs"} if settings.kl_coef else ()),
        select=drop_unscored,
        prepare=lambda batch, numbers: prepare(batch, settings.kl_coef),
        loss=surrogate_loss,
        update=lambda backend, batch, algorithm, sampling, rate, limit: natural_step(
            backend, batch, algorithm, sampling, region
        ),
        compares=True,
    )


def surrogate_loss(
    xp: Any, new: TokenScores, arrays: Mapping[str, Array], count: float
) -> tuple[Array, dict[str, Array]]:
    """Compute -A * ratio: what the trust region, and no clip, bounds.

    Source: Schulman et al., "Trust Region Policy Optimization" (arXiv 1502.05477), equation 14, negated.
    """
    mask = arrays["mask"]
    log_ratio = losses.token_log_ratio(xp, new.logprobs, arrays["old_logprobs"], mask)
    ratio = xp.exp(xp.clip(log_ratio, -losses.MAX_LOG_RATIO, losses.MAX_LOG_RATIO))
    policy = -arrays["advantages"] * ratio
    sums = {"loss/policy": (policy * mask).sum(), **losses.kl_old_sums(xp, new.logprobs, arrays)}
    return losses.reduce(xp, policy, mask, count), sums
