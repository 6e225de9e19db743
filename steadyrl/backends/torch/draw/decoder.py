"""Decoding with a cache of keys and values of our own, through the modules of the model that trains."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch
from torch.nn import functional as F

from steadyrl.backends.torch.device import optional_kernels
from steadyrl.backends.torch.draw.cache import Cache, Prefix
from steadyrl.backends.torch.load.model import SplitModel
from steadyrl.backends.torch.read.attention import (
    CAUSAL,
    Rotation,
    View,
    Visibility,
    causal_within,
    closed,
    viewing,
    visible,
)
from steadyrl.backends.torch.read.head import decoding_head, products_on


class Decoder:
    """A model that decodes about so many rows at once, with so many columns in its cache; see ``batch.Engine``.

    Attributes:
        body: The model without its head.
        device: Where it computes.
        dtype: Of keys and values.
    """

    def __init__(self, split: SplitModel, rows: int, length: int, lower: torch.dtype | None = None):
        weight = next(split.body.parameters())
        self.device, self.dtype = weight.device, lower or weight.dtype
        self.body, self._length = split.body, length
        self._kernels = kernels(self.device)
        self._logits = decoding_head(split.head, split.scale, rows, products_on(self.device, lower))

    def prefill(
        self,
        ids: torch.Tensor,
        visible: torch.Tensor,
        prefixes: Sequence[Prefix | None] = (),
        start: int = 0,
        room: int | None = None,
    ) -> tuple[torch.Tensor, Cache]:
        """Read prompts that are padded on the left, or what follows what is known of them.

        Args:
            ids: [B, P] int64.
            visible: [B, P] bool, False on padding; the last column is never padding.
            prefixes: What was read of each row before these ids; () for nothing.
            start: The column of the first ids, at least; those before it stay free for longer prompts to come.
            room: Columns of the cache after the ids; None for as many as the decoder's length leaves.

        Returns:
            Logits of the next token [B, V] float32, and the cache.
        """
        rows, width = ids.shape
        before = max(start, 0, *(len(prefix) for prefix in prefixes if prefix is not None))
        length = self._length if room is None else before + width + room
        cache_mask = torch.ones(rows, length, dtype=torch.bool, device=self.device)  # [B, S]
        cache_mask[:, :before], cache_mask[:, before : before + width] = False, visible
        lengths = torch.zeros(rows, dtype=torch.long)  # [B], of the prefixes
        for row, prefix in enumerate(prefixes):
            if prefix is not None:
                lengths[row] = len(prefix)
                cache_mask[row, before - len(prefix) : before] = True
        lengths = lengths.to(self.device)
        all_visible = bool(cache_mask.all())
        cache = Cache(None if all_visible else cache_mask, before, lengths + visible.sum(1), length)
        positions = lengths[:, None] + (visible.cumsum(1) - 1).clamp(min=0)  # [B, P]
        hidden = self._hidden_states(ids, positions, cache, _Prefill(cache, positions, self.dtype, prefixes))
        cache.used += width
        return self._logits(hidden[:, -1]), cache

    def step(self, tokens: torch.Tensor, cache: Cache) -> torch.Tensor:
        """Append tokens [B] int64, one column of the cache; return logits of the next, [B, V] float32."""
        hidden = self._hidden_states(tokens[:, None], cache.positions[:, None], cache, _Step(cache, self.dtype))
        cache.positions = cache.positions + 1
        cache.used += 1
        return self._logits(hidden[:, -1])

    def step_at(
        self, tokens: torch.Tensor, positions: torch.Tensor, column: torch.Tensor, visible: torch.Tensor, cache: Cache
    ) -> torch.Tensor:
        """Append one token to every row, with all that changes in tensors, so that a CUDA graph can hold the step.

        Args:
            tokens: [B] int64.
            positions: [B] int64, their positions.
            column: [1] int64, where the token goes in the cache.
            visible: [B, S] bool, this column included.
            cache: Its keys and values are written; nothing else is used or changed.

        Returns:
            Logits of the next token [B, V] float32.
        """
        view = _CapturedStep(cache, self.dtype, positions, column, visible, self._kernels)
        return self._logits(self._hidden_states(tokens[:, None], positions[:, None], cache, view)[:, -1])

    def _hidden_states(self, ids: torch.Tensor, positions: torch.Tensor, cache: Cache, view: View) -> torch.Tensor:
        with viewing(view):
            # A mask of ones: padding is the view's to know.
            hidden: torch.Tensor = self.body(
                input_ids=ids, position_ids=positions, attention_mask=torch.ones_like(ids), use_cache=False
            ).last_hidden_state
        return hidden


class _Decoding(View):
    """See View: keys and values go to a cache, and queries see what is there."""

    def __init__(self, cache: Cache, dtype: torch.dtype):
        self._cache, self._dtype = cache, dtype


class _Prefill(_Decoding):
    """The first pass: the cache takes the shapes of what the layers give."""

    def __init__(self, cache: Cache, positions: torch.Tensor, dtype: torch.dtype, prefixes: Sequence[Prefix | None]):
        super().__init__(cache, dtype)
        self._positions, self._prefixes = positions, prefixes
        self._rotated: tuple[torch.Tensor, torch.Tensor] | None = None
        self._end = cache.used + positions.shape[1]

    def mask(self, visibility: Visibility) -> torch.Tensor | None:
        """Return bool [B, 1, P, end]; None where all tokens see what stands before them, and nothing else is there."""
        cache = self._cache
        causal = causal_within(visibility, cache.length, cache.positions.device)
        cache.shares = cache.shares and causal
        if causal and cache.visible is None and cache.used == 0:
            return None
        columns = cache.columns()[:, : self._end]
        mask = visible(visibility, self._positions[:, :, None], columns[:, None])  # [B, P, end]
        if cache.visible is not None:
            mask = mask & cache.visible[:, None, : self._end]
        itself = torch.arange(self._end, device=columns.device)  # [end]
        itself = itself[cache.used :, None] == itself  # padding sees itself, lest it become NaN
        return (mask | itself)[:, None]

    def rotate(
        self, layer: int, rotation: Rotation, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See View; what comes of it is compared with what attention is given."""
        self._rotated = rotation(q, k, cos, sin)
        return self._rotated

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None,
        scale: float | None,
    ) -> torch.Tensor:  # fmt: skip
        begin, cache = self._cache.used, self._cache
        rotated, self._rotated = self._rotated, None
        if rotated is not None and rotated[0] is q and rotated[1] is k:
            cache.rotated.add(layer)
        # Zeros: what is masked is still multiplied, and 0 times whatever lies in fresh memory may be no number.
        keys, values = (x.new_zeros(*x.shape[:2], cache.length, x.shape[3], dtype=self._dtype) for x in (k, v))
        for row, prefix in enumerate(self._prefixes):
            if prefix is not None:
                columns = slice(begin - len(prefix), begin)
                keys[row, :, columns], values[row, :, columns] = prefix.keys[layer], prefix.values[layer]
        keys[:, :, begin : self._end], values[:, :, begin : self._end] = k, v
        cache.keys, cache.values = {**cache.keys, layer: keys}, {**cache.values, layer: values}
        q, k, v = q.to(self._dtype), keys[:, :, : self._end], values[:, :, : self._end]
        shared, on_cpu = q.shape[1] // k.shape[1], k.device.type == "cpu"
        if shared > 1 and not on_cpu:
            k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
        attended = F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=mask is None, scale=scale, enable_gqa=on_cpu and shared > 1
        )
        return attended.transpose(1, 2)


class _Step(_Decoding):
    def mask(self, visibility: Visibility) -> torch.Tensor | None:
        """Return [B, 1, 1, end]: 0 where something is seen, -inf elsewhere; None where all of it is."""
        cache, end = self._cache, self._cache.used + 1
        mask = None if cache.visible is None else cache.visible[:, :end]
        if not causal_within(visibility, cache.length, cache.positions.device):
            near = visible(visibility, cache.positions[:, None], cache.columns()[:, :end])  # [B, end]
            mask = near if mask is None else mask & near
        return None if mask is None else closed(mask, self._dtype)[:, None, None]

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None,
        scale: float | None,
    ) -> torch.Tensor:  # fmt: skip
        keys, values, end = self._cache.keys[layer], self._cache.values[layer], self._cache.used + 1
        keys[:, :, end - 1 : end], values[:, :, end - 1 : end] = k, v
        return self._attend_one(layer, q, keys[:, :, :end], values[:, :, :end], mask, scale)

    def _attend_one(
        self, layer: int, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None,
        scale: float | None,
    ) -> torch.Tensor:  # fmt: skip
        rows, kv_heads = keys.shape[:2]
        # The heads that share keys stand beside each other, as if they were positions.
        q = q[:, :, 0].reshape(rows, kv_heads, -1, q.shape[-1]).to(keys.dtype)  # [B, kv_heads, R, D]
        if self._cache.prompts is not None:
            attended = self._cache.prompts.attend(layer, q, keys, values, mask, scale)
        else:
            attended = F.scaled_dot_product_attention(q, keys, values, mask, scale=scale)
        return attended.reshape(rows, 1, -1, values.shape[-1])


class _CapturedStep(_Step):
    """A step whose numbers are tensors: it sees all columns of the cache, by a mask."""

    def __init__(
        self, cache: Cache, dtype: torch.dtype, positions: torch.Tensor, column: torch.Tensor, visible: torch.Tensor,
        attention_kernels: ModuleType | None,
    ):  # fmt: skip
        super().__init__(cache, dtype)
        self._positions, self._column, self._visible = positions, column, visible
        self._kernels = attention_kernels if cache.prompts is None else None
        self._unrotated: tuple[torch.Tensor, ...] | None = None  # queries and keys, and their cosines and sines

    def mask(self, visibility: Visibility) -> torch.Tensor:
        """See ``_Step``, and nothing is asked of the device; where kernels attend, bool [B, S]."""
        mask = self._visible
        if visibility is not CAUSAL:
            mask = mask & visible(visibility, self._positions[:, None], (mask.cumsum(1) - 1).clamp(min=0))
        return mask if self._kernels else closed(mask, self._dtype)[:, None, None]

    def rotate(
        self, layer: int, rotation: Rotation, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See View; the kernel that attends rotates, where it is given what a rotation returns."""
        if self._kernels is None or layer not in self._cache.rotated:
            return rotation(q, k, cos, sin)
        self._unrotated = q, k, cos[:, 0], sin[:, 0]
        return q, k

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None,
        scale: float | None,
    ) -> torch.Tensor:  # fmt: skip
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        if self._kernels:
            scale = q.shape[-1] ** -0.5 if scale is None else scale
            token, unrotated, self._unrotated = (q[:, :, 0], k[:, :, 0], v[:, :, 0]), self._unrotated, None
            if unrotated is not None and not (unrotated[0] is q and unrotated[1] is k):
                raise RuntimeError("attention is given something else than while prompts were read")  # not captured
            angles = None if unrotated is None else unrotated[2:]
            attended: torch.Tensor = self._kernels.attend(
                *token, keys, values, mask, self._column, scale, angles=angles
            )
            return attended[:, None]
        keys.index_copy_(2, self._column, k.to(keys.dtype))
        values.index_copy_(2, self._column, v.to(values.dtype))
        return self._attend_one(layer, q, keys, values, mask, scale)


@optional_kernels
def kernels(device: torch.device) -> ModuleType:
    """Return ``decoding_kernels``, tried on one number."""
    from steadyrl.backends.torch.kernels import decoding_kernels

    number = torch.zeros(1, 1, 1, 16, device=device)
    token, visible = number[:, :, 0], torch.ones(1, 1, dtype=torch.bool, device=device)
    decoding_kernels.attend(
        token, token, token, number, number, visible, torch.zeros(1, dtype=torch.long, device=device), 1.0
    )
    return decoding_kernels
