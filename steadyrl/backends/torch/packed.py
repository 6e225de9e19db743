"""Rows of a batch as one run of tokens: no padding, and a prompt that several rows share only once.

Everything but attention works token by token, so that only attention needs rows; there the tokens are laid into padded
rows for the moment.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from steadyrl.types import Batch


@dataclass(frozen=True)
class Segments:
    """Pieces of text within the packed tokens, and how to lay them into padded rows and back.

    Attributes:
        lay: [S, W] int64, packed index of each place; padding repeats some token, and is not looked at.
        back: [n] int64, for the packed tokens of these pieces in order, their place in the flattened [S * W].
    """

    lay: torch.Tensor
    back: torch.Tensor


@dataclass(frozen=True)
class Packed:
    """A batch's tokens, each prompt once.

    Attributes:
        ids: [K] int64.
        places: [K] int64, positions within their rows.
        chosen: [N] int64, packed index of the token before each completion token, row-major.
        heads: Prompts, or whole rows where no prompt is shared. They stand first among the tokens.
        tails: What follows the prompts, a piece per row; None where no prompt is shared.
        prompt_of: [R] int64, the row of ``heads`` that each tail continues.
        seen: [R, Wt, Wh + Wt] bool, which tokens of its prompt and its tail each tail token may attend to.
        back_to: [R, Wt, Wh + Wt] int64, how many positions back they lie, for sliding windows.
    """

    ids: torch.Tensor
    places: torch.Tensor
    chosen: torch.Tensor
    heads: Segments
    tails: Segments | None
    prompt_of: torch.Tensor
    seen: torch.Tensor
    back_to: torch.Tensor


def pack(part: Batch, device: torch.device) -> Packed:
    """Pack the rows of a batch as far as completion tokens depend on them.

    Args:
        part: [B, T]; every row has at least one prompt token before its first completion token, or no completion.
        device: Where the tensors go.
    """
    mask = part.completion_mask
    columns = np.arange(mask.shape[1])
    ends = np.where(mask, columns, 0).max(axis=1)  # [B], tokens before the last completion token are read
    starts = np.where(mask.any(axis=1), mask.argmax(axis=1), 0)  # [B]
    prompts = [part.tokens[row, :start].tobytes() for row, start in enumerate(starts)]
    numbers: dict[bytes, int] = {}
    prompt_of = np.array([numbers.setdefault(prompt, len(numbers)) for prompt in prompts])
    if len(numbers) == len(prompts):  # nothing to share
        starts, prompt_of = ends, np.arange(len(prompts))
    first = np.unique(prompt_of, return_index=True)[1]  # the row that each prompt is read from
    head_lengths, tail_lengths = starts[first], ends - starts
    head_offsets = np.concatenate([[0], head_lengths.cumsum()])
    tail_offsets = head_offsets[-1] + np.concatenate([[0], tail_lengths.cumsum()])
    rows = [part.tokens[row, : starts[row]] for row in first]
    rows += [part.tokens[row, start:end] for row, (start, end) in enumerate(zip(starts, ends, strict=True))]
    places = [np.arange(n) for n in head_lengths]
    places += [np.arange(start, end) for start, end in zip(starts, ends, strict=True)]
    row, column = np.nonzero(mask)
    before = column - 1
    index = np.where(
        before < starts[row], head_offsets[prompt_of[row]] + before, tail_offsets[row] + before - starts[row]
    )
    tails = None if not tail_lengths.any() else _segments(tail_offsets[:-1], tail_lengths, device)
    seen, back_to = _visibility(head_lengths[prompt_of], tail_lengths, starts)

    def send(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(device)

    return Packed(
        ids=send(np.concatenate(rows).astype(np.int64)),
        places=send(np.concatenate(places).astype(np.int64)),
        chosen=send(index.astype(np.int64)),
        heads=_segments(head_offsets[:-1], head_lengths, device),
        tails=tails,
        prompt_of=send(prompt_of.astype(np.int64)),
        seen=send(seen),
        back_to=send(back_to),
    )


def _segments(offsets: np.ndarray, lengths: np.ndarray, device: torch.device) -> Segments:
    width = int(lengths.max())
    inside = np.arange(width)[None] < lengths[:, None]  # [S, W]
    lay = np.where(inside, offsets[:, None] + np.arange(width)[None], 0)
    return Segments(
        torch.from_numpy(lay.astype(np.int64)).to(device), torch.from_numpy(np.flatnonzero(inside)).to(device)
    )


def _visibility(heads: np.ndarray, tails: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (seen, back_to) [R, Wt, Wh + Wt] of tails [R] that follow prompts of lengths heads [R]."""
    width, before = int(tails.max()), int(heads.max())
    query = starts[:, None, None] + np.arange(width)[None, :, None]  # [R, Wt, 1], position
    of_prompt = np.broadcast_to(np.arange(before), (len(heads), 1, before))
    of_tail = starts[:, None, None] + np.arange(width)[None, None]
    key = np.concatenate([of_prompt, of_tail], axis=2)  # [R, 1, Wh + Wt], position
    there = np.concatenate([of_prompt < heads[:, None, None], np.ones_like(of_tail, bool)], axis=2)
    back_to = query - key
    return there & (back_to >= 0), back_to
