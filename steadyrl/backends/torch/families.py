"""The plans of the model families that the fast decoder knows; any other is decoded by transformers' own forward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from torch import nn
from torch.nn import functional as F
from transformers.activations import ACT2FN

from steadyrl.backends.torch.plan import Block, Function, Plan


def plan_of(model: Any) -> Plan | None:
    """Return the plan of a transformers causal model, or None for a family that is not known.

    Args:
        model: The bare model, without an adapter's wrapper; its layers may hold LoRA modules.
    """
    config = model.config.get_text_config()
    family = _FAMILIES.get(config.model_type)
    if family is None or getattr(config, "final_logit_softcapping", None):
        return None
    if config is not model.config:  # images are read too: what reads text is of a family's shape
        model = SimpleNamespace(config=config, model=model.get_decoder(), lm_head=model.get_output_embeddings())
    plan = family(model)
    return plan and replace(plan, reach=_reach(config))


def _reach(config: Any) -> int | None:
    """Return the tokens of a row beyond which positions count otherwise, or None where they never do."""
    ropes = getattr(config, "rope_parameters", None) or {}
    reaches: list[int] = []
    for rope in (ropes, *ropes.values()):  # one of all layers, or one of each kind of layer
        if not isinstance(rope, dict):
            continue
        if rope.get("rope_type") == "dynamic":  # beyond it the rotation depends on the longest row of a batch
            reaches.append(config.max_position_embeddings)
        elif rope.get("rope_type") == "longrope" or rope.get("llama_4_scaling_beta"):
            reaches.append(rope.get("original_max_position_embeddings") or config.original_max_position_embeddings)
    return min(reaches, default=None)


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
        activation=_activation(getattr(config, "hidden_activation", None) or config.hidden_act),
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
    if hasattr(mlp, "c_fc"):
        return (mlp.c_fc,)
    return (mlp.gate_proj, mlp.up_proj) if hasattr(mlp, "gate_proj") else (mlp.up_proj,)


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


def _neighbours(model: Any) -> Plan:
    return replace(_llama_like(model), neighbours=True)


def _olmo(model: Any) -> Plan | None:
    return None if model.config.clip_qkv is not None else _llama_like(model)


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


def _ungated(model: Any) -> Plan:
    return replace(_llama_like(model), gated=False)


def _stablelm(model: Any) -> Plan | None:
    """Its parallel layers have one norm for both halves."""
    if model.config.qk_layernorm:  # another norm for every head
        return None

    def change(block: Block, layer: Any) -> Block:
        return replace(block, norm_mlp=layer.post_attention_layernorm or layer.input_layernorm)

    return replace(_each(_llama_like(model), change, model), parallel=model.config.use_parallel_residual)


def _phi(model: Any) -> Plan:
    """Parallel layers with one norm for both halves."""
    config, body = model.config, model.model
    blocks = tuple(
        Block(
            norm_attention=layer.input_layernorm,
            qkv=(layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj),
            q_norm=getattr(layer.self_attn, "q_layernorm", None),
            k_norm=getattr(layer.self_attn, "k_layernorm", None),
            out=layer.self_attn.dense,
            norm_mlp=layer.input_layernorm,
            mlp_in=(layer.mlp.fc1,),
            mlp_out=layer.mlp.fc2,
            window=None,
        )
        for layer in body.layers
    )
    return Plan(
        embed=body.embed_tokens,
        places=None,
        rotations=(body.rotary_emb,),
        blocks=blocks,
        norm=body.final_layernorm,
        head=model.lm_head,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.hidden_size // config.num_attention_heads,
        activation=_activation(config.hidden_act),
        gated=False,
        parallel=True,
    )


def _gpt_neox(model: Any) -> Plan:
    config, body = model.config, model.gpt_neox
    blocks = tuple(
        Block(
            norm_attention=layer.input_layernorm,
            qkv=(layer.attention.query_key_value,),
            q_norm=None,
            k_norm=None,
            out=layer.attention.dense,
            norm_mlp=layer.post_attention_layernorm,
            mlp_in=(layer.mlp.dense_h_to_4h,),
            mlp_out=layer.mlp.dense_4h_to_h,
            window=None,
        )
        for layer in body.layers
    )
    return Plan(
        embed=body.embed_in,
        places=None,
        rotations=(body.rotary_emb,),
        blocks=blocks,
        norm=body.final_layer_norm,
        head=model.get_output_embeddings(),
        heads=config.num_attention_heads,
        kv_heads=config.num_attention_heads,
        head_dim=config.hidden_size // config.num_attention_heads,
        activation=_activation(config.hidden_act),
        gated=False,
        parallel=config.use_parallel_residual,
        by_head=True,
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
        activation=_activation(config.activation_function),
        gated=False,
    )


def _activation(name: str) -> Function:
    """Return an activation by transformers' name for it."""
    known: Function = _ACTIVATIONS.get(name) or ACT2FN[name]
    return known


_FAMILIES: dict[str, Callable[[Any], Plan | None]] = {
    "llama": _llama_like,
    "qwen2": _llama_like,
    "qwen3": _llama_like,
    "gemma": _llama_like,
    "ministral": _llama_like,
    "seed_oss": _llama_like,
    "mistral": _one_window,
    "ministral3": _one_window,
    "phi3": _one_window,
    "starcoder2": _starcoder2,
    "smollm3": _smollm3,
    "cwm": _llama_like,
    "internlm3": _llama_like,
    "ernie4_5": _neighbours,
    "glm": _neighbours,
    "helium": _neighbours,
    "granite": _granite,
    "olmo": _olmo,
    "olmo2": _olmo2,
    "olmo3": _olmo3,
    "exaone4": _exaone4,
    "glm4": _glm4,
    "gemma3_text": _gemma3,
    "nemotron": _ungated,
    "arcee": _ungated,
    "jais2": _ungated,
    "stablelm": _stablelm,
    "phi": _phi,
    "gpt_neox": _gpt_neox,
    "gpt2": _gpt2,
}
_ACTIVATIONS: dict[str, Function] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}
