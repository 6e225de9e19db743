"""Keys and values of a batch that is being decoded, and of single sequences that were."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from steadyrl.backends.torch.shared import Prompts, pays


@dataclass(frozen=True)
class Known:
    """Keys and values of one sequence.

    Attributes:
        keys: [L, kv_heads, N, head_dim].
        values: As keys.
    """

    keys: torch.Tensor
    values: torch.Tensor

    def __len__(self) -> int:
        """Return the number of tokens."""
        return self.keys.shape[2]


@dataclass
class Cache:
    """Keys and values of all layers, [L, B, kv_heads, S, head_dim] each, and which columns hold something.

    Attributes:
        visible: [B, S] bool, False on padding; None where no row has any.
        used: Columns that are filled.
        places: [B] position of each row's next token.
        shares: Whether prompts may be shared: no layer has a window that would reach into them.
        prompts: What the rows continue, where prompts are shared; keys and values are then of what follows them.
    """

    keys: torch.Tensor
    values: torch.Tensor
    visible: torch.Tensor | None
    used: int
    places: torch.Tensor
    shares: bool = True
    prompts: Prompts | None = None

    def spread(self, owner: torch.Tensor) -> None:
        """Continue prompt ``owner[b]`` in row b; a prompt may be continued many times.

        Args:
            owner: [B] int64, rows of the cache as it is.
        """
        prompts, width, device = self.keys.shape[1], self.used, self.keys.device
        if not self.shares or not pays(prompts, len(owner), width, self.keys.dtype, device):
            self.take(owner)
            return
        visible = None if self.visible is None else self.visible[:, :width]
        self.prompts = Prompts.of(self.keys[..., :width, :], self.values[..., :width, :], visible, owner)
        layers, _, heads, length, head_dim = self.keys.shape
        shape = (layers, len(owner), heads, length - width, head_dim)
        self.keys, self.values = self.keys.new_zeros(shape), self.keys.new_zeros(shape)
        self.visible, self.used, self.places = None, 0, self.places[owner]

    def take(self, rows: torch.Tensor) -> None:
        """Keep these rows only; a row may be taken several times."""
        if self.prompts is not None:
            self.prompts = self.prompts.take(rows)
        self.keys, self.values = self.keys.index_select(1, rows), self.values.index_select(1, rows)
        self.places = self.places[rows]
        if self.visible is not None:
            self.visible = self.visible[rows]

    def row(self, row: int, length: int) -> Known:
        """Return a copy of a row's first ``length`` tokens, without the holes of its padding."""
        filled = torch.ones(self.used, dtype=torch.bool, device=self.keys.device)
        if self.visible is not None:
            filled = self.visible[row, : self.used]
        parts = [(self.keys[:, row], self.values[:, row], filled)]
        if (shared := self.prompts) is not None:
            of = int(shared.owner[row])
            filled = filled.new_ones(shared.keys.shape[3]) if shared.closed is None else shared.closed[of, 0] == 0
            parts.insert(0, (shared.keys[:, of], shared.values[:, of], filled))
        columns = [filled.nonzero()[:, 0] for _, _, filled in parts]
        keys = torch.cat([part[0].index_select(2, own) for part, own in zip(parts, columns, strict=True)], dim=2)
        values = torch.cat([part[1].index_select(2, own) for part, own in zip(parts, columns, strict=True)], dim=2)
        return Known(keys[:, :, :length].contiguous(), values[:, :, :length].contiguous())
