"""REINFORCE with a leave-one-out baseline: the mean reward of a problem's other rollouts, which leaves no bias."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from pydantic import Field

from steadyrl.core.protocols import Algorithm
from steadyrl.core.sections import Section
from steadyrl.core.types import Batch
from steadyrl.maths.advantages import at_every_token, leave_one_out, penalised_rewards
from steadyrl.maths.losses import policy_loss
from steadyrl.maths.select import drop_unscored


class Settings(Section):
    """RLOO's own settings. RLOO needs rollout.samples_per_prompt of at least 2."""

    kl_coef: float = Field(0.01, ge=0)
    """Penalty in the reward per nat of KL to the reference. 0 needs no reference."""
    clip_low: float = Field(0.2, gt=0, lt=1, description="Lower clip bound of the ratio: 1 - clip_low.")
    clip_high: float = Field(0.2, gt=0, le=1000, description="Upper clip bound of the ratio: 1 + clip_high.")


def build(settings: Settings) -> Algorithm:
    """Return RLOO as a record of functions."""
    return Algorithm(
        needs=frozenset({"ref_logprobs"} if settings.kl_coef else ()),
        select=drop_unscored,
        prepare=lambda batch, numbers: prepare(batch, settings.kl_coef),
        # In a step's first update the ratio is 1, and this is the paper's estimator. The clip limits later updates.
        loss=partial(policy_loss, clip_low=settings.clip_low, clip_high=settings.clip_high),
        compares=True,
    )


def prepare(batch: Batch, kl_coef: float) -> Batch:
    """Give every token of a rollout its penalised reward less the mean of those of the others in its group.

    Source: Ahmadian et al., "Back to Basics" (arXiv 2402.14740): the RLOO estimator, on the reward less
    kl_coef * log(p / ref) of the whole completion.
    """
    old, mask = batch.old, batch.completion_mask
    assert old is not None, "score the batch first"
    returns = penalised_rewards(batch.rewards, old.logprobs, old.ref_logprobs, kl_coef, mask).sum(axis=1)  # [B]
    token_advantages = at_every_token(leave_one_out(returns, batch.groups), mask)  # [B, T]
    return replace(batch, advantages=token_advantages, measured={**batch.measured, "advantages_raw": token_advantages})
