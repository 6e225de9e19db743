"""Hidden states of packed rows, for scoring and training: the layers of a plan, through autograd.

Transformers' forward wants padded rows and reads a prompt again for every completion of it. Its modules are used here
as they are, adapters included; only what lies between them is ours.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from steadyrl.backends.torch.decoder import norm
from steadyrl.backends.torch.families import Block, Plan
from steadyrl.backends.torch.packed import Packed, Segments

# Relative to the largest number: hidden states further from those of transformers' forward are wrong, not rounded.
PARITY = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def hidden_states(plan: Plan, packed: Packed, recompute: bool = False) -> torch.Tensor:
    """Return the hidden states [N, H] from which the completion tokens were drawn.

    Args:
        plan: Of the model.
        packed: K tokens.
        recompute: Keep only each layer's input for the way back.
    """
    x: torch.Tensor = plan.embed(packed.ids)  # [K, H]
    if plan.places is not None:
        x = x + plan.places(packed.places)
    turns = None
    if plan.rotary is not None:
        cos, sin = plan.rotary(x, packed.places[None])
        half = plan.head_dim // 2
        # x * cos + rotate_half(x) * sin, with the minus sign of rotate_half put into the sines.
        turns = cos[0, :, None], torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1)[:, None]  # [K, 1, D]
    for block in plan.blocks:
        if recompute and torch.is_grad_enabled():
            x = checkpoint(_layer, plan, block, x, turns, packed, use_reentrant=False)
        else:
            x = _layer(plan, block, x, turns, packed)
    return norm(plan.norm)(x[packed.chosen])


def _layer(plan: Plan, block: Block, x: torch.Tensor, turns: Any, packed: Packed) -> torch.Tensor:
    """Return a layer's output [K, H]."""
    x = x + block.out(_attend(plan, block, norm(block.norm_attention)(x), turns, packed))
    inner = norm(block.norm_mlp)(x)
    if len(block.mlp_in) == 2:
        gate, up = block.mlp_in
        inner = plan.activation(gate(inner)) * up(inner)
    else:
        inner = plan.activation(block.mlp_in[0](inner))
    found: torch.Tensor = x + block.mlp_out(inner)
    return found


def _attend(plan: Plan, block: Block, x: torch.Tensor, turns: Any, packed: Packed) -> torch.Tensor:
    """Return what the heads found [K, heads * head_dim]."""
    q, k, v = _projected(plan, block, x)
    if block.q_norm is not None and block.k_norm is not None:
        q, k = norm(block.q_norm)(q), norm(block.k_norm)(k)
    if turns is not None:
        q, k = (torch.addcmul(t * turns[0], t.roll(plan.head_dim // 2, -1), turns[1]) for t in (q, k))
    q, k = q.to(v.dtype), k.to(v.dtype)
    heads = packed.heads
    hq, hk, hv = (_lay(t, heads) for t in (q, k, v))
    found = _flat(_attention(plan, hq, hk, hv, _window_mask(heads, block.window)), heads)
    if packed.tails is None:
        return found
    tails, mask = packed.tails, packed.seen
    if block.window is not None:
        mask = mask & (packed.back_to < block.window)
    tq, tk, tv = (_lay(t, tails) for t in (q, k, v))
    tk = torch.cat([hk[packed.prompt_of], tk], dim=2)
    tv = torch.cat([hv[packed.prompt_of], tv], dim=2)
    return torch.cat([found, _flat(_attention(plan, tq, tk, tv, mask[:, None]), tails)])


def _projected(plan: Plan, block: Block, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return queries [K, heads, head_dim], keys and values [K, kv_heads, head_dim]."""
    width = plan.head_dim
    if len(block.qkv) == 3:
        q, k, v = (module(x).view(len(x), -1, width) for module in block.qkv)
        return q, k, v
    joined = block.qkv[0](x).view(len(x), -1, width)
    q, k, v = joined.split([plan.heads, plan.kv_heads, plan.kv_heads], dim=1)
    return q, k, v


def _attention(
    plan: Plan, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """Return [S, heads, W, head_dim]; causal where there is no mask."""
    if plan.heads != plan.kv_heads:
        k, v = (t.repeat_interleave(plan.heads // plan.kv_heads, dim=1) for t in (k, v))
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)


def _window_mask(segments: Segments, window: int | None) -> torch.Tensor | None:
    width = segments.lay.shape[1]
    if window is None or window >= width:
        return None
    place = torch.arange(width, device=segments.lay.device)
    back = place[:, None] - place[None]
    return (back >= 0) & (back < window)


def _lay(x: torch.Tensor, segments: Segments) -> torch.Tensor:
    """Lay packed [K, heads, D] into padded rows [S, heads, W, D]."""
    return x[segments.lay].transpose(1, 2)


def _flat(x: torch.Tensor, segments: Segments) -> torch.Tensor:
    """Take the tokens of padded rows [S, heads, W, D] back into a run [n, heads * D]."""
    return x.transpose(1, 2).flatten(0, 1)[segments.back].flatten(1)


@torch.no_grad()
def fits(plan: Plan | None, body: nn.Module) -> bool:
    """Return True if the plan gives the hidden states of transformers' own forward."""
    if plan is None:
        return False
    device = next(body.parameters()).device
    vocabulary = next(plan.embed.parameters()).shape[0]
    ids = (torch.arange(9, device=device) * 7919) % vocabulary
    everything = torch.arange(9, device=device)
    whole = Segments(everything[None], everything)
    nothing = torch.zeros(0, device=device)
    packed = Packed(ids, everything, everything, whole, None, nothing, nothing, nothing)
    expected = body(input_ids=ids[None], use_cache=False).last_hidden_state[0].float()
    far = (hidden_states(plan, packed).float() - expected).abs().max() / expected.abs().max()
    return bool(far <= PARITY.get(next(body.parameters()).dtype, 0.0))
