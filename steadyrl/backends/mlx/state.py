"""Weights and optimizer state on disk, in the layout of the PyTorch backend: a run can change the framework.

Names and shapes are PyTorch's: Adam's ``m`` and ``v`` are ``exp_avg`` and ``exp_avg_sq``, and an adapter's matrices are
transposed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

from steadyrl.backends.huggingface import portable
from steadyrl.backends.mlx.lora import WEIGHTS, is_adapter, peft_name, write_config
from steadyrl.core.errors import CheckpointError
from steadyrl.core.sections import ModelSection

POLICY, VALUE_HEAD, OPTIMIZER = portable.POLICY, "value_head.safetensors", "optimizer.safetensors"
MASTERS = "masters.safetensors"
_HEAD = "value_head."
_MOMENTS = {"exp_avg": "m", "exp_avg_sq": "v"}

Arrays = Mapping[str, mx.array]


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Write named arrays; transformers wants to be told the format."""
    mx.save_safetensors(str(path), dict(arrays), metadata={"format": "pt"})


def read_arrays(path: Path) -> dict[str, mx.array]:
    """Read named arrays, all of them now: MLX would read each when it is used, and the file may be gone by then.

    Raises:
        CheckpointError: The file is missing, cut short or damaged.
    """
    portable.check_readable(path)  # MLX trusts the table of arrays
    try:
        arrays = mx.load(str(path))
        assert isinstance(arrays, dict), "a file of safetensors is a table"
        mx.eval(arrays)
    except (OSError, RuntimeError, ValueError) as error:
        raise portable.damaged(path, error) from error
    return arrays


def torch_form(name: str, array: mx.array) -> mx.array:
    """Return a parameter, or a moment of it, as PyTorch shapes it; the way back is the same."""
    return mx.contiguous(array.T) if is_adapter(name) else array


def fitting(path: Path, saved: Arrays, expected: Arrays, named: Callable[[str], str] = str) -> dict[str, mx.array]:
    """Return saved arrays in float32 by this model's own names, of which ``named`` gives those in the file.

    Raises:
        CheckpointError: A name or a shape is another.
    """
    misfits = set(saved) ^ set(map(named, expected))
    arrays = {name: torch_form(name, saved[named(name)]) for name in expected} if not misfits else {}
    misfits |= {name for name, array in arrays.items() if array.shape != expected[name].shape}
    if misfits:
        raise CheckpointError(
            f"'{path}' does not fit the model: {len(misfits)} weights are missing, unknown or of another shape, such "
            f"as {min(misfits)}; resume with the model that the run was started with"
        )
    return {name: array.astype(mx.float32) for name, array in arrays.items()}


def save_weights(folder: Path, arrays: Arrays, config: Any, source: Path) -> None:
    """Write whole weights and what belongs to them."""
    write_arrays(folder / "model.safetensors", arrays)
    config.save_pretrained(folder)
    portable.spell_twice(folder)
    if (source / "generation_config.json").is_file():
        shutil.copy(source / "generation_config.json", folder)


def save_adapter(folder: Path, arrays: Arrays, section: ModelSection, source: Path) -> None:
    """Write an adapter as PEFT has it; see ``save_weights``."""
    write_arrays(folder / WEIGHTS, {peft_name(name): torch_form(name, array) for name, array in arrays.items()})
    write_config(folder, section, source, list(arrays))


def load_adapter(folder: Path, expected: Arrays) -> dict[str, mx.array]:
    """Read an adapter that ``save_adapter`` or PEFT wrote.

    Raises:
        CheckpointError: It is damaged or of another model.
    """
    path = folder / WEIGHTS
    return fitting(path, read_arrays(path), expected, peft_name)


def split_value_head(arrays: Arrays) -> tuple[dict[str, mx.array], dict[str, mx.array]]:
    """Return (the model's, the value head's) arrays."""
    head = {name: array for name, array in arrays.items() if name.startswith(_HEAD)}
    return {name: array for name, array in arrays.items() if name not in head}, head


def save_value_head(folder: Path, head: Arrays) -> None:
    """Write the value head, if there is one."""
    if head:
        write_arrays(folder / VALUE_HEAD, {name.removeprefix(_HEAD): array for name, array in head.items()})


def load_value_head(folder: Path, head: Arrays) -> dict[str, mx.array]:
    """Read the value head, if there is one."""
    if not head:
        return {}
    path = folder / VALUE_HEAD
    return fitting(path, read_arrays(path), head, lambda name: name.removeprefix(_HEAD))


def save_optimizer(path: Path, state: Mapping[str, Any], trained: Arrays) -> None:
    """Write Adam's moments and step counts by parameter name; before the first step there are none."""
    arrays = {}
    for name in trained if int(state["step"]) else ():
        for kind, mlx_name in _MOMENTS.items():
            arrays[f"{kind}|{_in_optimizer(name)}"] = torch_form(name, state[name][mlx_name])
        arrays[f"step|{_in_optimizer(name)}"] = state["step"].astype(mx.float32)
    write_arrays(path, arrays)


def load_optimizer(path: Path, trained: Arrays) -> tuple[int, dict[str, dict[str, mx.array]]]:
    """Return (steps, moments by parameter) that ``save_optimizer`` or PyTorch wrote; no moments before the first step.

    Raises:
        CheckpointError: It is damaged or of another model.
    """
    saved = read_arrays(path)
    if not saved:
        return 0, {}
    steps = {float(array) for key, array in saved.items() if key.startswith("step|")}
    moments: dict[str, dict[str, mx.array]] = {name: {} for name in trained}
    for kind, mlx_name in _MOMENTS.items():
        of_kind = {key.partition("|")[2]: array for key, array in saved.items() if key.startswith(f"{kind}|")}
        for name, array in fitting(path, of_kind, trained, _in_optimizer).items():
            moments[name][mlx_name] = array
    if len(steps) != 1:
        raise CheckpointError(f"'{path}' counts {len(steps)} different numbers of optimizer steps; expected one")
    return int(steps.pop()), moments


def _in_optimizer(name: str) -> str:
    """Return the name that PyTorch's optimizer state has for a parameter."""
    return peft_name(name).replace(".weight", ".default.weight") if is_adapter(name) else name
