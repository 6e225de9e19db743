"""Losses as per-token matrices, and the one function that divides.

``xp`` is an array namespace: numpy, torch or mlx.core; functions use only ``exp``, ``clip``, ``maximum``,
``where``, ``.sum()`` and operators, and all take ``xp`` first, needed or not, so that an algorithm can choose
among them.

Everything has to be finite outside the completion mask too (0 by convention). A mask cannot mend that afterwards:
the gradient of a masked-out infinity is 0 * inf = NaN, however the mask is applied.
"""

from __future__ import annotations

from steadyrl.types import Array

# exp(20) is 5e8: any clip range acts long before, and float32 overflows at exp(88). The gradient is 0 beyond.
MAX_LOG_RATIO = 20.0


def clipped_policy(
    xp: Array, logprobs: Array, old_logprobs: Array, advantages: Array, clip_low: float, clip_high: float
) -> tuple[Array, Array]:
    """Compute PPO's pessimistic surrogate, with separate clip ranges below and above.

        ratio = exp(logprobs - old_logprobs)
        loss  = max(-A * ratio, -A * clip(ratio, 1 - clip_low, 1 + clip_high))

    The clip takes the gradient away where the ratio has already gone far enough in the direction that the
    advantage asks for: above 1 + clip_high for A > 0, below 1 - clip_low for A < 0. It never does on the other
    side; for A < 0 the loss grows with the ratio.

    Args:
        xp: Array namespace.
        logprobs: [B, T], being differentiated, nats.
        old_logprobs: [B, T], before this round of updates, nats.
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
    ratio = xp.exp(xp.clip(logprobs - old_logprobs, -MAX_LOG_RATIO, MAX_LOG_RATIO))  # [B, T]
    free = -advantages * ratio
    bounded = -advantages * xp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    return xp.maximum(free, bounded), xp.where(bounded > free, 1.0, 0.0)


def clipped_value(xp: Array, values: Array, old_values: Array, returns: Array, clip: float) -> tuple[Array, Array]:
    """Compute the squared error of the value function, with its movement per batch bounded.

        near = old_values + clip(values - old_values, -c, c)
        loss = max((values - returns)^2, (near - returns)^2) / 2

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
    near = old_values + xp.clip(values - old_values, -clip, clip)  # [B, T]
    free_loss = 0.5 * (values - returns) ** 2
    near_loss = 0.5 * (near - returns) ** 2
    return xp.maximum(free_loss, near_loss), xp.where(near_loss > free_loss, 1.0, 0.0)


def nll(xp: Array, logprobs: Array) -> Array:
    """Compute the negative log-likelihood of the chosen tokens.

    Args:
        xp: Array namespace.
        logprobs: [B, T], nats.

    Returns:
        [B, T], nats per token.
    """
    return -logprobs


def reduce(xp: Array, per_token: Array, mask: Array, count: float) -> Array:
    """Sum over the mask and divide by the token count of the whole minibatch: the only division of a loss.

    Because ``count`` belongs to the minibatch and not to the rows at hand, the losses of micro-batches add up to
    the loss of the minibatch, however it was cut.

    The mask multiplies, where it could select: both give 0, in value and gradient, for finite entries outside, and
    neither saves the gradient from others. Multiplied, a NaN outside the mask shows in the loss at once; selected
    away, it would show only in the weights.

    Args:
        xp: Array namespace.
        per_token: [B, T], finite everywhere.
        mask: [B, T] bool or 0/1.
        count: > 0, chosen tokens of the whole minibatch.

    Returns:
        Scalar, per token.
    """
    assert count > 0, "a minibatch needs at least one chosen token"
    return (per_token * mask).sum() / count
