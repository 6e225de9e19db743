"""Reward-ranked fine-tuning: the likelihood of the policy's own best answers, and of nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic import Field

from steadyrl.core.config import Config
from steadyrl.core.protocols import Algorithm
from steadyrl.core.sections import Section
from steadyrl.core.types import Array, TokenScores
from steadyrl.maths.losses import kl_old_sums, likelihood_loss
from steadyrl.maths.select import best_of_n


class Settings(Section):
    """RAFT's own settings. It ranks the rollouts of a problem, so rollout.samples_per_prompt must be at least 2."""

    top_k: int = Field(1, ge=1)
    """Number of best rollouts of each problem that train. rollout.samples_per_prompt is the most, and trains on all."""


def check(config: Config, settings: Settings) -> list[str]:
    """Return what is wrong with the settings beside those of the rest of the config."""
    return top_k_problems(config, settings.top_k)


def top_k_problems(config: Config, top_k: int) -> list[str]:
    """Return the problem of a filter that is to keep more rollouts of a problem than there are."""
    samples = config.rollout.samples_per_prompt
    if top_k <= samples:
        return []
    return [
        f"algorithm.args.top_k is {top_k} but a problem has only {samples} rollouts (rollout.samples_per_prompt); "
        "lower it or collect more"
    ]


def build(settings: Settings) -> Algorithm:
    """Return RAFT as a record of functions.

    Source: Dong et al., "RAFT: Reward rAnked FineTuning" (arXiv 2304.06767): sample, rank, fine-tune on the best.
    """
    return Algorithm(
        needs=frozenset(),
        select=partial(best_of_n, count=settings.top_k),
        prepare=lambda batch, numbers: replace(batch, measured={**batch.measured, "kept": batch.completion_mask}),
        loss=likelihood_of_samples,
    )


def likelihood_of_samples(
    xp: Any, new: TokenScores, arrays: Mapping[str, Array], count: float
) -> tuple[Array, dict[str, Array]]:
    """Compute the likelihood loss of what the policy itself wrote, and how far it has moved from there.

    See ``losses.likelihood_loss``. If only the best rollouts train, the distance is measured on their tokens.
    """
    loss, sums = likelihood_loss(xp, new, arrays, count)
    return loss, {**sums, **kl_old_sums(xp, new.logprobs, arrays)}
