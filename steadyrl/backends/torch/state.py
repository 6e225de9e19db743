"""Weights and optimizer state on disk, safetensors only: exact in float32, never executable."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from steadyrl.errors import CheckpointError

POLICY, VALUE_HEAD, OPTIMIZER = "policy", "value_head.safetensors", "optimizer.safetensors"


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write named tensors; an empty set writes nothing."""
    if tensors:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)


def load_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read named tensors.

    Raises:
        CheckpointError: The file is missing, cut short or damaged.
    """
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"'{path}' is missing or damaged ({error}); delete that checkpoint's folder to resume from an earlier one"
        ) from error


def load_into(module: nn.Module, path: Path) -> None:
    """Copy saved tensors into a module of the same shape."""
    try:
        module.load_state_dict(load_tensors(path))
    except RuntimeError as error:
        raise CheckpointError(f"'{path}' does not fit the model: {error}") from error


def load_policy(folder: Path, model: Any, lora: bool) -> None:
    """Copy a saved policy (whole weights, or a LoRA adapter) into the model."""
    if lora:
        from peft import get_peft_model_state_dict, set_peft_model_state_dict

        adapter = load_tensors(folder / "adapter_model.safetensors")
        if set(adapter) != set(get_peft_model_state_dict(model)):  # peft would leave the others as they are
            raise CheckpointError(f"'{folder}' does not fit the model: other adapter matrices than this run trains")
        set_peft_model_state_dict(model, adapter)
        return
    shards = sorted(folder.glob("model*.safetensors"))
    tensors = {name: t for shard in shards or [folder / "model.safetensors"] for name, t in load_tensors(shard).items()}
    try:
        result = model.load_state_dict(tensors, strict=False)
    except RuntimeError as error:
        raise CheckpointError(f"'{folder}' does not fit the model: {error}") from error
    own = model.state_dict()
    filled = {own[name].data_ptr() for name in tensors if name in own}
    # Tied weights are saved under one of their names: the others share its memory.
    missing = [name for name in result.missing_keys if own[name].data_ptr() not in filled]
    if missing or result.unexpected_keys:
        raise CheckpointError(f"'{folder}' does not fit the model: {result}")


def save_optimizer(path: Path, optimizer: torch.optim.Optimizer, named: Mapping[str, nn.Parameter]) -> None:
    """Write Adam's moments and step counts by parameter name; before the first step there are none."""
    tensors = {
        f"{key}|{name}": value
        for name, parameter in named.items()
        for key, value in optimizer.state.get(parameter, {}).items()
    }
    save_file({k: t.detach().cpu().contiguous() for k, t in tensors.items()}, path)


def load_optimizer(path: Path, optimizer: torch.optim.Optimizer, named: Mapping[str, nn.Parameter]) -> None:
    """Read what ``save_optimizer`` wrote; what it names no state of has none afterwards, as before the first step."""
    optimizer.state.clear()
    for key, value in load_tensors(path).items():
        kind, _, name = key.partition("|")
        if name not in named:
            raise CheckpointError(f"'{path}' holds the state of '{name}', which this model does not train")
        parameter = named[name]
        optimizer.state[parameter][kind] = value if kind == "step" else value.to(parameter.device)
