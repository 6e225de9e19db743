"""LoRA adapters, kept in memory as mlx-lm keeps them and on disk as PEFT does.

mlx-lm multiplies by ``lora_a`` [in, r] and ``lora_b`` [r, out], PEFT by their transposes ``lora_A`` and ``lora_B``.
Both scale the product by alpha / r.
"""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_unflatten
from mlx_lm.tuner.lora import LoRALinear

from steadyrl.core.errors import ConfigError
from steadyrl.core.sections import ModelSection

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
_PREFIX = "base_model.model."  # what PEFT puts before the model's own names
_LINEAR = (nn.Linear, nn.QuantizedLinear)


def add_lora(net: nn.Module, section: ModelSection, seed: int) -> None:
    """Freeze a model and put a fresh adapter on linear layers but the head; it changes nothing before the first update.

    Raises:
        ConfigError: A name is that of no linear layer.
    """
    linear = {name: module for name, module in net.named_modules() if isinstance(module, _LINEAR) and name != "lm_head"}
    last_names = {name.rpartition(".")[2] for name in linear}
    targets = last_names
    if section.lora_targets != "all-linear":
        targets = {name.strip() for name in section.lora_targets.split(",")}
    if unknown := sorted(targets - last_names):
        raise ConfigError(
            f"model.lora_targets = '{section.lora_targets}': the model has no linear layer '{unknown[0]}'; expected "
            f"'all-linear', or some of {', '.join(sorted(last_names))}"
        )
    net.freeze()
    generator = np.random.default_rng(seed)
    adapted = []
    for name, module in linear.items():
        if name.rpartition(".")[2] in targets:
            layer = LoRALinear.from_base(module, section.lora_rank, scale=section.lora_alpha / section.lora_rank)
            inputs = layer.lora_a.shape[0]
            layer.lora_a = mx.array(generator.uniform(-1, 1, layer.lora_a.shape).astype(np.float32) / inputs**0.5)
            layer.linear.freeze()
            adapted.append((name, layer))
    net.update_modules(tree_unflatten(adapted))


def is_adapter(name: str) -> bool:
    """Return whether a parameter is one of an adapter's matrices."""
    return name.endswith((".lora_a", ".lora_b"))


def peft_name(name: str) -> str:
    """Return PEFT's name of an adapter's matrix, as its files have it."""
    module, _, matrix = name.rpartition(".")
    return f"{_PREFIX}{module}.lora_{matrix[-1].upper()}.weight"


def write_config(folder: Path, section: ModelSection, source: Path, names: list[str]) -> None:
    """Write what PEFT needs to put the adapter on the model that it belongs to."""
    modules = {name.rpartition(".")[0].rpartition(".")[2] for name in names}
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(source),
        "r": section.lora_rank,
        "lora_alpha": section.lora_alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(modules),
        "inference_mode": True,
    }
    (folder / CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
