"""What the fast decoder knows of a model: where its weights are and how a layer is put together.

Nothing is copied here: a ``Plan`` points at the modules of the model that trains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

Function = Callable[[torch.Tensor], torch.Tensor]
# (any tensor of the type wanted, positions [1, S]) -> cosines and sines [1, S, R].
Rotation = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Block:
    """One layer: attention, then feed-forward, each between norms and added to its input.

    Attributes:
        norm_attention, norm_mlp: The modules before the halves, or None.
        qkv: Linear modules whose joined outputs are queries, keys and values.
        q_norm, k_norm: Norms of each head, or None.
        out: Back from the heads.
        mlp_in: Gate and up, as two modules or one, or a single one in a model that has no gates.
        mlp_out: Back from the feed-forward.
        window: Positions that attention reaches back, or None for all.
        norm_after_attention, norm_after_mlp: Of what the halves give before it is added, or None.
        heads_at_once: Whether q_norm and k_norm are of all heads together.
        rotation: Number of the plan's rotation, or None where positions turn nothing.
        through: Computes the layer as ``trunk.layer`` does, and gathers its weights first; None where they are here.
    """

    norm_attention: nn.Module | None
    qkv: tuple[nn.Module, ...]
    q_norm: nn.Module | None
    k_norm: nn.Module | None
    out: nn.Module
    norm_mlp: nn.Module | None
    mlp_in: tuple[nn.Module, ...]
    mlp_out: nn.Module
    window: int | None
    norm_after_attention: nn.Module | None = None
    norm_after_mlp: nn.Module | None = None
    heads_at_once: bool = False
    rotation: int | None = 0
    through: nn.Module | None = None


@dataclass(frozen=True)
class Plan:
    """A whole model.

    Attributes:
        embed: Token embedding.
        places: Embedding of positions, or None where positions are rotations.
        rotations: Those that layers name.
        blocks: The layers.
        norm: After the last layer.
        head: Hidden states to logits.
        heads, kv_heads, head_dim: Of attention.
        activation: Of the feed-forward.
        gated: Whether the feed-forward multiplies by a gate.
        parallel: Whether both halves of a layer read its input, and not the second what the first has added.
        by_head: Whether the one module of queries, keys and values gives them head by head.
        neighbours: Whether rotations turn neighbouring numbers of a head together; see ``rotation.signed``.
        scale_queries: Beside the usual one over the root of head_dim.
        scale_embed, scale_added, scale_logits: Of embeddings, of what layers add, and of logits.
        reach: Tokens of a row up to which the model is what the plan says; None for any number.
    """

    embed: nn.Module
    places: nn.Embedding | None
    rotations: tuple[Rotation, ...]
    blocks: tuple[Block, ...]
    norm: nn.Module
    head: nn.Module
    heads: int
    kv_heads: int
    head_dim: int
    activation: Function
    gated: bool = True
    parallel: bool = False
    by_head: bool = False
    neighbours: bool = False
    scale_queries: float = 1.0
    scale_embed: float = 1.0
    scale_added: float = 1.0
    scale_logits: float = 1.0
    reach: int | None = None

    def reaches(self, tokens: int) -> bool:
        """Return whether the plan holds for rows of so many tokens."""
        return self.reach is None or tokens <= self.reach

    @property
    def windowless(self) -> bool:
        """Return whether attention reaches back to the first token in every layer."""
        return all(block.window is None for block in self.blocks)


def in_threes(joined: torch.Tensor) -> torch.Tensor:
    """Return heads that stand as query, key, value of one head after the other [K, 3 * heads, D] kind by kind."""
    return joined.view(len(joined), -1, 3, joined.shape[-1]).transpose(1, 2).flatten(1, 2)
