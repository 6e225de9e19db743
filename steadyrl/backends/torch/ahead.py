"""The pass of an update over its rows, made when the batch is scored: so a step's only update reads its rows once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from steadyrl.backends.torch.reader import Reader
from steadyrl.backends.torch.recording import Recording
from steadyrl.batch import micro_batches, take_rows
from steadyrl.types import Batch


@dataclass(frozen=True)
class Ahead:
    """A micro-batch and what the policy made of it, with the way back through the layers.

    It holds for the weights that made it: whoever changes them forgets it.
    """

    part: Batch
    hidden: torch.Tensor  # [N, H]
    logits: torch.Tensor | None = None  # [N, V], where the sampler kept them; whoever uses them may overwrite them

    def of(self, part: Batch) -> bool:
        """Return whether ``part`` holds the rows that were read."""
        ours, theirs = ((rows.tokens, rows.completion_mask) for rows in (self.part, part))
        return all(map(np.array_equal, ours, theirs))


def read_ahead(read: Reader, batch: Batch, tokens: int, recording: Recording | None, head: nn.Module) -> Ahead | None:
    """Read a batch for the update that follows, or return None where it takes several micro-batches of ``tokens``.

    The graphs of several micro-batches together would need more memory than the update does. What a recording of the
    same rows holds is not multiplied again.
    """
    parts = micro_batches(batch, tokens)
    if len(parts) > 1:
        return None
    part = take_rows(batch, parts[0])
    found = None if recording is None else read.of_recording(part, recording, head)
    return Ahead(part, read(part)) if found is None else Ahead(part, *found)
