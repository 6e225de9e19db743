"""Reward-weighted fine-tuning: the likelihood of all of the policy's answers, the better ones counting for more."""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from steadyrl.algorithms.raft import likelihood_of_samples
from steadyrl.core.protocols import Algorithm
from steadyrl.core.sections import Section
from steadyrl.core.types import Batch
from steadyrl.maths.advantages import at_every_token, exponential_weights
from steadyrl.maths.select import drop_unscored


class Settings(Section):
    """RWR's own settings. RWR needs rollout.samples_per_prompt of at least 2."""

    temperature: float = Field(0.2, gt=0)
    """Temperature in units of the reward. A rollout that is better by this amount has e times the weight."""


def build(settings: Settings) -> Algorithm:
    """Return reward-weighted fine-tuning as a record of functions."""
    return Algorithm(
        needs=frozenset(),
        select=drop_unscored,
        prepare=lambda batch, numbers: _prepare(batch, settings.temperature),
        loss=likelihood_of_samples,
        compares=True,
    )


def _prepare(batch: Batch, temperature: float) -> Batch:
    weights = exponential_weights(batch.rewards, batch.groups, temperature)  # [B], with the mean 1 in each group
    token_weights = at_every_token(weights, batch.completion_mask)
    measured = {**batch.measured, "advantages_raw": token_weights, "kept": batch.completion_mask}
    return replace(batch, advantages=token_weights, measured=measured)
