"""What a LoRA adapter adds to a linear module, told apart from the variants that compute something else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Added:
    """What one plain adapter adds to x @ base.weight.T: scale * x @ down.T @ up.T."""

    base: nn.Module
    down: torch.Tensor  # [rank, in]
    up: torch.Tensor  # [out, rank]
    scale: float  # alpha over the rank


def added_to(module: nn.Module) -> Added | None:
    """Return what the adapter around a module adds, or None where there is none, or not a single plain one."""
    name = f"{type(module).__module__}.{type(module).__name__}"
    layer: Any = module
    if name != "peft.tuners.lora.layer.Linear" or layer.disable_adapters or layer.merged:
        return None
    if len(layer.active_adapters) != 1:
        return None
    adapter = layer.active_adapters[0]
    down, up = layer.lora_A[adapter], layer.lora_B[adapter]
    plain = adapter not in layer.lora_variant and type(layer.lora_dropout[adapter]) is nn.Identity
    if not plain or up.bias is not None:
        return None
    return Added(layer.base_layer, down.weight, up.weight, layer.scaling[adapter])
