"""Kullback-Leibler divergence: three estimators from samples, the exact sum, the controller of its coefficient.

Everywhere KL(p || r) = sum_x p(x) log(p(x) / r(x)), in nats, with x drawn from p, the policy that sampled. The
estimators are only right for log-probs of the distribution that was really sampled from, temperature and
truncation included.

``xp`` is an array namespace: numpy, torch or mlx.core. The estimators share one signature, so that a config can
choose among them.
"""

from __future__ import annotations

import math

import numpy as np

from steadyrl.core.types import Array

# exp(20) is 5e8: far above any ratio that matters and far below float32's overflow at exp(88), whose infinity
# would turn a gradient into NaN.
MAX_LOG_RATIO = 20.0
MAX_CONTROL_ERROR = 0.2  # Ziegler et al. 2019: a KL at 50 times its target acts like one at 1.2 times


def k1(xp: Array, logprobs: Array, ref: Array) -> Array:
    """Estimate KL by log p - log r: unbiased, often negative, of high variance.

    As long as the samples come from p, its mean over many samples is negative only by chance. As a loss it is of no
    use: on samples of p its expected gradient is E[grad log p] = 0.

    Args:
        xp: Array namespace.
        logprobs: [...], log p of the sampled tokens, nats.
        ref: [...], log r of the same tokens, nats.

    Returns:
        [...], nats per token.

    Source:
        Schulman, "Approximating KL Divergence" (2020), joschu.net/blog/kl-approx.html; so are ``k2`` and ``k3``.
    """
    return logprobs - ref


def k2(xp: Array, logprobs: Array, ref: Array) -> Array:
    """Estimate KL by (log p - log r)^2 / 2: never negative, of low variance, biased.

    The bias is small while p and r are close. As a loss on samples of p its expected gradient is that of the KL.

    Args:
        xp: Array namespace.
        logprobs: [...], log p of the sampled tokens, nats.
        ref: [...], log r of the same tokens, nats.

    Returns:
        [...], nats per token, >= 0.
    """
    return 0.5 * (logprobs - ref) ** 2


def k3(xp: Array, logprobs: Array, ref: Array) -> Array:
    """Estimate KL by r/p - 1 - log(r/p): unbiased and never negative.

    It is never negative even where samples and log-probs do not fit together; the sign of k1 shows such a mismatch.

    It is unbiased as a number but not as a loss: on samples of p its expected gradient is E[(1 - r/p) grad log p],
    which is that of KL(r || p), the other way round. ``k2`` and ``weighted_k3`` have that of KL(p || r).

    Args:
        xp: Array namespace.
        logprobs: [...], log p of the sampled tokens, nats.
        ref: [...], log r of the same tokens, nats; -inf gives inf.

    Returns:
        [...], nats per token, >= 0 up to rounding (1e-7 in float32). The exponential is constant above a log
        ratio of 20.
    """
    log_ratio = ref - logprobs  # [...], of r/p
    return xp.exp(xp.clip(log_ratio, None, MAX_LOG_RATIO)) - 1.0 - log_ratio


def weighted_k3(xp: Array, logprobs: Array, ref: Array, old_logprobs: Array) -> Array:
    """Weigh k3 by p/q, where q sampled: as a loss its gradient is that of KL(p || r), however far p is from q.

        grad (p/q * k3) = p/q * (k3 + 1 - r/p) * grad log p = p/q * log(p/r) * grad log p

    and the mean of that over samples of q is E_p[log(p/r) grad log p], the gradient of KL(p || r). With p = q it is
    ``k2``'s, token by token.

    Args:
        xp: Array namespace.
        logprobs: [...], log p of the sampled tokens, nats, being differentiated.
        ref: [...], log r of the same tokens, nats.
        old_logprobs: [...], log q of the same tokens, nats.

    Returns:
        [...], nats per token, >= 0.

    Source:
        DeepSeek-AI, "DeepSeek-V3.2" (arXiv 2512.02556), equation 7. That k2 and not k3 is the right one without
        weights: Liu et al., "Rethinking KL Regularization in RLHF" (arXiv 2510.01555).
    """
    log_weight = xp.clip(logprobs - old_logprobs, -MAX_LOG_RATIO, MAX_LOG_RATIO)  # [...], of p/q
    return xp.exp(log_weight) * k3(xp, logprobs, ref)


def exact(logp_all: np.ndarray, logq_all: np.ndarray) -> np.ndarray:
    """Compute KL(p || q) from whole distributions.

    Args:
        logp_all: [..., V], normalised log-probs, nats; -inf where p is 0, which contributes nothing.
        logq_all: [..., V], likewise; -inf where p is not 0 makes the result inf.

    Returns:
        [...], nats; >= 0 up to rounding.
    """
    p = np.exp(logp_all)  # [..., V]
    supported = p > 0  # taking the logs only here avoids inf - inf and 0 * inf
    difference = np.where(supported, logp_all, 0.0) - np.where(supported, logq_all, 0.0)
    divergence: np.ndarray = (p * difference).sum(axis=-1)
    return divergence


def adapt_coefficient(coef: float, kl: float, target: float, horizon: float) -> float:
    """Raise the KL coefficient when KL is above its target and lower it when below, a little per update.

        error = clip(kl / target - 1, -0.2, 0.2)
        coef  = coef * (1 + error / horizon)

    ``horizon`` counts updates. The published controllers count samples; horizon_updates = horizon_samples / batch
    converts. Their 10,000 samples at a batch of 16 are 625 updates: the coefficient then moves by at most 0.032 %
    an update and needs more than 2,000 of them to double, longer than most runs. At horizon 10 it doubles in 35.

    A KL cannot be negative, so a negative mean estimate is noise (or a mismatch that no coefficient fixes). It
    lowers the coefficient by at most 0.2 / horizon of itself, like any KL far below its target.

    Args:
        coef: > 0, the present coefficient.
        kl: Measured mean KL to the reference, in the same unit as ``target``.
        target: > 0, nats per token or per sequence.
        horizon: >= 1, updates.

    Returns:
        The next coefficient, > 0.

    Source:
        Ziegler et al., "Fine-Tuning Language Models from Human Preferences" (arXiv 1909.08593);
        OpenAI's lm-human-preferences, ``train_policy.py``, ``AdaptiveKLController``, for the horizon in samples.
    """
    assert coef > 0, f"coef {coef} must be above 0: a factor cannot move it away from 0"
    assert target > 0, f"target {target} must be above 0"
    assert horizon >= 1, f"horizon {horizon} must be at least 1 update"
    assert not math.isnan(kl), "kl is NaN: the run has to stop before its coefficient is adapted"
    error = min(max(kl / target - 1.0, -MAX_CONTROL_ERROR), MAX_CONTROL_ERROR)
    return coef * (1.0 + error / horizon)
