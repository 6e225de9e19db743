"""Hidden states of packed rows, for scoring and training: the layers of a plan, through autograd.

Transformers' forward wants padded rows and reads a prompt again for every completion of it. Its modules are used here
as they are, adapters included; only what lies between them is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from steadyrl.backends.torch.adapter import added_to
from steadyrl.backends.torch.arithmetic import full_float32
from steadyrl.backends.torch.packed import Packed, Segments
from steadyrl.backends.torch.plan import Block, Plan, in_threes
from steadyrl.backends.torch.products import added, head_norm, norm, without_autocast
from steadyrl.backends.torch.recording import Recorded
from steadyrl.backends.torch.rotation import Turns, signed, turned

# (name, linear modules, their input [K, in]) -> their outputs [K, out].
Multiply = Callable[[str, Sequence[nn.Module], torch.Tensor], Sequence[torch.Tensor]]

# Relative to the largest number: hidden states further from those of transformers' forward are wrong, not rounded.
PARITY = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 2e-2}


def hidden_states(
    plan: Plan, packed: Packed, recompute: bool = False, recorded: Recorded | None = None
) -> torch.Tensor:
    """Return the hidden states [N, H] from which the completion tokens were drawn, scaled as logits are.

    Args:
        plan: Of the model.
        packed: K tokens.
        recompute: Keep only each layer's input for the way back.
        recorded: What the sampler multiplied, in place of the products.
    """
    x: torch.Tensor = plan.embed(packed.ids)  # [K, H]
    if plan.places is not None:
        x = x + plan.places(packed.places)
    if plan.scale_embed != 1.0:
        x = x * plan.scale_embed
    both = [rotation(x, packed.places[None]) for rotation in plan.rotations]
    turns = [signed(cos[0, :, None], sin[0, :, None], plan.neighbours) for cos, sin in both]  # [K, 1, R] each
    masks = _Masks(packed)
    for number, block in enumerate(plan.blocks):
        through = block.through or layer
        if recorded is not None:
            x = layer(plan, block, x, turns, packed, masks, partial(recorded.multiply, number))
        elif recompute and torch.is_grad_enabled():
            x = checkpoint(through, plan, block, x, turns, packed, masks, use_reentrant=False)
        else:
            x = through(plan, block, x, turns, packed, masks)
    # Indexing adds the gradients of a token that is taken twice in any order on several threads; index_select in one.
    hidden = norm(plan.norm)(x.index_select(0, packed.chosen))
    return hidden if plan.scale_logits == 1.0 else hidden * plan.scale_logits


class _Masks:
    """What tokens may attend to, made once for all layers that have the same window."""

    def __init__(self, packed: Packed):
        self._packed = packed
        self._known: dict[tuple[str, int | None], torch.Tensor] = {}

    def of_heads(self, window: int | None, dtype: torch.dtype) -> torch.Tensor | None:
        """Return [W, W], or None where nothing but the order of the tokens says what is seen."""
        width = self._packed.heads.width
        if window is None or window >= width:
            return None
        if ("heads", window) not in self._known:
            place = torch.arange(width, device=self._packed.ids.device)
            back = place[:, None] - place[None]
            self._known["heads", window] = _closed((back >= 0) & (back < window), dtype)
        return self._known["heads", window]

    def of_tails(self, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        """Return [R, 1, Wt, Wh + Wt]: prompts beside the tails that continue them."""
        if ("tails", window) not in self._known:
            heads, tails, starts = self._packed.heads, self._packed.tails, self._packed.starts
            assert tails is not None, "asked only where prompts are shared"
            column = torch.arange(heads.width, device=starts.device)
            row = torch.arange(tails.width, device=starts.device)
            there = (column < starts[:, None])[:, None].expand(-1, tails.width, -1)  # [R, Wt, Wh]
            back = row[:, None] - row[None]  # [Wt, Wt]
            own = back >= 0
            if window is not None:
                there = there & (starts[:, None, None] + row[:, None] - column < window)
                own = own & (back < window)
            seen = torch.cat([there, own.expand(len(starts), -1, -1)], dim=2)
            self._known["tails", window] = _closed(seen, dtype)[:, None]
        return self._known["tails", window]


def _closed(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return 0 where something is seen and -inf elsewhere: what attention would make of a mask in every layer anew."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)


def _multiplied(name: str, modules: Sequence[nn.Module], x: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return the outputs of linear modules."""
    return [_linear(module, x) for module in modules]


def layer(
    plan: Plan,
    block: Block,
    x: torch.Tensor,
    turns: list[Turns],
    packed: Packed,
    masks: _Masks,
    multiply: Multiply = _multiplied,
) -> torch.Tensor:
    """Return a layer's output [K, H]; ``multiply`` gives the outputs of its linear modules."""
    inner = x if block.norm_attention is None else norm(block.norm_attention)(x)
    q, k, v = _split(plan, multiply("qkv", block.qkv, inner))
    (out,) = multiply("out", (block.out,), _attend(plan, block, (q, k, v), turns, packed, masks))
    half = x + added(block.norm_after_attention, plan.scale_added)(out)
    x = x if plan.parallel else half
    inner = x if block.norm_mlp is None else norm(block.norm_mlp)(x)
    first, *second = multiply("mlp_in", block.mlp_in, inner)
    if plan.gated and not second:
        first, *second = first.chunk(2, dim=-1)
    inner = plan.activation(first)
    (out,) = multiply("mlp_out", (block.mlp_out,), inner * second[0] if second else inner)
    return half + added(block.norm_after_mlp, plan.scale_added)(out)


def _linear(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return a linear module's output; a plain adapter's second product adds to it, without passes of their own."""
    adapter = added_to(module)
    if adapter is not None:
        low = F.linear(x, adapter.down.to(x.dtype))  # peft would copy x for every module that reads it
        found: torch.Tensor = adapter.base(x)
        if found.dtype == low.dtype:
            return found.addmm_(low, adapter.up.t().to(low.dtype), alpha=adapter.scale)
    applied: torch.Tensor = module(x)
    return applied


def _attend(
    plan: Plan, block: Block, projected: tuple[torch.Tensor, ...], turns: list[Turns], packed: Packed, masks: _Masks
) -> torch.Tensor:
    """Return what the heads found [K, heads * head_dim]."""
    q, k, v = projected
    if block.q_norm is not None and block.k_norm is not None:
        q, k = head_norm(block.q_norm, block.heads_at_once)(q), head_norm(block.k_norm, block.heads_at_once)(k)
    if block.rotation is not None:
        q, k = (turned(t, turns[block.rotation], plan.neighbours) for t in (q, k))
    if plan.scale_queries != 1.0:
        q = q * plan.scale_queries
    q, k = q.to(v.dtype), k.to(v.dtype)
    heads, tails, window = packed.heads, packed.tails, block.window
    count = len(heads.back)
    hq, hk, hv = (_lay(t[:count], heads) for t in (q, k, v))
    found = _flat(_attention(plan, hq, hk, hv, masks.of_heads(window, v.dtype)), heads)
    if tails is None:
        return found
    tq, tk, tv = (_lay(t[count:], tails) for t in (q, k, v))
    tk = torch.cat([hk.index_select(0, packed.prompt_of), tk], dim=2)
    tv = torch.cat([hv.index_select(0, packed.prompt_of), tv], dim=2)
    return torch.cat([found, _flat(_attention(plan, tq, tk, tv, masks.of_tails(window, v.dtype)), tails)])


def _split(plan: Plan, projected: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Return queries [K, heads, head_dim], keys and values [K, kv_heads, head_dim] of three modules, or of one."""
    apart = [outputs.view(len(outputs), -1, plan.head_dim) for outputs in projected]
    if len(apart) == 1:
        joined = in_threes(apart[0]) if plan.by_head else apart[0]
        return torch.split(joined, [plan.heads, plan.kv_heads, plan.kv_heads], dim=1)
    return tuple(apart)


def _attention(
    plan: Plan, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """Return [S, heads, W, head_dim]; causal where there is no mask."""
    kept_in, shared = v.dtype, plan.heads != plan.kv_heads
    on_cpu = v.device.type == "cpu"
    if on_cpu:  # forward and back it takes nearly three times as long there in lower precision
        q, k, v = q.float(), k.float(), v.float()
        mask = None if mask is None else mask.float()
    elif shared:  # the kernels of GPUs that take a mask want as many keys as queries
        k, v = (t.repeat_interleave(plan.heads // plan.kv_heads, dim=1) for t in (k, v))
    with without_autocast(v.device):
        found = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, enable_gqa=on_cpu and shared)
        return found.to(kept_in)


def _lay(x: torch.Tensor, segments: Segments) -> torch.Tensor:
    """Lay packed [n, heads, D] into padded rows [S, heads, W, D]."""
    if segments.whole:
        laid = x
    elif segments.lay is not None:
        laid = x.index_select(0, segments.lay)
    else:
        laid = x.new_zeros(segments.rows * segments.width, *x.shape[1:]).index_copy(0, segments.back, x)
    return laid.view(segments.rows, segments.width, *x.shape[1:]).transpose(1, 2)


def _flat(x: torch.Tensor, segments: Segments) -> torch.Tensor:
    """Take the tokens of padded rows [S, heads, W, D] back into a run [n, heads * D]."""
    flat = x.transpose(1, 2).flatten(0, 1)
    return (flat if segments.whole else flat.index_select(0, segments.back)).flatten(1)


@torch.no_grad()
@full_float32()
def fits(plan: Plan | None, body: nn.Module) -> bool:
    """Return True if the plan gives the hidden states of transformers' own forward."""
    if plan is None:
        return False
    device = next(body.parameters()).device
    vocabulary = next(plan.embed.parameters()).shape[0]
    ids = (torch.arange(9, device=device) * 7919) % vocabulary
    everything = torch.arange(9, device=device)
    nothing = torch.zeros(0, device=device)
    heads = Segments(1, 9, everything)
    packed = Packed(ids, everything, np.arange(9), everything, heads, None, nothing, nothing)
    expected = body(input_ids=ids[None], use_cache=False).last_hidden_state[0].float() * plan.scale_logits
    far = (hidden_states(plan, packed).float() - expected).abs().max() / expected.abs().max()
    return bool(far <= PARITY.get(next(body.parameters()).dtype, 0.0))
