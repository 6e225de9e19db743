"""How the tokens of a batch were drawn: which they are, from which ids, and at which temperature."""

from __future__ import annotations

import numpy as np
import torch

from steadyrl.backends.torch.device import sent
from steadyrl.core.types import Batch, Sampling


def how_drawn(
    part: Batch, sampling: Sampling, vocabulary: int, device: torch.device
) -> tuple[torch.Tensor | None, torch.Tensor, float]:
    """Return how completion tokens were drawn, row by row.

    Returns:
        The ids that truncation left, [N, V] bool, None where nothing was cut; the ids drawn, [N] int64; and what logits
        are multiplied by before log-probs are taken.
    """
    chosen = sent(part.tokens[part.completion_mask].astype(np.int64), device)
    if sampling.logprobs == "raw":
        return None, chosen, 1.0
    if part.kept is None:
        return None, chosen, 1.0 / sampling.temperature
    lengths = part.kept.lengths[part.completion_mask]
    keep = torch.zeros(len(lengths), vocabulary, dtype=torch.bool, device=device)
    rows = sent(np.repeat(np.arange(len(lengths)), lengths), device)
    keep[rows, sent(part.kept.ids.astype(np.int64), device)] = True
    keep[sent(np.flatnonzero(lengths == 0), device)] = True
    return keep, chosen, 1.0 / sampling.temperature
