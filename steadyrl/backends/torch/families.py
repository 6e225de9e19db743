"""Model families that the fast decoder knows: where their weights are and how a layer is put together.

Nothing is copied here: a ``Plan`` points at the modules of the model that trains. Any other family is decoded by
transformers' own forward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

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
        neighbours: Whether rotations turn neighbouring numbers of a head together; see ``rotation.signed``.
        scale_queries: Beside the usual one over the root of head_dim.
        scale_embed, scale_added, scale_logits: Of embeddings, of what layers add, and of logits.
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
    neighbours: bool = False
    scale_queries: float = 1.0
    scale_embed: float = 1.0
    scale_added: float = 1.0
    scale_logits: float = 1.0

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
    ropes = getattr(model.config, "rope_parameters", None) or {}
    for rope in (ropes, *ropes.values()):  # one of all layers, or one of each kind of layer
        if isinstance(rope, dict) and rope.get("rope_type") in {"dynamic", "longrope"}:
            return None  # their rotation depends on the longest row of a batch
    return family(model)


def _llama_like(model: Any) -> Plan:
    config, body = model.config, model.model
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Plan(
        embed=body.embed_tokens,
        places=None,
        rotations=(body.rotary_emb,),
        blocks=tuple(_llama_block(layer) for layer in body.layers),
        norm=body.norm,
        head=model.lm_head,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        activation=_ACTIVATIONS[getattr(config, "hidden_activation", None) or config.hidden_act],
    )


def _llama_block(layer: Any) -> Block:
    """Return the block of a layer whose modules have the names of Llama's, or of several of them joined."""
    attention, mlp = layer.self_attn, layer.mlp
    joined = hasattr(attention, "qkv_proj")
    return Block(
        norm_attention=getattr(layer, "input_layernorm", None),
        qkv=(attention.qkv_proj,) if joined else (attention.q_proj, attention.k_proj, attention.v_proj),
        q_norm=getattr(attention, "q_norm", None),
        k_norm=getattr(attention, "k_norm", None),
        out=attention.o_proj,
        norm_mlp=layer.post_attention_layernorm,
        mlp_in=(mlp.gate_up_proj,) if hasattr(mlp, "gate_up_proj") else _gate_and_up(mlp),
        mlp_out=mlp.c_proj if hasattr(mlp, "c_proj") else mlp.down_proj,
        window=getattr(attention, "sliding_window", None),
    )


def _gate_and_up(mlp: Any) -> tuple[nn.Module, ...]:
    return (mlp.c_fc,) if hasattr(mlp, "c_fc") else (mlp.gate_proj, mlp.up_proj)


def _one_window(model: Any) -> Plan:
    """Of Llama's shape, with the configuration's window in every layer."""
    plan = _llama_like(model)
    return replace(plan, blocks=tuple(replace(b, window=model.config.sliding_window) for b in plan.blocks))


def _each(plan: Plan, change: Callable[[Block, Any], Block], model: Any) -> Plan:
    """Return the plan with blocks changed by what their layers say."""
    blocks = zip(plan.blocks, model.model.layers, strict=True)
    return replace(plan, blocks=tuple(change(block, layer) for block, layer in blocks))


def _starcoder2(model: Any) -> Plan:
    return replace(_one_window(model), gated=False)


def _smollm3(model: Any) -> Plan:
    """Some layers turn nothing."""
    return _each(
        _llama_like(model),
        lambda block, layer: block if layer.self_attn.use_rope else replace(block, rotation=None),
        model,
    )


def _ernie(model: Any) -> Plan:
    return replace(_llama_like(model), neighbours=True)


def _granite(model: Any) -> Plan:
    """Llama with a multiplier at four places."""
    plan, config = _llama_like(model), model.config
    return replace(
        plan,
        scale_queries=config.attention_multiplier * plan.head_dim**0.5,
        scale_embed=config.embedding_multiplier,
        scale_added=config.residual_multiplier,
        scale_logits=1.0 / config.logits_scaling,
    )


def _norms_after(block: Block, layer: Any) -> Block:
    """Norms stand behind the halves alone."""
    return replace(
        block,
        norm_mlp=None,
        norm_after_attention=layer.post_attention_layernorm,
        norm_after_mlp=layer.post_feedforward_layernorm,
    )


def _olmo2(model: Any) -> Plan:
    return _each(
        _llama_like(model), lambda block, layer: replace(_norms_after(block, layer), heads_at_once=True), model
    )


def _olmo3(model: Any) -> Plan:
    return _rotations_by_kind(_olmo2(model), model)


def _exaone4(model: Any) -> Plan:
    """Layers without a window turn nothing where others have one."""

    def change(block: Block, layer: Any) -> Block:
        attention = layer.self_attn
        window = attention.sliding_window if attention.is_sliding else None
        turning = attention.sliding_window is None or attention.is_sliding
        return replace(_norms_after(block, layer), window=window, rotation=0 if turning else None)

    return _each(_llama_like(model), change, model)


def _glm4(model: Any) -> Plan:
    """Norms before and behind both halves."""

    def change(block: Block, layer: Any) -> Block:
        return replace(
            block, norm_after_attention=layer.post_self_attn_layernorm, norm_after_mlp=layer.post_mlp_layernorm
        )

    return replace(_each(_llama_like(model), change, model), neighbours=True)


def _gemma3(model: Any) -> Plan | None:
    """Norms before and behind both halves."""
    config = model.config
    if config.use_bidirectional_attention or config.attn_logit_softcapping is not None:
        return None

    def change(block: Block, layer: Any) -> Block:
        return replace(
            block,
            norm_mlp=layer.pre_feedforward_layernorm,
            norm_after_attention=layer.post_attention_layernorm,
            norm_after_mlp=layer.post_feedforward_layernorm,
        )

    plan = _rotations_by_kind(_each(_llama_like(model), change, model), model)
    return replace(plan, scale_queries=(plan.head_dim / config.query_pre_attn_scalar) ** 0.5)


def _rotations_by_kind(plan: Plan, model: Any) -> Plan:
    """Layers with and without a window have rotations of their own."""
    kinds = sorted(set(model.config.layer_types))
    of_layers = model.config.layer_types[: len(plan.blocks)]
    return replace(
        plan,
        rotations=tuple(partial(model.model.rotary_emb, layer_type=kind) for kind in kinds),
        blocks=tuple(
            replace(block, rotation=kinds.index(kind)) for block, kind in zip(plan.blocks, of_layers, strict=True)
        ),
    )


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
            rotation=None,
        )
        for layer in body.h
    )
    return Plan(
        embed=body.wte,
        places=body.wpe,
        rotations=(),
        blocks=blocks,
        norm=body.ln_f,
        head=model.lm_head,
        heads=config.n_head,
        kv_heads=config.n_head,
        head_dim=config.n_embd // config.n_head,
        activation=_ACTIVATIONS[config.activation_function],
        gated=False,
    )


_FAMILIES: dict[str, Callable[[Any], Plan | None]] = {
    "llama": _llama_like,
    "qwen2": _llama_like,
    "qwen3": _llama_like,
    "gemma": _llama_like,
    "ministral": _llama_like,
    "seed_oss": _llama_like,
    "mistral": _one_window,
    "phi3": _one_window,
    "starcoder2": _starcoder2,
    "smollm3": _smollm3,
    "ernie4_5": _ernie,
    "granite": _granite,
    "olmo2": _olmo2,
    "olmo3": _olmo3,
    "exaone4": _exaone4,
    "glm4": _glm4,
    "gemma3_text": _gemma3,
    "gpt2": _gpt2,
}
_ACTIVATIONS: dict[str, Function] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}
