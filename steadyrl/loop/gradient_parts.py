"""The two gradients that move a policy: that of the rewards, and that of the KL penalty.

A reference that equals the policy exerts no penalty, whether the penalty stands in the reward or in the loss. So the
gradient of the same batch with such a reference is that without the penalty, and the difference is the penalty's. No
algorithm has to say where its penalty is.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from steadyrl.core.protocols import Algorithm, Backend, GradientProducts, Numbers, Update
from steadyrl.core.types import Batch
from steadyrl.maths.batch import only_trained, take_rows

GRADIENT_PARTS_EVERY = 20  # steps: what a measurement takes is then 1.4 % of a run of the base model
SHARE, FEWEST, MOST = 4, 16, 64  # one rollout in four is measured, within these numbers
OTHER_LOSSES = {"values", "entropy"}  # what a loss may ask for beside reward and penalty


def gradient_parts(
    backend: Backend, algorithm: Algorithm, scored: Batch, batch: Batch, numbers: Numbers, update: Update
) -> dict[str, float]:
    """Return the norms of the gradients of reward and penalty before a step's updates, and their cosine.

    Args:
        backend: Before the updates.
        algorithm: Of the step.
        scored: The batch before ``algorithm.prepare``.
        batch: The batch after it.
        numbers: The algorithm's.
        update: Of the step, whose loss is taken apart.

    Returns:
        Nothing where there is no penalty, or where the backend has no gradients to compare or no room for them.
    """
    old = batch.old
    absent = old is None or old.ref_logprobs is None or batch.advantages is None or numbers.get("kl_coef") == 0
    if absent or not isinstance(backend, GradientProducts):
        return {}
    assert scored.old is not None and old is not None and batch.advantages is not None, "asked before"
    prepared = algorithm.prepare(replace(scored, old=replace(scored.old, ref_logprobs=scored.old.logprobs)), numbers)
    assert prepared.advantages is not None, "the algorithm gives advantages"
    # Whitened advantages are divided by a spread that the penalty is part of: the same one divides both parts.
    factor = _divisor(prepared) / divisor if (divisor := _divisor(batch)) else 0.0
    reward_only = replace(batch, old=replace(old, ref_logprobs=old.logprobs), advantages=factor * prepared.advantages)
    batches = [batch, reward_only]
    if algorithm.needs & OTHER_LOSSES:  # what these ask for is in both parts
        batches.append(replace(reward_only, advantages=np.zeros_like(batch.advantages)))
    trained_rows = np.flatnonzero(batch.trained_mask.any(axis=1))
    count = min(len(trained_rows), max(FEWEST, min(MOST, len(trained_rows) // SHARE)))
    rows = trained_rows[np.linspace(0, len(trained_rows) - 1, count).astype(int)]
    products = backend.gradient_products([take_rows(only_trained(b), rows) for b in batches], update)  # [n, n]
    if products is None:
        return {}
    # Each gradient as a sum of those of the batches: reward = reward_only - the other losses, penalty = the difference.
    reward, penalty = np.array([0.0, 1.0, -1.0])[: len(batches)], np.array([1.0, -1.0, 0.0])[: len(batches)]
    squares = [float(side @ products @ side) for side in (reward, penalty)]
    norms = [float(np.sqrt(max(square, 0.0))) for square in squares]
    metrics = {"gradient/reward": norms[0], "gradient/penalty": norms[1]}
    if norms[0] * norms[1] > 0:
        metrics["gradient/cosine"] = float(reward @ products @ penalty) / (norms[0] * norms[1])
    return metrics


def _divisor(batch: Batch) -> float:
    """Return what an algorithm divided its advantages by, over all tokens; 1 where it logs none before that."""
    raw, mask = batch.measured.get("advantages_raw"), batch.trained_mask
    assert batch.advantages is not None, "asked before"
    std = float(batch.advantages[mask].std())
    return 1.0 if raw is None or not std else float(raw[mask].std()) / std
