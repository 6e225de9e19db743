"""Do two ways through a model give the same next-token distributions, as far as the precision can tell?"""

from __future__ import annotations

import torch

from steadyrl.core.errors import ModelError

NATS = 2e-3  # the greatest difference of any log-prob that float32 leaves
# Nats of KL divergence: 30 layers in bfloat16 reach 0.08 on random tokens, a wrong mask is beyond 2. Single log-probs
# of unlikely tokens are 6 nats apart by rounding alone.
KL = 0.3


def agree(logits: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> tuple[bool, str]:
    """Return whether logits [..., V] are of one distribution, and how far they are apart, in words.

    Args:
        logits: Of the way that is looked at.
        expected: Of transformers' own forward.
        dtype: In which the layers were computed.

    Raises:
        ModelError: The expected logits are not finite: the model itself is broken.
    """
    require_finite(expected)
    logp, expected_logp = logits.float().log_softmax(-1), expected.float().log_softmax(-1)
    if dtype == torch.float32:
        far = (logp - expected_logp).abs().max().item()
        return far <= NATS, f"{far:.2g} nats apart, expected at most {NATS:g}"
    divergence = (expected_logp.exp() * (expected_logp - logp)).sum(-1).max().item()
    return divergence <= KL, f"a KL divergence of {divergence:.2g} nats, expected at most {KL:g}"


def require_finite(logits: torch.Tensor) -> None:
    """Refuse a model whose own forward pass gives logits [..., V] that are not finite.

    Raises:
        ModelError: It does.
    """
    if not torch.isfinite(logits).all():
        raise ModelError(
            "the model's log-probs are not finite numbers (NaN or infinite): its weights are damaged, or a number in "
            "config.json is wrong; download both again"
        )
