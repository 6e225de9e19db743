"""How the tokens of a batch were drawn: which they are, from which ids, and at which temperature."""

from __future__ import annotations

import numpy as np
import torch

from steadyrl.backends.torch.device import sent
from steadyrl.core.types import Batch, Sampling


def how_drawn(
    part: Batch, sampling: Sampling, vocabulary: int, device: torch.device
) -> tuple[torch.Tensor | None, torch.Tensor, float]:
    """Return the ids that truncation left, [N, V] bool or None; the ids drawn, [N]; and the scale of the logits."""
    return kept_mask(part, sampling, vocabulary, device), chosen_ids(part, device), scale_of(sampling)


def chosen_ids(part: Batch, device: torch.device) -> torch.Tensor:
    """Return the completion tokens [N] int64, row by row."""
    return sent(part.tokens[part.completion_mask].astype(np.int64), device)


def kept_mask(part: Batch, sampling: Sampling, vocabulary: int, device: torch.device) -> torch.Tensor | None:
    """Return [N, V] bool, True for the ids that truncation left, or None where nothing was cut."""
    if part.kept is None or sampling.logprobs == "raw":
        return None
    lengths = part.kept.lengths[part.completion_mask]
    keep = torch.zeros(len(lengths), vocabulary, dtype=torch.bool, device=device)
    rows = sent(np.repeat(np.arange(len(lengths)), lengths), device)
    keep[rows, sent(part.kept.ids.astype(np.int64), device)] = True
    keep[sent(np.flatnonzero(lengths == 0), device)] = True
    return keep


def scale_of(sampling: Sampling) -> float:
    """Return what logits are multiplied by before log-probs are taken."""
    return 1.0 if sampling.logprobs == "raw" else 1.0 / sampling.temperature
