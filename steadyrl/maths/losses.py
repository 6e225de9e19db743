"""Losses as per-token matrices, and the one function that divides.

``xp`` is an array namespace: numpy, torch or mlx.core; functions use only ``exp``, ``clip``, ``maximum``,
``where``, ``.sum()`` and operators. Those of one kind take the same arguments, needed or not, so that an algorithm
can choose among them.

Everything has to be finite outside the completion mask too (0 by convention). A mask cannot fix that afterwards: the
gradient of a masked-out infinity is 0 * inf = NaN, however the mask is applied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from steadyrl.core.types import Array, TokenScores
from steadyrl.maths import kl

MAX_LOG_RATIO = kl.MAX_LOG_RATIO  # any clip range acts long before; the gradient is 0 beyond

# The numbers of the corrections, as others ship them; docs/off-policy.md has what was measured with them.
MAX_WEIGHT = 2.0
GEOMETRIC_BAND = (0.99, 1.01)
ICEPOP_BAND = (0.5, 5.0)
MAX_PROBABILITY_CHANGE = 0.2


def token_log_ratio(xp: Array, logprobs: Array, old_logprobs: Array, mask: Array) -> Array:
    """Compare new and old policy token by token.

    Args:
        xp: Array namespace.
        logprobs: [B, T], being differentiated, nats.
        old_logprobs: [B, T], before this round of updates, nats.
        mask: [B, T] bool.

    Returns:
        [B, T], log(new / old), nats.

    Source:
        Schulman et al., "Proximal Policy Optimization Algorithms" (arXiv 1707.06347), r_t of equation 6.
    """
    return logprobs - old_logprobs


def sequence_log_ratio(xp: Array, logprobs: Array, old_logprobs: Array, mask: Array) -> Array:
    """Compare new and old policy by whole completions: the mean log ratio of a row's tokens, at each of them.

    Its exponential is the geometric mean of the token ratios. It varies far less than they do: clip ranges are some
    hundred times narrower than for tokens.

    Args:
        xp: Array namespace.
        logprobs: [B, T], being differentiated, nats.
        old_logprobs: [B, T], before this round of updates, nats.
        mask: [B, T] bool.

    Returns:
        [B, T], the same number under the mask of a row, 0 outside.

    Source:
        Zheng et al., "Group Sequence Policy Optimization" (arXiv 2507.18071), s_i of equation 7.
    """
    tokens = mask.sum(axis=1, keepdims=True)  # [B, 1]
    total = ((logprobs - old_logprobs) * mask).sum(axis=1, keepdims=True)  # [B, 1]
    return total / xp.where(tokens > 0, tokens, 1) * mask


def clipped_policy(
    xp: Array, log_ratio: Array, advantages: Array, clip_low: float, clip_high: float
) -> tuple[Array, Array]:
    """Compute PPO's pessimistic surrogate, with separate clip ranges below and above.

        loss  = max(-A * ratio, -A * clip(ratio, 1 - clip_low, 1 + clip_high)),  ratio = exp(log_ratio)

    The clip takes the gradient away where the ratio has already gone far enough in the direction that the
    advantage asks for: above 1 + clip_high for A > 0, below 1 - clip_low for A < 0. It never does on the other
    side; for A < 0 the loss grows with the ratio.

    Args:
        xp: Array namespace.
        log_ratio: [B, T], of ``token_log_ratio`` or ``sequence_log_ratio``.
        advantages: [B, T].
        clip_low: In (0, 1); 0.2 is usual.
        clip_high: > 0; 0.2 in PPO, 0.28 in DAPO, which leaves unlikely tokens room to grow.

    Returns:
        loss [B, T], and clipped [B, T]: 1.0 where the clip is active, that is where the clipped loss is strictly
        the larger one, else 0.0.

    Source:
        Schulman et al., "Proximal Policy Optimization Algorithms" (arXiv 1707.06347), equation 7, negated; two
        clip ranges: Yu et al., "DAPO" (arXiv 2503.14476), section 3.1.
    """
    ratio = xp.exp(xp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))  # [B, T]
    unclipped = -advantages * ratio
    clipped = -advantages * xp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    return xp.maximum(unclipped, clipped), xp.where(clipped > unclipped, 1.0, 0.0)


def clipped_weight(
    xp: Array, log_ratio: Array, advantages: Array, clip_low: float, clip_high: float
) -> tuple[Array, Array]:
    """Compute a surrogate whose gradient is the policy gradient with importance weights bounded from above (CISPO).

        gradient = -A * min(ratio, c) * d log p,  c = 1 + clip_high

    No token loses its gradient, however far its ratio has gone; it only counts for no more than c. The paper writes
    the weight with a stop-gradient, -A * sg(min(ratio, c)) * log p. This is the antiderivative of the same
    gradient, which needs none, goes on smoothly at c and equals PPO's surrogate below it:

        loss = -A * ratio                    where ratio <= c
        loss = -A * c * (1 + log(ratio / c)) beyond

    Args:
        xp: Array namespace.
        log_ratio: [B, T], nats.
        advantages: [B, T].
        clip_low: Not used: the paper sets no lower bound, and weights below 1 are between 0 and 1 anyway.
        clip_high: > 0; a few units where batches are far off the policy.

    Returns:
        loss [B, T], and clipped [B, T]: 1.0 where the weight is bounded, else 0.0.

    Source:
        MiniMax, "MiniMax-M1" (arXiv 2506.13585), section 3.1, equations 4 and 5, negated.
    """
    log_limit = math.log1p(clip_high)
    inside = xp.exp(xp.clip(log_ratio, -MAX_LOG_RATIO, log_limit))  # [B, T], min(ratio, c)
    beyond = xp.clip(log_ratio - log_limit, 0.0, MAX_LOG_RATIO)  # log(ratio / c), 0 below c
    return -advantages * (inside + (1.0 + clip_high) * beyond), xp.where(log_ratio > log_limit, 1.0, 0.0)


def clipped_value(xp: Array, values: Array, old_values: Array, returns: Array, clip: float) -> tuple[Array, Array]:
    """Compute the squared error of the value function, with its movement per batch bounded.

        near_values = old_values + clip(values - old_values, -c, c)
        loss = max((values - returns)^2, (near_values - returns)^2) / 2

    Values that have moved further than c towards their return get no gradient. The bound is in units of the
    return: where returns are in the hundreds, a clip of 0.2 makes a batch teach next to nothing.

    Args:
        xp: Array namespace.
        values: [B, T], being differentiated.
        old_values: [B, T], before this round of updates.
        returns: [B, T], the targets.
        clip: > 0, in the unit of the return.

    Returns:
        loss [B, T], and clipped [B, T]: 1.0 where the clipped loss is strictly the larger one, else 0.0.

    Source:
        OpenAI's baselines, ``baselines/ppo2/model.py`` (``vpredclipped``); not part of the PPO paper.
    """
    near_values = old_values + xp.clip(values - old_values, -clip, clip)  # [B, T]
    unclipped_loss = 0.5 * (values - returns) ** 2
    clipped_loss = 0.5 * (near_values - returns) ** 2
    return xp.maximum(unclipped_loss, clipped_loss), xp.where(clipped_loss > unclipped_loss, 1.0, 0.0)


def nll(xp: Array, logprobs: Array) -> Array:
    """Compute the negative log-likelihood of the chosen tokens.

    Args:
        xp: Array namespace.
        logprobs: [B, T], nats.

    Returns:
        [B, T], nats per token.
    """
    return -logprobs


def policy_loss(
    xp: Array, new: TokenScores, arrays: Mapping[str, Array], count: float, clip_low: float, clip_high: float
) -> tuple[Array, dict[str, Array]]:
    """Compute the clipped surrogate alone as a whole loss, for algorithms whose KL penalty is in the reward.

    Args:
        xp: Array namespace.
        new: Scores of the policy being trained.
        arrays: Of the batch, see ``batch.loss_arrays``.
        count: See ``reduce``.
        clip_low: See ``clipped_policy``.
        clip_high: See ``clipped_policy``.

    Returns:
        The loss, and ``policy_sums``.
    """
    log_ratio = token_log_ratio(xp, new.logprobs, arrays["old_logprobs"], arrays["mask"])
    policy, clipped = clipped_policy(xp, log_ratio, arrays["advantages"], clip_low, clip_high)
    return reduce(xp, policy, arrays["mask"], count), policy_sums(xp, policy, clipped, new.logprobs, arrays)


def likelihood_loss(
    xp: Array, new: TokenScores, arrays: Mapping[str, Array], count: float
) -> tuple[Array, dict[str, Array]]:
    """Compute the negative log-likelihood as a whole loss, each token weighed by its advantage where it has one.

    The weights are those of rows (``advantages`` that are never negative), so that the loss says how unlikely the
    imitated texts are, in nats per token. The loss falls as they are learned.

    Args:
        xp: Array namespace.
        new: Scores of the policy being trained.
        arrays: Of the batch, see ``batch.loss_arrays``; ``advantages`` [B, T] may be missing, and is then 1.
        count: See ``reduce``.

    Returns:
        The loss, and "loss/nll" as a sum over the mask.

    Source:
        Dong et al., "RAFT: Reward rAnked FineTuning" (arXiv 2304.06767), the last step of its algorithm; with weights
        Peng et al., "Advantage-Weighted Regression" (arXiv 1910.00177).
    """
    per_token = nll(xp, new.logprobs)  # [B, T]
    if "advantages" in arrays:
        per_token = per_token * arrays["advantages"]
    return reduce(xp, per_token, arrays["mask"], count), {"loss/nll": (per_token * arrays["mask"]).sum()}


def policy_sums(
    xp: Array, policy: Array, clipped: Array, logprobs: Array, arrays: Mapping[str, Array]
) -> dict[str, Array]:
    """Sum what every policy loss measures, by metric name: the loss with its own weights, the rest over the mask.

    Args:
        xp: Array namespace.
        policy: [B, T], the policy's part of the loss.
        clipped: [B, T], 1.0 where it was clipped.
        logprobs: [B, T], of the updated policy.
        arrays: Of the batch, see ``batch.loss_arrays``.
    """
    mask = arrays["mask"]
    return {
        "loss/policy": (policy * arrays.get("weights", mask)).sum(),
        "clip_fraction": (clipped * mask).sum(),
        **kl_old_sums(xp, logprobs, arrays),
    }


def kl_old_sums(xp: Array, logprobs: Array, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Sum over the mask how far the updated policy is from the old one, which drew these tokens, by metric name.

    Args:
        xp: Array namespace.
        logprobs: [B, T], of the updated policy, nats.
        arrays: Of the batch, see ``batch.loss_arrays``.
    """
    mask, old_logprobs = arrays["mask"], arrays["old_logprobs"]
    return {
        "kl_old_k1": (kl.k1(xp, old_logprobs, logprobs) * mask).sum(),
        "kl_old_k3": (kl.k3(xp, old_logprobs, logprobs) * mask).sum(),
    }


def reduce(xp: Array, per_token: Array, weights: Array, count: float) -> Array:
    """Sum with the mask's weights and divide by the count of the whole minibatch: the only division of a loss.

    Because ``count`` belongs to the minibatch and not to the rows at hand, the losses of micro-batches add up to
    the loss of the minibatch, however it was cut.

    The mask multiplies, where it could select: both give 0, in value and gradient, for finite entries outside, and
    neither saves the gradient from others. Multiplied, a NaN outside the mask shows in the loss at once; selected
    away, it would show only in the model's weights.

    Args:
        xp: Array namespace.
        per_token: [B, T], finite everywhere.
        weights: [B, T], the mask for a mean over tokens, or ``Batch.weights`` for one over rollouts; 0 outside the
            mask.
        count: > 0, chosen tokens or rollouts of the whole minibatch (``batch.loss_count``).

    Returns:
        Scalar, per token or per rollout.
    """
    assert count > 0, "a minibatch needs at least one chosen token"
    return (per_token * weights).sum() / count


def token_weight(xp: Array, logprobs: Array, arrays: Mapping[str, Array]) -> Array:
    """Weigh each token by its importance ratio, truncated: min(r, 2), r = old / sampling.

    This and the functions below correct for rollouts that another policy drew. They return weights that are never
    negative and carry no gradient. Truncation bounds their variance, at the price of a bias towards the sampler.

    Args:
        xp: Array namespace.
        logprobs: [B, T], of the policy being trained, nats.
        arrays: Of the batch, see ``batch.loss_arrays``.

    Returns:
        [B, T], 1 outside the mask.

    Source:
        verl, ``docs/algo/rollout_corr.md``: truncated importance sampling of tokens and of sequences, geometric mask.
    """
    return xp.clip(_importance(xp, arrays), 0.0, MAX_WEIGHT)


def sequence_weight(xp: Array, logprobs: Array, arrays: Mapping[str, Array]) -> Array:
    """Weigh all tokens of a row by the ratio of the whole completion, truncated: min(product of r, 2).

    Only the whole product makes expectations over completions right. Its variance grows with their length.
    """
    mask = arrays["mask"]
    log_ratio = ((arrays["old_logprobs"] - arrays["sampling_logprobs"]) * mask).sum(axis=1, keepdims=True) * mask
    return xp.exp(xp.clip(log_ratio, -MAX_LOG_RATIO, math.log(MAX_WEIGHT)))


def geometric_mask(xp: Array, logprobs: Array, arrays: Mapping[str, Array]) -> Array:
    """Drop the rows whose geometric mean of token ratios lies outside a band: 0 there, 1 in the others."""
    mean = sequence_log_ratio(xp, arrays["old_logprobs"], arrays["sampling_logprobs"], arrays["mask"])
    return _inside(xp, xp.exp(xp.clip(mean, -MAX_LOG_RATIO, MAX_LOG_RATIO)), *GEOMETRIC_BAND)


def icepop_weight(xp: Array, logprobs: Array, arrays: Mapping[str, Array]) -> Array:
    """Weigh each token by its importance ratio where that lies in a band, and drop it elsewhere.

    Source:
        Ling Team, "Every Step Evolves" (arXiv 2510.18855), IcePop; the band is verl's.
    """
    ratio = _importance(xp, arrays)  # [B, T]
    return ratio * _inside(xp, ratio, *ICEPOP_BAND)


def dppo_weight(xp: Array, logprobs: Array, arrays: Mapping[str, Array]) -> Array:
    """Weigh each token by its importance ratio, and drop it where the trained policy has moved far enough already.

    How far is the change of the token's probability, from the sampler's to that of the policy being trained, in the
    direction that the advantage asks for. A bound of the ratio would drop unlikely tokens after a small change of the
    policy, and likely ones after a large one only.

    Source:
        Qi et al., "Rethinking the Trust Region in LLM Reinforcement Learning" (arXiv 2602.04879), the binary total
        variation; without a penalty on the ratio.
    """
    rise = xp.exp(logprobs) - xp.exp(arrays["sampling_logprobs"])  # [B, T], of the probability
    change = rise * xp.where(arrays["advantages"] > 0, 1.0, -1.0)
    return _importance(xp, arrays) * xp.where(change > MAX_PROBABILITY_CHANGE, 0.0, 1.0)


def _importance(xp: Array, arrays: Mapping[str, Array]) -> Array:
    """Return old / sampling, [B, T], 1 outside the mask."""
    log_ratio = (arrays["old_logprobs"] - arrays["sampling_logprobs"]) * arrays["mask"]
    return xp.exp(xp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))


def _inside(xp: Array, values: Array, low: float, high: float) -> Array:
    return xp.where(values < low, 0.0, xp.where(values > high, 0.0, 1.0))
