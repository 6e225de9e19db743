"""The value head: one linear layer on the hidden state before a token is chosen."""

from __future__ import annotations

import torch
from torch import nn


class ValueHead(nn.Module):
    """Predict the return from a hidden state.

    Starts at zero: the first values are exactly 0, so that the first advantages are the rewards themselves and the
    head adds no noise of its own.
    """

    def __init__(self, hidden_size: int):
        super().__init__()
        self.linear = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map [N, hidden] to [N] values in float32, whatever the model's own type."""
        values: torch.Tensor = self.linear(hidden.float()).sum(-1)  # of one column; FSDP warns of a view
        return values
