"""Rows of a batch as one run of tokens: no padding, and a prompt that several rows share only once.

Everything but attention works token by token, so that only attention needs rows; there the tokens are laid into padded
rows for the moment.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from steadyrl.types import Batch

# Places of the mask between what follows prompts and what it may attend to, above which rows are attended to whole: the
# mask grows with the square of the length, and the backward pass keeps it for every layer.
MASK_PLACES = 2**22


@dataclass(frozen=True)
class Segments:
    """Pieces of text within the packed tokens, and where they lie in padded rows.

    Attributes:
        rows, width: S and W of the padded rows.
        back: [n] int64, for the packed tokens of these pieces in order, their place in the flattened [S * W].
        lay: [S * W] int64, packed index of each place, where rows share tokens; padding repeats some token. None where
            every token lies in one place.
    """

    rows: int
    width: int
    back: torch.Tensor
    lay: torch.Tensor | None = None

    @property
    def whole(self) -> bool:
        """Return whether the pieces are as long as one another, and so lie in the rows as they are packed."""
        return self.lay is None and len(self.back) == self.rows * self.width


@dataclass(frozen=True)
class Packed:
    """A batch's tokens, each prompt once.

    Attributes:
        ids: [K] int64.
        places: [K] int64, positions within their rows.
        source: [K] int64, where each stands in the flattened [B * T] of the batch.
        chosen: [N] int64, packed index of the token before each completion token, row-major.
        heads: Prompts, or whole rows. Where they are prompts, they stand first among the tokens.
        tails: What follows the prompts, a piece per row; None where rows are attended to whole.
        prompt_of: [R] int64, the row of ``heads`` that each tail continues.
        starts: [R] int64, the position where each tail starts: the length of its prompt.
    """

    ids: torch.Tensor
    places: torch.Tensor
    source: np.ndarray
    chosen: torch.Tensor
    heads: Segments
    tails: Segments | None
    prompt_of: torch.Tensor
    starts: torch.Tensor


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
    width = mask.shape[1]
    texts = [row * width + np.arange(starts[row]) for row in first]
    texts += [row * width + np.arange(start, end) for row, (start, end) in enumerate(zip(starts, ends, strict=True))]
    source = np.concatenate(texts)
    row, column = np.nonzero(mask)
    before = column - 1
    index = np.where(
        before < starts[row], head_offsets[prompt_of[row]] + before, tail_offsets[row] + before - starts[row]
    )
    if len(starts) * int(tail_lengths.max()) * int(ends.max()) > MASK_PLACES:
        heads, tails = _whole_rows(prompt_of, first, starts, ends, device), None
    else:
        heads = _segments(head_lengths, device)
        tails = _segments(tail_lengths, device) if tail_lengths.any() else None

    def send(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(device)

    return Packed(
        ids=send(part.tokens.ravel()[source].astype(np.int64)),
        places=send(source % width),
        source=source,
        chosen=send(index.astype(np.int64)),
        heads=heads,
        tails=tails,
        prompt_of=send(prompt_of.astype(np.int64)),
        starts=send(starts.astype(np.int64)),
    )


def _segments(lengths: np.ndarray, device: torch.device) -> Segments:
    """Return where pieces of these lengths [S] lie, each in a row of its own."""
    width = int(lengths.max())
    inside = np.arange(width)[None] < lengths[:, None]  # [S, W]
    return Segments(len(lengths), width, torch.from_numpy(np.flatnonzero(inside)).to(device))


def _whole_rows(
    prompt_of: np.ndarray, first: np.ndarray, starts: np.ndarray, ends: np.ndarray, device: torch.device
) -> Segments:
    """Return where tokens lie in whole rows; those of a prompt in every row that continues it.

    Args:
        prompt_of: [R], the prompt of each row.
        first: [G], the row that each prompt is read from.
        starts: [R], position where what follows the prompt begins.
        ends: [R], position where it ends.
        device: Where the tensors go.
    """
    width = int(ends.max())
    heads, tails = starts[first], ends - starts
    head_offsets = np.concatenate([[0], heads.cumsum()])
    tail_offsets = head_offsets[-1] + np.concatenate([[0], tails.cumsum()])
    column = np.arange(width)[None]
    of_prompt = head_offsets[prompt_of][:, None] + column
    of_tail = tail_offsets[:-1][:, None] + column - starts[:, None]
    lay = np.where(column < starts[:, None], of_prompt, np.where(column < ends[:, None], of_tail, 0))  # [R, W]
    prompts = np.flatnonzero(column < heads[:, None])
    back = [first[prompts // width] * width + prompts % width]
    back.append(np.flatnonzero((column >= starts[:, None]) & (column < ends[:, None])))
    return Segments(
        len(starts),
        width,
        torch.from_numpy(np.concatenate(back).astype(np.int64)).to(device),
        torch.from_numpy(lay.ravel().astype(np.int64)).to(device),
    )
