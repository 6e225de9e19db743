"""Decoding with a preallocated cache of keys and values, from the weights of the model that trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from steadyrl.backends.torch.agree import agree
from steadyrl.backends.torch.arithmetic import full_float32
from steadyrl.backends.torch.cache import Cache, Known
from steadyrl.backends.torch.families import plan_of
from steadyrl.backends.torch.plan import Block, Function, Plan, in_threes
from steadyrl.backends.torch.products import added, head_norm, norm, product, without_autocast
from steadyrl.backends.torch.recording import HEAD, Name, Recording
from steadyrl.backends.torch.rotation import Turns, signed, turned
from steadyrl.backends.torch.shared import Prompts


class Decoder:
    """A model ready to decode; made anew for every call, since training changes the weights in between.

    Args:
        plan: Of the model.
        rows: About as many rows as will be decoded at once.
        length: Columns of the cache: the longest prompt and all new tokens.
        lower: Type that matrices are multiplied in and the cache is kept in; None for that of the weights.
        recording: Keeps what products give; None for none.
    """

    def __init__(
        self,
        plan: Plan,
        rows: int,
        length: int,
        lower: torch.dtype | None = None,
        recording: Recording | None = None,
    ):
        weight = next(plan.embed.parameters())
        self.device, self.dtype = weight.device, lower or weight.dtype
        self._plan, self._length, self._recording = plan, length, recording

        def made(name: Name, modules: tuple[nn.Module, ...], dtype: torch.dtype = self.dtype) -> Function:
            found = product(modules, rows, dtype)
            return found if recording is None else recording.watch(name, found)

        self._layers = [_Layer(number, block, plan, made) for number, block in enumerate(plan.blocks)]
        self._norm = norm(plan.norm)
        self._head = made(HEAD, (plan.head,), torch.float32)  # as the trainer's, whatever the layers are in
        places, like = torch.arange(length, device=self.device), torch.zeros(1, dtype=weight.dtype, device=self.device)
        both = [rotation(like, places[None]) for rotation in plan.rotations]
        self._turns = [signed(cos[0], sin[0], plan.neighbours) for cos, sin in both]  # [S, R] each

    def prefill(
        self, ids: torch.Tensor, visible: torch.Tensor, known: Sequence[Known | None] = ()
    ) -> tuple[torch.Tensor, Cache]:
        """Read prompts that are padded on the left, or what follows what is known of them.

        Args:
            ids: [B, P] int64.
            visible: [B, P] bool, False on padding; the last column is never padding.
            known: What was read of each row before these ids, in a model whose layers have no window; () for nothing.

        Returns:
            Logits of the next token [B, V] float32, and the cache.
        """
        rows, width = ids.shape
        before = max((len(one) for one in known if one is not None), default=0)
        shape = (len(self._layers), rows, self._plan.kv_heads, self._length, self._plan.head_dim)
        whole = torch.ones(rows, self._length, dtype=torch.bool, device=self.device)
        whole[:, :before], whole[:, before : before + width] = False, visible
        # Zeros: what is masked is still multiplied, and 0 times whatever lies in fresh memory may be no number.
        keys, values = (torch.zeros(shape, dtype=self.dtype, device=self.device) for _ in range(2))
        lengths = torch.zeros(rows, dtype=torch.long)
        for row, one in enumerate(known):
            if one is not None:
                lengths[row] = len(one)
                there = slice(before - len(one), before)
                keys[:, row, :, there], values[:, row, :, there], whole[row, there] = one.keys, one.values, True
        lengths = lengths.to(self.device)
        cache = Cache(
            keys=keys,
            values=values,
            visible=None if bool(whole.all()) else whole,
            used=before,
            places=lengths + visible.sum(1),
            shares=self._plan.windowless,
        )
        places = lengths[:, None] + (visible.cumsum(1) - 1).clamp(min=0)
        hidden = self._through(ids, places, cache, _prompt_masks(whole[:, : before + width], width))
        return self._logits(hidden[:, -1]), cache

    def step(self, tokens: torch.Tensor, cache: Cache) -> torch.Tensor:
        """Append one token to every row.

        Args:
            tokens: [B] int64.
            cache: Moves on by one column.

        Returns:
            Logits of the next token [B, V] float32.
        """
        mask = None
        if cache.visible is not None:
            mask = torch.zeros(len(tokens), cache.used + 1, dtype=self.dtype, device=self.device)
            mask = mask.masked_fill(~cache.visible[:, : cache.used + 1], -torch.inf)[:, None, None]  # [B, 1, 1, S]
        hidden = self._through(tokens[:, None], cache.places[:, None], cache, lambda window: mask)
        cache.places = cache.places + 1
        return self._logits(hidden[:, -1])

    def step_at(
        self, tokens: torch.Tensor, places: torch.Tensor, column: torch.Tensor, visible: torch.Tensor, cache: Cache
    ) -> torch.Tensor:
        """Append one token to every row, with all that changes in tensors, so that a CUDA graph can hold the step.

        Args:
            tokens: [B] int64.
            places: [B] int64, their positions.
            column: [1] int64, where the token goes in the cache.
            visible: [B, S] bool, this column included.
            cache: Its keys and values are written; nothing else is used or changed.

        Returns:
            Logits of the next token [B, V] float32.
        """
        numbers = torch.arange(visible.shape[1], device=self.device)

        def mask(window: int | None) -> torch.Tensor:
            seen = visible if window is None else visible & (numbers > column - window)
            open_ = torch.zeros(seen.shape, dtype=self.dtype, device=self.device)
            return open_.masked_fill(~seen, -torch.inf)[:, None, None]  # [B, 1, 1, S]

        return self._logits(self._layers_of(tokens[:, None], places[:, None], cache, column, mask)[:, -1])

    def _through(
        self,
        ids: torch.Tensor,
        places: torch.Tensor,
        cache: Cache,
        masks: Callable[[int | None], torch.Tensor | None],
    ) -> torch.Tensor:
        hidden = self._layers_of(ids, places, cache, cache.used, masks)
        cache.used += ids.shape[1]
        return hidden

    def _layers_of(
        self,
        ids: torch.Tensor,
        places: torch.Tensor,
        cache: Cache,
        used: int | torch.Tensor,
        masks: Callable[[int | None], torch.Tensor | None],
    ) -> torch.Tensor:
        if self._recording is not None:
            self._recording.next_pass()
        rows, width = ids.shape
        x: torch.Tensor = self._plan.embed(ids).flatten(0, 1)  # [B * T, H]
        if self._plan.places is not None:
            x = x + self._plan.places(places).flatten(0, 1)
        if self._plan.scale_embed != 1.0:
            x = x * self._plan.scale_embed
        at = rows * width, 1, -1
        turns = [(cos[places].view(at), sin[places].view(at)) for cos, sin in self._turns]
        for number, layer in enumerate(self._layers):
            x = layer(x, turns, cache.keys[number], cache.values[number], used, masks, cache.prompts)
        return x.view(rows, width, -1)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = self._norm(hidden.contiguous()).float()
        if self._plan.scale_logits != 1.0:
            hidden = hidden * self._plan.scale_logits
        with without_autocast(self.device):
            logits: torch.Tensor = self._head(hidden)
        return logits


class _Layer:
    def __init__(self, number: int, block: Block, plan: Plan, made: Callable[[Name, tuple[nn.Module, ...]], Function]):
        self._number, self._plan, self._window = number, plan, block.window
        self._norm_attention = block.norm_attention and norm(block.norm_attention)
        self._norm_mlp = block.norm_mlp and norm(block.norm_mlp)
        self._after_attention = added(block.norm_after_attention, plan.scale_added)
        self._after_mlp = added(block.norm_after_mlp, plan.scale_added)
        self._rotation = block.rotation
        self._qkv, self._out = made((number, "qkv"), block.qkv), made((number, "out"), (block.out,))
        self._q_norm = block.q_norm and head_norm(block.q_norm, block.heads_at_once)
        self._k_norm = block.k_norm and head_norm(block.k_norm, block.heads_at_once)
        self._mlp_in = made((number, "mlp_in"), block.mlp_in)
        self._mlp_out = made((number, "mlp_out"), (block.mlp_out,))

    def __call__(
        self,
        x: torch.Tensor,
        turns: list[Turns],
        keys: torch.Tensor,
        values: torch.Tensor,
        used: int | torch.Tensor,
        masks: Callable[[int | None], torch.Tensor | None],
        prompts: Prompts | None,
    ) -> torch.Tensor:
        """Return the output [B * T, H]; keys and values [B, kv_heads, S, head_dim] get T columns at ``used``."""
        inner = x if self._norm_attention is None else self._norm_attention(x)
        half = x + self._after_attention(self._out(self._attend(inner, turns, keys, values, used, masks, prompts)))
        x = x if self._plan.parallel else half
        inner = self._mlp_in(x if self._norm_mlp is None else self._norm_mlp(x))
        if self._plan.gated:
            gate, up = inner.chunk(2, dim=-1)
            inner = self._plan.activation(gate) * up
        else:
            inner = self._plan.activation(inner)
        return half + self._after_mlp(self._mlp_out(inner))

    def _attend(
        self,
        x: torch.Tensor,
        turns: list[Turns],
        keys: torch.Tensor,
        values: torch.Tensor,
        used: int | torch.Tensor,
        masks: Callable[[int | None], torch.Tensor | None],
        prompts: Prompts | None,
    ) -> torch.Tensor:
        heads, kv_heads, width = self._plan.heads, self._plan.kv_heads, self._plan.head_dim
        rows, length = len(keys), len(x) // len(keys)
        joined = self._qkv(x).view(rows * length, heads + 2 * kv_heads, width)
        if self._plan.by_head:
            joined = in_threes(joined)
        qk, v = joined[:, : heads + kv_heads], joined[:, heads + kv_heads :]
        if self._q_norm is not None and self._k_norm is not None:
            qk = torch.cat([self._q_norm(qk[:, :heads]), self._k_norm(qk[:, heads:])], dim=1)
        if self._rotation is not None:
            qk = turned(qk, turns[self._rotation], self._plan.neighbours)
        split = qk.view(rows, length, heads + kv_heads, width)
        queries = split[:, :, :heads]
        if self._plan.scale_queries != 1.0:
            queries = queries * self._plan.scale_queries
        new = split[:, :, heads:].transpose(1, 2), v.view(rows, length, kv_heads, width).transpose(1, 2)
        mask = masks(self._window)
        start, end = _append(keys, values, new, used)
        if length > 1:
            return self._attend_prompts(queries, keys[:, :, :end], values[:, :, :end], mask)
        if self._window is not None and isinstance(used, int):
            start = max(0, end - self._window)
            mask = None if mask is None else mask[..., start:]
        # The heads that share keys stand beside each other, as if they were positions.
        q = queries[:, 0].reshape(rows, kv_heads, heads // kv_heads, width).to(keys.dtype)
        if prompts is not None:
            found = prompts.attend(self._number, q, keys[:, :, :end], values[:, :, :end])
        else:
            found = F.scaled_dot_product_attention(q, keys[:, :, start:end], values[:, :, start:end], mask)
        return found.reshape(rows, heads * width)

    def _attend_prompts(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Return [B * T, heads * head_dim] for queries [B, T, heads, head_dim] that stand in the last T columns."""
        shared, on_cpu = self._plan.heads // self._plan.kv_heads, k.device.type == "cpu"
        if shared > 1 and not on_cpu:
            k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
        found = F.scaled_dot_product_attention(q.transpose(1, 2).to(k.dtype), k, v, mask, enable_gqa=on_cpu)
        return found.transpose(1, 2).reshape(len(q) * q.shape[1], -1)


def _append(
    keys: torch.Tensor, values: torch.Tensor, new: tuple[torch.Tensor, torch.Tensor], used: int | torch.Tensor
) -> tuple[int, int]:
    """Write new columns [B, kv_heads, T, head_dim] and return the columns to attend to."""
    if isinstance(used, torch.Tensor):  # a number on the device, as a captured graph needs: all columns, by the mask
        keys.index_copy_(2, used, new[0].to(keys.dtype))
        values.index_copy_(2, used, new[1].to(keys.dtype))
        return 0, keys.shape[2]
    end = used + new[0].shape[2]
    keys[:, :, used:end], values[:, :, used:end] = new
    return 0, end


def _prompt_masks(visible: torch.Tensor, width: int) -> Callable[[int | None], torch.Tensor]:
    """Return the function from a window to the mask [B, 1, width, S] of the last ``width`` of S columns.

    Padding sees itself, lest it become NaN.
    """
    place = torch.arange(visible.shape[1], device=visible.device)
    back = place[-width:, None] - place[None]  # [width, S], how far a key lies behind the query
    known: dict[int | None, torch.Tensor] = {}

    def mask(window: int | None) -> torch.Tensor:
        if window not in known:
            reached = (back >= 0) & (back < (window or len(place)))
            known[window] = (reached[None] & visible[:, None] | (back == 0)[None])[:, None]
        return known[window]

    return mask


@torch.no_grad()
@full_float32()
def checked_plan(model: Any) -> Plan | None:
    """Return the plan of a model if decoding by it gives transformers' own log-probs, else None.

    Args:
        model: A transformers causal model, perhaps under a LoRA adapter.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    plan = plan_of(inner)
    if plan is None:
        return None
    vocabulary = inner.config.get_text_config().vocab_size
    ids = (torch.arange(2 * 9, device=inner.device).view(2, 9) * 7919) % vocabulary
    visible = torch.ones_like(ids, dtype=torch.bool)
    visible[0, :3] = False
    decoder = Decoder(plan, 2, 10)
    first, cache = decoder.prefill(ids, visible)
    found = torch.stack([first, decoder.step(ids[:, 0], cache)], dim=1)
    whole = torch.cat([ids, ids[:, :1]], dim=1)
    seen = torch.cat([visible, visible[:, 1:2] | True], dim=1)
    places = (seen.long().cumsum(1) - 1).clamp(min=0)
    expected = inner(input_ids=whole, attention_mask=seen.long(), position_ids=places).logits[:, -2:].float()
    return plan if agree(found, expected, decoder.dtype)[0] else None
