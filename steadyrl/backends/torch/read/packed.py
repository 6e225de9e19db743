"""Rows of a batch as one run of tokens: no padding, and a prompt that several rows share only once.

Everything but attention works token by token, so that only attention needs rows; there the tokens are laid into padded
rows for the moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from steadyrl.backends.torch.device import to_device
from steadyrl.backends.torch.footprint import WORTH_SHARING
from steadyrl.backends.torch.kernels.fused import layer_kernels
from steadyrl.backends.torch.read.attention import View, Visibility, causal_within, closed, visible
from steadyrl.backends.torch.read.products import without_autocast
from steadyrl.core.types import Batch

# Places of the mask between what follows prompts and what it may attend to, above which rows are attended to whole: the
# mask grows with the square of the length, and the backward pass keeps it for every layer.
MASK_PLACES = 2**22


@dataclass(frozen=True)
class Segments:
    """Pieces of text within the packed tokens, and where they lie in padded rows."""

    rows: int
    width: int
    """S and W of the padded rows."""
    back: torch.Tensor
    """[n] int64, for the packed tokens of these pieces in order, their place in the flattened [S * W]."""
    lay: torch.Tensor | None = None
    """[S * W] int64, packed index of each place, where rows share tokens; padding repeats some token. None where every
    token lies in one place."""
    inverse: torch.Tensor | None = None
    """[S * W] int64, the piece's token at each place, -1 on padding; where every token lies in one place."""

    @property
    def unpadded(self) -> bool:
        """Return whether the pieces are as long as one another, and so lie in the rows as they are packed."""
        return self.lay is None and len(self.back) == self.rows * self.width


@dataclass(frozen=True)
class Packed:
    """A batch's tokens, each prompt once."""

    ids: torch.Tensor
    """[K] int64."""
    positions: torch.Tensor
    """[K] int64, positions within their rows."""
    source: np.ndarray
    """[K] int64, where each stands in the flattened [B * T] of the batch."""
    chosen: torch.Tensor
    """[N] int64, packed index of the token before each completion token, row-major."""
    prompts: Sequence[Segments]
    """Or whole rows, those of about one length together. Prompts stand before the answers, in one piece."""
    answers: Segments | None
    """What follows the prompts, a piece per row; None where rows are attended to whole."""
    prompt_of: torch.Tensor
    """[R] int64, the row of ``prompts`` that each answer continues."""
    starts: torch.Tensor
    """[R] int64, the position where each answer starts: the length of its prompt."""


def pack(batch: Batch, device: torch.device) -> Packed:
    """Pack the rows of a batch as far as completion tokens depend on them.

    Args:
        batch: [B, T]; every row has at least one prompt token before its first completion token, or no completion.
        device: Where the tensors go.
    """
    mask = batch.completion_mask
    columns = np.arange(mask.shape[1])
    ends = np.where(mask, columns, 0).max(axis=1)  # [B], tokens before the last completion token are read
    starts = np.where(mask.any(axis=1), mask.argmax(axis=1), 0)  # [B]
    texts_before = [batch.tokens[row, :start].tobytes() for row, start in enumerate(starts)]
    numbers: dict[bytes, int] = {}
    prompt_of = np.array([numbers.setdefault(prompt, len(numbers)) for prompt in texts_before])  # [R]
    shared_tokens = (ends - starts).sum() + starts[np.unique(prompt_of, return_index=True)[1]].sum()
    little = device.type == "cuda" and ends.sum() <= WORTH_SHARING * shared_tokens
    if little or len(numbers) == len(texts_before):  # nothing to share
        starts, prompt_of = ends, ends.argsort(kind="stable").argsort()
    first = np.unique(prompt_of, return_index=True)[1]  # the row that each prompt is read from
    prompt_lengths, answer_lengths = starts[first], ends - starts  # [G], [R]
    prompt_offsets = np.concatenate([[0], prompt_lengths.cumsum()])
    answer_offsets = prompt_offsets[-1] + np.concatenate([[0], answer_lengths.cumsum()])
    width = mask.shape[1]
    texts = [row * width + np.arange(starts[row]) for row in first]
    texts += [row * width + np.arange(start, end) for row, (start, end) in enumerate(zip(starts, ends, strict=True))]
    source = np.concatenate(texts)  # [K]
    row, column = np.nonzero(mask)  # [N] each
    before = column - 1
    index = np.where(
        before < starts[row], prompt_offsets[prompt_of[row]] + before, answer_offsets[row] + before - starts[row]
    )
    answers = None
    if len(starts) * int(answer_lengths.max()) * int(ends.max()) > MASK_PLACES:
        prompts = [_whole_rows(prompt_of, first, starts, ends, device)]
    elif answer_lengths.any():
        prompts, answers = [_segments(prompt_lengths, device)], _segments(answer_lengths, device)
    else:
        ends_of_groups = np.zeros(0, np.int64)
        if device.type == "cpu":  # there padding to twice a length costs more than a call
            ends_of_groups = np.flatnonzero(np.diff(np.ceil(np.log2(np.maximum(prompt_lengths, 1))))) + 1
        prompts = [_segments(lengths, device) for lengths in np.split(prompt_lengths, ends_of_groups)]

    def send(array: np.ndarray) -> torch.Tensor:
        return to_device(array, device)

    return Packed(
        ids=send(batch.tokens.ravel()[source].astype(np.int64)),
        positions=send(source % width),
        source=source,
        chosen=send(index.astype(np.int64)),
        prompts=prompts,
        answers=answers,
        prompt_of=send(prompt_of.astype(np.int64)),
        starts=send(starts.astype(np.int64)),
    )


def _segments(lengths: np.ndarray, device: torch.device) -> Segments:
    """Return where pieces of these lengths [S] lie, each in a row of its own."""
    width = int(lengths.max())
    inside = np.arange(width)[None] < lengths[:, None]  # [S, W]
    flat_index = np.flatnonzero(inside)
    inverse = np.full(inside.size, -1)  # [S * W]
    inverse[flat_index] = np.arange(len(flat_index))
    return Segments(len(lengths), width, to_device(flat_index, device), inverse=to_device(inverse, device))


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
    in_prompt, in_answer = starts[first], ends - starts
    prompt_offsets = np.concatenate([[0], in_prompt.cumsum()])
    answer_offsets = prompt_offsets[-1] + np.concatenate([[0], in_answer.cumsum()])
    column = np.arange(width)[None]
    # Padding repeats its row's last token: gradients of one token for all rows would wait for one another.
    real = np.minimum(column, ends[:, None] - 1)  # [R, W]
    of_prompt = prompt_offsets[prompt_of][:, None] + real
    of_answer = answer_offsets[:-1][:, None] + real - starts[:, None]
    lay = np.where(real < starts[:, None], of_prompt, of_answer).clip(0, answer_offsets[-1] - 1)  # [R, W]
    prompt_columns = np.flatnonzero(column < in_prompt[:, None])
    back = [first[prompt_columns // width] * width + prompt_columns % width]
    back.append(np.flatnonzero((column >= starts[:, None]) & (column < ends[:, None])))
    return Segments(
        len(starts),
        width,
        to_device(np.concatenate(back).astype(np.int64), device),
        to_device(lay.ravel().astype(np.int64), device),
    )


class PackedView(View):
    """See View: attention of packed tokens, each prompt once."""

    def __init__(self, packed: Packed):
        self._packed = packed

    def mask(self, visibility: Visibility) -> PackedMask:
        """See View."""
        prompts, answers, starts = self._packed.prompts, self._packed.answers, self._packed.starts
        width = prompts[-1].width  # the longest are last
        longest = width + (0 if answers is None else answers.width)
        causal = causal_within(visibility, longest, starts.device)
        column = torch.arange(width, device=starts.device)  # [Wp]
        of_prompts = None if causal else visible(visibility, column[:, None], column)
        if answers is None:
            return PackedMask(of_prompts, None)
        row = torch.arange(answers.width, device=starts.device)  # [Wa]
        on_prompts = (column < starts[:, None])[:, None].expand(-1, answers.width, -1)  # [R, Wa, Wp]
        on_answers = (row[:, None] >= row).expand(len(starts), -1, -1)  # [R, Wa, Wa]
        if not causal:
            position = starts[:, None] + row  # [R, Wa]
            on_prompts = on_prompts & visible(visibility, position[:, :, None], column)
            on_answers = on_answers & visible(visibility, position[:, :, None], position[:, None])
        return PackedMask(of_prompts, torch.cat([on_prompts, on_answers], dim=2)[:, None])

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: PackedMask, scale: float | None
    ) -> torch.Tensor:
        """See View; the batch is one run of tokens."""
        q, k, v = (x.squeeze(0).transpose(0, 1) for x in (q.to(v.dtype), k.to(v.dtype), v))  # [K, heads, D]
        prompts, answers = self._packed.prompts, self._packed.answers
        sizes = [len(rows.back) for rows in (prompts if answers is None else (*prompts, answers))]
        split, attended = [torch.split(x, sizes) for x in (q, k, v)], []
        for number, rows in enumerate(prompts):
            pq, pk, pv = _lay([x[number] for x in split], rows)
            attended.append(_flat(_attention(pq, pk, pv, mask.of_prompts(v, rows.width), scale), rows))
        if answers is not None:
            aq, ak, av = _lay([x[-1] for x in split], answers)
            ak = torch.cat([pk.index_select(0, self._packed.prompt_of), ak], dim=2)
            av = torch.cat([pv.index_select(0, self._packed.prompt_of), av], dim=2)
            attended.append(_flat(_attention(aq, ak, av, mask.of_answers(v), scale), answers))
        return torch.cat(attended)[None]


class PackedMask:
    """What tokens may see in layers of one kind, laid out as attention wants it once for all of them.

    Args:
        prompts: [W, W] bool, or None where nothing but the order of the tokens says what is seen.
        answers: [R, 1, Wa, Wp + Wa] bool: prompts beside the answers that continue them; None without answers.
    """

    def __init__(self, prompts: torch.Tensor | None, answers: torch.Tensor | None):
        self._prompts, self._answers = prompts, answers
        self._closed: dict[tuple[str, torch.dtype], torch.Tensor] = {}

    def of_prompts(self, values: torch.Tensor, width: int) -> torch.Tensor | None:
        """Return what is added to scores of prompts of a width, for values of this type."""
        return None if self._prompts is None else self._closed_mask("prompts", self._prompts, values)[:width, :width]

    def of_answers(self, values: torch.Tensor) -> torch.Tensor:
        """Return what is added to scores of answers, for values of this type."""
        assert self._answers is not None, "asked only where there are answers"
        return self._closed_mask("answers", self._answers, values)

    def _closed_mask(self, name: str, mask: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        dtype = torch.float32 if values.device.type == "cpu" else values.dtype  # see ``_attention``
        if (name, dtype) not in self._closed:
            self._closed[name, dtype] = closed(mask, dtype)
        return self._closed[name, dtype]


def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scale: float | None
) -> torch.Tensor:
    """Return [S, heads, W, D]; causal where there is no mask."""
    dtype, shared, on_cpu = v.dtype, q.shape[1] // k.shape[1], v.device.type == "cpu"
    if on_cpu:  # forward and back it takes nearly three times as long there in lower precision
        q, k, v = q.float(), k.float(), v.float()
    elif shared > 1 and (mask is not None or dtype == torch.float32):
        # The kernels of GPUs that take a mask or float32 want as many keys as queries; else all scores are stored.
        k, v = (x.repeat_interleave(shared, dim=1) for x in (k, v))
    with without_autocast(v.device):
        attended = F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=mask is None, scale=scale, enable_gqa=k.shape[1] < q.shape[1]
        )
        return attended.to(dtype)


def _lay(tensors: Sequence[torch.Tensor], segments: Segments) -> list[torch.Tensor]:
    """Lay packed [n, heads, D] each into padded rows [S, heads, W, D]."""
    rows, width, kernels = segments.rows, segments.width, layer_kernels(segments.back.device)
    laid: Sequence[torch.Tensor] = tensors
    if segments.lay is not None:
        laid = [x.index_select(0, segments.lay) for x in tensors]
    elif not segments.unpadded:
        if kernels is not None:
            laid = kernels.moved(tensors, segments.inverse, segments.back)
        else:
            laid = [x.new_zeros(rows * width, *x.shape[1:]).index_copy(0, segments.back, x) for x in tensors]
    return [x.reshape(rows, width, *x.shape[1:]).transpose(1, 2) for x in laid]


def _flat(x: torch.Tensor, segments: Segments) -> torch.Tensor:
    """Take the tokens of padded rows [S, heads, W, D] back into a run [n, heads, D]."""
    flat, kernels = x.transpose(1, 2).flatten(0, 1), layer_kernels(segments.back.device)
    if segments.unpadded:
        return flat
    if kernels is None or segments.inverse is None:
        return flat.index_select(0, segments.back)
    tokens: tuple[torch.Tensor, ...] = kernels.moved([flat], segments.back, segments.inverse)
    return tokens[0]
