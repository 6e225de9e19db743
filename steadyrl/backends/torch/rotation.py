"""Queries and keys turned by their positions, in the two ways that families pair the numbers of a head."""

from __future__ import annotations

import torch

Turns = tuple[torch.Tensor, torch.Tensor]  # cosines and signed sines, [..., R]


def signed(cos: torch.Tensor, sin: torch.Tensor, neighbours: bool) -> Turns:
    """Return what ``turned`` multiplies with.

    Args:
        cos: [..., R], the first R of a head's numbers are turned.
        sin: As cos.
        neighbours: Numbers 2i and 2i + 1 are turned together, and not i and R / 2 + i.
    """
    half = cos.shape[-1] // 2
    if neighbours:
        sin = sin[..., :half]
        return cos[..., :half].repeat_interleave(2, dim=-1), torch.stack([-sin, sin], dim=-1).flatten(-2)
    return cos, torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)


def turned(x: torch.Tensor, turns: Turns, neighbours: bool) -> torch.Tensor:
    """Return heads x [..., D] turned; numbers beyond the first R stay."""
    cos, sin = turns
    width = cos.shape[-1]
    if width < x.shape[-1]:
        return torch.cat([turned(x[..., :width], turns, neighbours), x[..., width:]], dim=-1)
    partner = x.reshape(*x.shape[:-1], -1, 2).flip(-1).flatten(-2) if neighbours else x.roll(width // 2, -1)
    return torch.addcmul(x * cos, partner, sin)
