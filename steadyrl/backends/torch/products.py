"""Linear modules and norms as functions of few kernels, for the decoder.

On a CPU the products of a few rows with a large matrix are what takes the time, and a plain linear layer reaches a
third of the machine's rate there. So for the length of one call the weights are laid out once more in the blocked form
of oneDNN, queries, keys and values as one matrix, gate and up as another; the copy is dropped at the end. On other
devices the modules are used as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from steadyrl.backends.torch.adapter import added_to
from steadyrl.backends.torch.device import lays_blocks
from steadyrl.backends.torch.plan import Function

CONV1D = "transformers.pytorch_utils.Conv1D"  # GPT-2's linear modules: weights [in, out]


def product(modules: Sequence[nn.Module], rows: int, dtype: torch.dtype) -> Function:
    """Return a function that applies linear modules to one input and joins their outputs.

    Args:
        modules: nn.Linear, GPT-2's transposed linear, LoRA around either, or anything callable.
        rows: The number of input rows to be quick for.
        dtype: To multiply in.
    """
    pairs = [_weights(module) for module in modules]
    known = [pair for pair in pairs if pair is not None]
    if len(known) < len(pairs):  # quantised, or of a kind that is not known
        return lambda x: torch.cat([module(x) for module in modules], dim=-1)
    weights, bias = [w for w, _ in known], None
    if any(b is not None for _, b in known):
        bias = torch.cat([b if b is not None else w.new_zeros(len(w)) for w, b in known]).to(dtype)
    if lays_blocks(weights[0].device, dtype):
        joined = torch.cat(weights) if len(weights) > 1 else weights[0]
        packed = torch.ops.mkldnn._reorder_linear_weight(joined.to(dtype).contiguous(), rows)
        multiply = torch.ops.mkldnn._linear_pointwise
        return lambda x: multiply(x.to(dtype), packed, bias, "none", [], "")
    if len(weights) == 1 and weights[0].dtype == dtype:
        return lambda x: F.linear(x, weights[0], bias)  # the very weights that train
    joined = torch.cat([weight.to(dtype) for weight in weights])
    return lambda x: F.linear(x.to(dtype), joined, bias)


def _weights(module: nn.Module) -> tuple[torch.Tensor, torch.Tensor | None] | None:
    """Return (weight [out, in], bias [out]) of a linear module, an adapter added in; None for anything else."""
    if type(module) is nn.Linear:
        return module.weight, module.bias
    name = f"{type(module).__module__}.{type(module).__name__}"
    if name == CONV1D:
        whole: Any = module
        return whole.weight.t(), whole.bias
    if name == "peft.tuners.lora.layer.Linear":
        adapted: Any = module
        inner = _weights(adapted.base_layer)
        if inner is None or adapted.disable_adapters or len(adapted.active_adapters) != 1:
            return None
        added = added_to(module)
        if added is not None and type(added.base) is nn.Linear and added.down.dtype == inner[0].dtype:
            return inner[0].clone().addmm_(added.up, added.down, alpha=added.scale), inner[1]  # no autocast in place
        delta = adapted.get_delta_weight(adapted.active_adapters[0])
        if type(adapted.base_layer) is not nn.Linear:
            delta = delta.t()  # get_delta_weight answers in the layout of the layer it adapts
        return inner[0] + delta, inner[1]
    return None


def norm(module: nn.Module) -> Function:
    """Return a norm module as a function of few kernels."""
    whole: Any = module
    name = type(module).__name__
    if isinstance(module, nn.LayerNorm):
        return module
    if name.endswith("RMSNorm"):
        # Gemma's weight is the distance from 1.
        weight = whole.weight + 1.0 if name.startswith("Gemma") else whole.weight
        epsilon = whole.eps if name.startswith("Gemma") else whole.variance_epsilon
        return lambda x: F.rms_norm(x.to(weight.dtype), (x.shape[-1],), weight, epsilon)
    return module


def head_norm(module: nn.Module, at_once: bool) -> Function:
    """Return a norm of heads [K, heads, head_dim] as a function: of each one, or of all of a token together."""
    found = norm(module)
    return (lambda x: found(x.flatten(1)).view(x.shape)) if at_once else found


def added(module: nn.Module | None, scale: float) -> Function:
    """Return what half a layer adds to its input as a function of what it gives: a norm of it, or itself, scaled."""
    if module is None:
        return (lambda y: y) if scale == 1.0 else (lambda y: y * scale)
    found = norm(module)
    return found if scale == 1.0 else (lambda y: found(y) * scale)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which matrices are multiplied in the type they have."""
    return torch.autocast(device.type, enabled=False) if torch.is_autocast_enabled(device.type) else nullcontext()
