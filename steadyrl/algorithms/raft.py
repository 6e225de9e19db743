"""Reward-ranked fine-tuning: the likelihood of the policy's own best answers, and of nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pydantic import Field

from steadyrl.losses import kl_old_sums, likelihood_loss
from steadyrl.protocols import Algorithm
from steadyrl.sections import Section
from steadyrl.select import best_of_n
from steadyrl.types import Array, TokenScores


class Settings(Section):
    """RAFT's own settings. It ranks the rollouts of a problem, so rollout.samples_per_prompt must be at least 2."""

    top_k: int = Field(1, ge=1, description="Number of best rollouts of each problem that train.")


def build(settings: Settings) -> Algorithm:
    """Return RAFT as a record of functions.

    Source: Dong et al., "RAFT: Reward rAnked FineTuning" (arXiv 2304.06767): sample, rank, fine-tune on the best.
    """
    return Algorithm(
        needs=frozenset(),
        select=partial(best_of_n, count=settings.top_k),
        prepare=lambda batch, numbers: batch,
        loss=likelihood_of_samples,
        prepares_from="rewards",
    )


def likelihood_of_samples(
    xp: Any, new: TokenScores, arrays: Mapping[str, Array], count: float
) -> tuple[Array, dict[str, Array]]:
    """Compute the likelihood loss of what the policy itself wrote, and how far it has moved from there.

    See ``losses.likelihood_loss``. If only the best rollouts train, the distance is measured on their tokens.
    """
    loss, sums = likelihood_loss(xp, new, arrays, count)
    return loss, {**sums, **kl_old_sums(xp, new.logprobs, arrays)}
