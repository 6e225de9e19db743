"""Do two ways through a model give the same next-token distributions, as far as the precision can tell?"""

from __future__ import annotations

import torch

from steadyrl.core.errors import ModelError

NATS = 2e-3  # the greatest difference of any log-prob that float32 leaves
# Nats of KL divergence: 30 layers in bfloat16 reach 0.08 on random tokens, a wrong mask is beyond 2. Single log-probs
# of unlikely tokens are 6 nats apart by rounding alone.
KL = 0.3
SHARE, LEAST = 1e-3, 1e-4  # of a logit and in all, between logits that are equal but for rounding


def agree(logits: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> tuple[bool, str]:
    """Return whether logits [..., V] are of one distribution, and how far they are apart, in words.

    Args:
        logits: Of the way that is looked at.
        expected: Of transformers' own forward.
        dtype: In which the layers were computed.

    Raises:
        ModelError: The expected logits are not finite: the model itself is broken.
    """
    if logits.shape != expected.shape:
        return False, _shapes(logits, expected)
    if not torch.isfinite(expected).all():
        raise ModelError(
            "the model's log-probs are not finite numbers (NaN or infinite): its weights are damaged, or a number in "
            "config.json is wrong; download both again"
        )
    logp, expected_logp = logits.float().log_softmax(-1), expected.float().log_softmax(-1)
    if dtype == torch.float32:
        gap = (logp - expected_logp).abs().max().item()
        return gap <= NATS, f"{gap:.2g} nats apart, expected at most {NATS:g}"
    divergence = (expected_logp.exp() * (expected_logp - logp)).sum(-1).max().item()
    return divergence <= KL, f"a KL divergence of {divergence:.2g} nats, expected at most {KL:g}"


def equal_logits(logits: torch.Tensor, expected: torch.Tensor) -> tuple[bool, str]:
    """Return whether logits [..., V] are those expected but for rounding, and how far they are apart, in words."""
    if logits.shape != expected.shape:
        return False, _shapes(logits, expected)
    gaps = (logits - expected).abs()
    worst = (gaps - SHARE * expected.abs()).argmax()
    apart, allowed = (x.flatten()[worst].item() for x in (gaps, SHARE * expected.abs() + LEAST))
    return apart <= allowed, f"{apart:.2g} apart, expected at most {allowed:.2g}"


def _shapes(logits: torch.Tensor, expected: torch.Tensor) -> str:
    return f"of other shapes, {list(logits.shape)} and {list(expected.shape)}"
