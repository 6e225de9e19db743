"""REINFORCE++: no critic and no groups; token-level KL in the reward, advantages normalised over the batch."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from pydantic import Field

from steadyrl.core.protocols import Algorithm
from steadyrl.core.sections import Section
from steadyrl.core.types import Batch
from steadyrl.maths.advantages import gae, penalised_rewards, whiten
from steadyrl.maths.losses import policy_loss
from steadyrl.maths.select import drop_unscored


class Settings(Section):
    """REINFORCE++'s own settings. One rollout per problem is enough."""

    kl_coef: float = Field(0.01, ge=0)
    """Penalty in the reward per nat of KL to the reference. 0 needs no reference."""
    gamma: float = Field(1.0, ge=0, le=1, description="Discount per token.")
    clip_low: float = Field(0.2, gt=0, lt=1, description="Lower clip bound of the ratio: 1 - clip_low.")
    clip_high: float = Field(0.2, gt=0, le=1000, description="Upper clip bound of the ratio: 1 + clip_high.")


def build(settings: Settings) -> Algorithm:
    """Return REINFORCE++ as a record of functions."""
    return Algorithm(
        needs=frozenset({"ref_logprobs"} if settings.kl_coef else ()),
        select=drop_unscored,
        prepare=lambda batch, numbers: _prepare(batch, settings),
        loss=partial(policy_loss, clip_low=settings.clip_low, clip_high=settings.clip_high),
    )


def _prepare(batch: Batch, settings: Settings) -> Batch:
    """Give every token the reward and the penalties from itself on, less the batch's mean, over its deviation.

    Source: Hu et al., "REINFORCE++" (arXiv 2501.03262): A_t = r - kl_coef * sum of KL(i) over i >= t, with k1, then
    normalised over the global batch.
    """
    old, mask = batch.old, batch.completion_mask
    assert old is not None, "score the batch first"
    token_rewards = penalised_rewards(batch.rewards, old.logprobs, old.ref_logprobs, settings.kl_coef, mask)
    # With values of 0 and lambda 1 the advantage is the discounted sum of what is still to come.
    raw, _ = gae(token_rewards, np.zeros(mask.shape), mask, settings.gamma, 1.0)  # [B, T]
    measured = {**batch.measured, "advantages_raw": raw, "kept": mask}
    return replace(batch, advantages=whiten(raw, batch.trained_mask), measured=measured)
