"""Prompts that several samples continue: their keys and values are kept once and read once for all samples.

Attention over a prompt and over a row's own tokens is done apart, and the two are joined by how much weight each has:
softmax over both = the mean of the two softmaxes, weighted by the sums of their exponentials.

Source:
    Juravsky et al., "Hydragen: High-Throughput LLM Inference with Shared Prefixes" (arXiv 2402.05099), section 3.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from steadyrl.backends.torch.read.attention import closed

# Prompt columns that sharing spares every step, over all rows: below this the further kernels cost more than they save.
LEAST_SPARED = 2048


@dataclass
class Prompts:
    """Keys and values of G prompts, and which rows continue which of them."""

    keys: Mapping[int, torch.Tensor]
    """[G, kv_heads, P, head_dim] of each layer."""
    values: Mapping[int, torch.Tensor]
    """As keys."""
    closed: torch.Tensor | None
    """[G, 1, P] float, -inf on the padding left of a prompt, else 0; None where no prompt has any."""
    owner: torch.Tensor
    """[B] int64, the prompt of each row."""
    slots: torch.Tensor | None
    """[B] int64, the place of each row in a grid of G x ``max_rows``; None where they are 0, 1, 2, ... to its end."""
    max_rows: int
    """Rows of the prompt that most rows continue."""

    @classmethod
    def of_rows(
        cls,
        keys: Mapping[int, torch.Tensor],
        values: Mapping[int, torch.Tensor],
        visible: torch.Tensor | None,
        owner: torch.Tensor,
    ) -> Prompts:
        """Lay rows out by their prompts.

        Args:
            keys: [G, kv_heads, P, head_dim] of each layer.
            values: As keys.
            visible: [G, P] bool, False on padding; None where there is none.
            owner: [B] int64, every prompt among them.
        """
        hides = None if visible is None else closed(visible, next(iter(keys.values())).dtype)[:, None]
        return cls(keys, values, hides, owner, *_slots(owner))

    @property
    def length(self) -> int:
        """Return P."""
        return next(iter(self.keys.values())).shape[2]

    def take(self, rows: torch.Tensor) -> Prompts:
        """Return what is left when these rows go on; a prompt that no row continues is dropped."""
        prompts, owner = torch.unique(self.owner[rows], return_inverse=True)
        slots, max_rows = _slots(owner)
        if len(prompts) == len(next(iter(self.keys.values()))):
            return Prompts(self.keys, self.values, self.closed, owner, slots, max_rows)
        keys, values = (
            {layer: x.index_select(0, prompts) for layer, x in layers.items()} for layers in (self.keys, self.values)
        )
        return Prompts(keys, values, None if self.closed is None else self.closed[prompts], owner, slots, max_rows)

    def joined(
        self,
        rows: torch.Tensor,
        keys: Mapping[int, torch.Tensor],
        values: Mapping[int, torch.Tensor],
        visible: torch.Tensor | None,
        owner: torch.Tensor,
    ) -> Prompts:
        """Return what there is when some rows go on from other prompts; one that no row continues is dropped.

        Args:
            rows: [R] int64.
            keys: [H, kv_heads, Q, head_dim] of each layer: of the other prompts.
            values: As keys.
            visible: [H, Q] bool, False on padding; None where there is none.
            owner: [R] int64, the one of the other prompts that each of the rows continues.
        """
        ours, theirs = (next(iter(layers.values())) for layers in (self.keys, keys))
        width = max(ours.shape[2], theirs.shape[2])
        owners = self.owner.index_copy(0, rows, owner + len(ours))  # [B], of both together
        remaining, owners = torch.unique(owners, return_inverse=True)

        def combined(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
            return torch.cat([F.pad(x, (0, 0, width - x.shape[2], 0)) for x in (old, new)])[remaining]

        closed = None
        if not (self.closed is None and visible is None and ours.shape[2] == theirs.shape[2]):
            old = ours.new_zeros(len(ours), 1, self.length) if self.closed is None else self.closed
            new = ours.new_zeros(len(theirs), 1, theirs.shape[2])
            new = new if visible is None else new.masked_fill(~visible[:, None], -torch.inf)
            closed = torch.cat([F.pad(x, (width - x.shape[2], 0), value=-torch.inf) for x in (old, new)])[remaining]
        keys, values = (
            {layer: combined(x, new_layers[layer]) for layer, x in layers.items()}
            for layers, new_layers in ((self.keys, keys), (self.values, values))
        )
        slots, max_rows = _slots(owners)
        return Prompts(keys, values, closed, owners, slots, max_rows)

    def attend(
        self,
        layer: int,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None,
        scale: float | None,
    ) -> torch.Tensor:
        """Attend to the rows' prompts and to their own columns.

        Args:
            layer: Number of the layer.
            q: [B, kv_heads, R, head_dim], the heads that share keys beside each other.
            keys: [B, kv_heads, N, head_dim], the rows' own.
            values: As keys.
            mask: [B, 1, 1, N], 0 where a row sees one of its own, -inf elsewhere; None where it sees all.
            scale: Of the products of queries and keys; None for one over the root of head_dim.

        Returns:
            [B, kv_heads, R, head_dim].
        """
        _, kv_heads, shared, width = q.shape
        prompts = len(self.keys[layer])
        q = q * (width**-0.5 if scale is None else scale)
        grid = q
        if self.slots is not None:
            grid = q.new_zeros(prompts * self.max_rows, kv_heads, shared, width)
            grid[self.slots] = q
        grid = grid.view(prompts, self.max_rows, kv_heads, shared, width)
        grid = grid.transpose(1, 2).flatten(2, 3)  # [G, kv_heads, S * R, D]
        scores = grid @ self.keys[layer].transpose(2, 3)  # [G, kv, S * R, P]
        if self.closed is not None:
            scores = scores + self.closed[:, None]
        of_prompt, weight_of_prompt = _weigh(scores, self.values[layer])
        of_prompt = self._rows(of_prompt, kv_heads, shared)
        weight_of_prompt = self._rows(weight_of_prompt, kv_heads, shared)
        scores = q @ keys.transpose(2, 3)  # [B, kv_heads, R, N]
        of_row, weight_of_row = _weigh(scores if mask is None else scores + mask, values)
        return of_row + torch.sigmoid(weight_of_prompt - weight_of_row) * (of_prompt - of_row)

    def _rows(self, grid: torch.Tensor, kv_heads: int, shared: int) -> torch.Tensor:
        """Return [B, kv_heads, R, X] of a grid [G, kv_heads, S * R, X]."""
        prompts, last = len(grid), grid.shape[3]
        rows = grid.view(prompts, kv_heads, self.max_rows, shared, last).transpose(1, 2).flatten(0, 1)
        return rows if self.slots is None else rows[self.slots]


def pays(prompts: int, rows: int, length: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether rows had better share prompts of a length: only on a CPU, and less than float32 rounds scores."""
    return device.type == "cpu" and dtype == torch.float32 and (rows - prompts) * length >= LEAST_SPARED


def _weigh(scores: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weighted mean of values, and the log of the sum of the weights [..., 1]."""
    return scores.softmax(-1) @ values, scores.logsumexp(-1, keepdim=True)


def _slots(owner: torch.Tensor) -> tuple[torch.Tensor | None, int]:
    """Return ``Prompts.slots`` and ``Prompts.max_rows``."""
    counts = torch.bincount(owner)  # [G], rows of each prompt
    max_rows = int(counts.max())
    order = torch.argsort(owner, stable=True)
    first = counts.cumsum(0) - counts  # [G], where each prompt's rows begin in that order
    numbers = torch.arange(len(owner), device=owner.device)
    rank = torch.empty_like(owner)  # [B], of a row among those of its prompt
    rank[order] = numbers - first[owner[order]]
    slots = owner * max_rows + rank  # [B]
    aligned = len(owner) == len(counts) * max_rows and bool((slots == numbers).all())
    return None if aligned else slots, max_rows
