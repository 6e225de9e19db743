"""Model families that the fast decoder knows: where their weights are and how a layer is put together.

Nothing is copied here: a ``Plan`` points at the modules of the model that trains. Any other family is decoded by
transformers' own forward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Function = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Block:
    """One layer: norm, attention, norm, feed-forward, each half added to its input.

    Attributes:
        norm_attention, norm_mlp: The modules before the halves.
        qkv: Linear modules whose joined outputs are queries, keys and values.
        q_norm, k_norm: Norms of each head, or None.
        out: Back from the heads.
        mlp_in: (gate, up), or one module.
        mlp_out: Back from the feed-forward.
        window: Positions that attention reaches back, or None for all.
        through: Computes the layer as ``trunk.layer`` does, and gathers its weights first; None where they are here.
    """

    norm_attention: nn.Module
    qkv: tuple[nn.Module, ...]
    q_norm: nn.Module | None
    k_norm: nn.Module | None
    out: nn.Module
    norm_mlp: nn.Module
    mlp_in: tuple[nn.Module, ...]
    mlp_out: nn.Module
    window: int | None
    through: nn.Module | None = None


@dataclass(frozen=True)
class Plan:
    """A whole model.

    Attributes:
        embed: Token embedding.
        places: Embedding of positions, or None where positions are rotations.
        rotary: Module that gives (cos, sin) for positions, or None.
        blocks: The layers.
        norm: After the last layer.
        head: Hidden states to logits.
        heads, kv_heads, head_dim: Of attention.
        activation: Of the feed-forward.
    """

    embed: nn.Module
    places: nn.Embedding | None
    rotary: nn.Module | None
    blocks: tuple[Block, ...]
    norm: nn.Module
    head: nn.Module
    heads: int
    kv_heads: int
    head_dim: int
    activation: Function

    @property
    def windowless(self) -> bool:
        """Return whether attention reaches back to the first token in every layer."""
        return all(block.window is None for block in self.blocks)


def plan_of(model: Any) -> Plan | None:
    """Return the plan of a transformers causal model, or None for a family that is not known.

    Args:
        model: The bare model, without an adapter's wrapper; its layers may hold LoRA modules.
    """
    family = _FAMILIES.get(model.config.model_type)
    if family is None:
        return None
    rope = getattr(model.config, "rope_parameters", None) or {}
    if rope.get("rope_type") in {"dynamic", "longrope"}:  # their rotation depends on the longest row of a batch
        return None
    return family(model)


def _llama_like(model: Any) -> Plan:
    config, body = model.config, model.model
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Plan(
        embed=body.embed_tokens,
        places=None,
        rotary=body.rotary_emb,
        blocks=tuple(_llama_block(layer) for layer in body.layers),
        norm=body.norm,
        head=model.lm_head,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        activation=_ACTIVATIONS[getattr(config, "hidden_activation", None) or config.hidden_act],
    )


def _llama_block(layer: Any) -> Block:
    attention = layer.self_attn
    return Block(
        norm_attention=layer.input_layernorm,
        qkv=(attention.q_proj, attention.k_proj, attention.v_proj),
        q_norm=getattr(attention, "q_norm", None),
        k_norm=getattr(attention, "k_norm", None),
        out=attention.o_proj,
        norm_mlp=layer.post_attention_layernorm,
        mlp_in=(layer.mlp.gate_proj, layer.mlp.up_proj),
        mlp_out=layer.mlp.down_proj,
        window=getattr(attention, "sliding_window", None),
    )


def _mistral(model: Any) -> Plan:
    plan = _llama_like(model)
    window = model.config.sliding_window
    return Plan(**{**vars(plan), "blocks": tuple(Block(**{**vars(b), "window": window}) for b in plan.blocks)})


def _gpt2(model: Any) -> Plan:
    config, body = model.config, model.transformer
    blocks = tuple(
        Block(
            norm_attention=layer.ln_1,
            qkv=(layer.attn.c_attn,),
            q_norm=None,
            k_norm=None,
            out=layer.attn.c_proj,
            norm_mlp=layer.ln_2,
            mlp_in=(layer.mlp.c_fc,),
            mlp_out=layer.mlp.c_proj,
            window=None,
        )
        for layer in body.h
    )
    return Plan(
        embed=body.wte,
        places=body.wpe,
        rotary=None,
        blocks=blocks,
        norm=body.ln_f,
        head=model.lm_head,
        heads=config.n_head,
        kv_heads=config.n_head,
        head_dim=config.n_embd // config.n_head,
        activation=_ACTIVATIONS[config.activation_function],
    )


_FAMILIES: dict[str, Callable[[Any], Plan]] = {
    "llama": _llama_like,
    "mistral": _mistral,
    "qwen2": _llama_like,
    "qwen3": _llama_like,
    "gemma": _llama_like,
    "gpt2": _gpt2,
}
_ACTIVATIONS: dict[str, Function] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}
