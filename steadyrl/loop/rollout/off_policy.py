"""Rollouts that another policy drew: how far it is from the trainer's, and which corrections a step's loss gets.

The sampler's policy differs from the trainer's where rollouts are drawn ahead, and where the sampler computes in
another precision or by another program. ``losses`` has the corrections; here they are chosen and put around a loss.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from steadyrl.core.errors import ConfigError
from steadyrl.core.protocols import Algorithm, LossFn
from steadyrl.core.types import Array, Batch, TokenScores
from steadyrl.loop.checkpoint import State
from steadyrl.maths import losses

log = logging.getLogger(__name__)

# (xp, log-probs of the policy being trained, the batch's arrays) -> weights [B, T], see ``losses.token_weight``.
Correction = Callable[[Array, Array, Mapping[str, Array]], Array]
CORRECTIONS: Mapping[str, Correction] = {
    "token": losses.token_weight,
    "sequence": losses.sequence_weight,
    "geometric": losses.geometric_mask,
    "icepop": losses.icepop_weight,
    "dppo": losses.dppo_weight,
}
AUTOMATIC = "token"
FARTHEST = 700.0  # nats; the exponential of more is no number
AGREE = 1e-3  # nats per token; rounding in float32 is below 1e-5, in bfloat16 above 4e-3


def correct(algorithm: Algorithm, batch: Batch, setting: str, state: State) -> Algorithm:
    """Return the algorithm with a loss that corrects for the sampler's policy; the same one where nothing is to do.

    With "auto" nothing is corrected until a step measures that sampler and trainer differ; from then on every step is.

    Raises:
        ConfigError: A correction is asked for by name, and there is nothing that it could weigh.
    """
    if setting == "off":
        return algorithm
    log_ratio = sampler_log_ratio(batch)
    if batch.advantages is None or log_ratio is None:
        if setting == "auto":
            return algorithm
        raise ConfigError(
            f"update.correction = '{setting}' weighs the advantages of sampled tokens, and this algorithm has "
            f"{'no advantages' if log_ratio is not None else 'demonstrations'}; expected 'auto' or 'off'"
        )
    if setting == "auto":
        gap = float(np.abs(log_ratio[batch.completion_mask]).mean())
        if not state.correcting and gap <= AGREE:
            return algorithm
        if not state.correcting:
            state.correcting = True
            log.warning(
                "step %d: sampler and trainer differ by %.2g nats per token (agreement is up to %g); from now on the "
                "loss corrects for it by update.correction = '%s'",
                state.step, gap, AGREE, AUTOMATIC,
            )  # fmt: skip
        setting = AUTOMATIC
    return replace(algorithm, loss=corrected(algorithm.loss, setting.split(",")))


def corrected(loss: LossFn, names: Sequence[str]) -> LossFn:
    """Return a loss whose policy part is weighed by corrections (names of CORRECTIONS); it can be sent to other ranks.

    It also measures "correction/weight" and "correction/masked".
    """
    return partial(_weighed, loss=loss, names=tuple(names))


def _weighed(
    xp: Array, new: TokenScores, arrays: Mapping[str, Array], count: float, loss: LossFn, names: tuple[str, ...]
) -> tuple[Array, dict[str, Array]]:
    """Compute a loss with the corrections' weights, multiplied, in its advantages.

    A policy loss is proportional to the advantages as long as no weight is negative. So this weighs its tokens, and
    the loss need not know of it. Its other parts stay as they are.
    """
    mask, weight = arrays["mask"], CORRECTIONS[names[0]](xp, new.logprobs, arrays)
    for name in names[1:]:
        weight = weight * CORRECTIONS[name](xp, new.logprobs, arrays)
    total, sums = loss(xp, new, {**arrays, "advantages": arrays["advantages"] * weight}, count)
    dropped = xp.where(weight > 0, 0.0, 1.0)
    return total, {**sums, "correction/weight": (weight * mask).sum(), "correction/masked": (dropped * mask).sum()}


def importance_metrics(batch: Batch) -> dict[str, float]:
    """Return the mean importance weight and its effective sample sizes, (sum w)^2 / (n * sum w^2).

    Nothing is returned where no sampler drew the tokens.
    """
    log_ratio = sampler_log_ratio(batch)
    if log_ratio is None:
        return {}
    mask = batch.completion_mask
    tokens = np.clip(log_ratio[mask], -losses.MAX_LOG_RATIO, losses.MAX_LOG_RATIO)
    rows = log_ratio.sum(axis=1)[mask.any(axis=1)]
    metrics = {"importance/mean": float(np.exp(tokens).mean())}
    for name, logs in (("importance/ess", tokens), ("importance/ess_seq", np.clip(rows, -FARTHEST, FARTHEST))):
        weights = np.exp(logs - logs.max())  # a common factor does not change the sample size
        metrics[name] = float(weights.sum() ** 2 / (len(weights) * (weights**2).sum()))
    return metrics


def sampler_log_ratio(batch: Batch) -> np.ndarray | None:
    """Return log(trainer / sampler) of the completion tokens, [B, T]; None where no sampler drew them."""
    if batch.old is None:
        return None
    log_ratio: np.ndarray = np.where(batch.completion_mask, batch.old.logprobs - batch.sampling_logprobs, 0.0)
    return None if np.isnan(log_ratio).any() or not batch.completion_mask.any() else log_ratio
