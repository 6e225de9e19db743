"""Weights and optimizer state on disk, safetensors only: exact in float32, never executable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from steadyrl.backends.huggingface import portable
from steadyrl.backends.huggingface.folder import reading
from steadyrl.backends.huggingface.portable import check_readable
from steadyrl.backends.torch.save import probe
from steadyrl.core.errors import CheckpointError, ModelError

POLICY, VALUE_HEAD, OPTIMIZER = portable.POLICY, "value_head.safetensors", "optimizer.safetensors"
SHARES = "shares"  # the folder of the backend fsdp, instead of a file of the optimizer


def require_one_process(folder: Path) -> None:
    """Refuse (CheckpointError) a checkpoint that several ranks wrote."""
    if (folder / SHARES).is_dir():
        raise CheckpointError(
            f"the backend fsdp wrote '{folder}'; resume with backend.name=fsdp, or start a new run with model.path = "
            f"'{folder / POLICY}'"
        )


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
        raise portable.damaged(path, error) from error


def load_into(module: nn.Module, path: Path) -> None:
    """Copy saved tensors into a module of the same shape."""
    try:
        module.load_state_dict(load_tensors(path))
    except RuntimeError as error:
        raise CheckpointError(f"'{path}' does not fit the model: {error}") from error


def finish_policy(folder: Path, model: Any, lora: bool) -> None:
    """Add to a saved policy what other programs need to read it right, and what tells that one did not."""
    if not lora:
        portable.spell_twice(folder)
    if not getattr(model, "is_quantized", False):  # whoever reads the adapter may add it to the whole weights
        portable.write_probe(folder, probe.make(model))


def load_policy(folder: Path, model: Any, lora: bool) -> None:
    """Copy a saved policy (whole weights, or a LoRA adapter) into the model.

    Raises:
        CheckpointError: It is damaged, of another model, or computes something else than when it was saved.
    """
    state_dict: Mapping[str, torch.Tensor]
    saved: Iterable[tuple[str, torch.Tensor]]
    if lora:
        from peft import get_peft_model_state_dict

        # Neither is left to peft: it would rename some matrices for a few families, and pass over what does not fit.
        adapter, state_dict = load_tensors(folder / "adapter_model.safetensors"), get_peft_model_state_dict(model)
        shapes, model_shapes = ({name: tensor.shape for name, tensor in side.items()} for side in (adapter, state_dict))
        if shapes != model_shapes:
            raise CheckpointError(
                f"'{folder}' does not fit the model: other adapter matrices than this run trains; restore the "
                "run's adapter, whose model.lora_rank and model.lora_targets stand in its config.toml"
            )
        saved = adapter.items()
    else:
        files, state_dict = weight_files(folder), model.state_dict()
        plain = _names_modules(files, state_dict)
        saved = tensors_in(files) if plain else _read_policy(folder, model).state_dict().items()
    with torch.no_grad():
        for name, tensor in saved:
            state_dict[name].copy_(tensor)
    portable.check_probe(folder, *probe.measure_of(model))


def weight_files(folder: Path) -> list[Path]:
    """Return the files of a folder's whole weights.

    Raises:
        CheckpointError: One is missing or damaged.
    """
    files = sorted(folder.glob("model*.safetensors")) or [folder / "model.safetensors"]
    for file in files:
        check_readable(file)
    return files


def _names_modules(files: Sequence[Path], state_dict: Mapping[str, torch.Tensor]) -> bool:
    """Return whether files hold all of a model's own weights, in their shapes, by the names of its modules.

    Then they need no second model to be read. Weights that share memory, such as a tied head, are saved once.
    """
    shapes = {name: tensor.shape for name, tensor in tensors_in(files)}
    reached = {state_dict[name].data_ptr() for name in shapes.keys() & state_dict.keys()}
    fit = all(name in state_dict and state_dict[name].shape == shape for name, shape in shapes.items())
    return fit and all(tensor.data_ptr() in reached for tensor in state_dict.values())


def tensors_in(files: Sequence[Path]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield names and tensors, mapped from the files and read where they are used."""
    for file in files:
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118  # it is no dict
                yield name, opened.get_tensor(name)


def _read_policy(folder: Path, model: Any) -> Any:
    """Return a model like this one with the weights of a folder, read as transformers reads it.

    For some families (mixtures of experts, GPT-NeoX) the hub's names, which the file has, are not those of the modules.
    Only transformers knows how to turn one into the other.
    """
    try:
        with reading(str(folder)):
            saved, loading_info = type(model).from_pretrained(
                folder, config=model.config, dtype=model.dtype, use_safetensors=True, output_loading_info=True
            )
    except ModelError as error:
        raise CheckpointError(f"'{folder}' does not fit the model: {error}") from error
    wrong = [*loading_info["missing_keys"], *loading_info["unexpected_keys"], *loading_info["mismatched_keys"]]
    if wrong:
        raise CheckpointError(
            f"'{folder}' does not fit the model: {len(wrong)} weights are missing, unknown or of another shape, such "
            f"as {wrong[0]}; resume with the model that the run was started with"
        )
    return saved


def save_optimizer(path: Path, optimizer: torch.optim.Optimizer, named: Mapping[str, nn.Parameter]) -> None:
    """Write Adam's moments and step counts by parameter name; before the first step there are none."""
    tensors = {
        # A table of 8-bit moments is one for all weights, and a file holds no tensor twice.
        f"{key}|{name}": value.clone() if key.startswith("qmap") else torch.as_tensor(value)
        for name, parameter in named.items()
        for key, value in optimizer.state.get(parameter, {}).items()
    }
    save_file({k: t.detach().cpu().contiguous() for k, t in tensors.items()}, path)


def load_optimizer(path: Path, optimizer: torch.optim.Optimizer, named: Mapping[str, nn.Parameter]) -> None:
    """Read what ``save_optimizer`` wrote; what it names no state of has none afterwards, as before the first step.

    Numbers are copied out of the file: mapped ones begin anywhere, and where a sum begins decides its rounding. They go
    where there were some, else to the device of their weight, as a fused step wants its count too.
    """
    before = dict(optimizer.state)
    fused = {weight for group in optimizer.param_groups if group.get("fused") for weight in group["params"]}
    optimizer.state.clear()
    for key, value in load_tensors(path).items():
        kind, _, name = key.partition("|")
        if name not in named:
            raise CheckpointError(f"'{path}' holds the state of '{name}', which this model does not train")
        weight = named[name]
        state, target = optimizer.state[weight], before.get(weight, {}).get(kind)
        if kind == "step" and not value.is_floating_point():  # bitsandbytes counts in Python
            state[kind] = int(value)
            continue
        device = "cpu" if kind == "step" and weight not in fused else weight.device
        if target is None or (target.shape, target.dtype) != (value.shape, value.dtype):
            target = torch.empty_like(value, device=device)
        state[kind] = target.copy_(value)


def remember(
    optimizer: torch.optim.Optimizer, named: Mapping[str, nn.Parameter], most_bytes: int
) -> Callable[[], None] | None:
    """Return what puts weights and optimizer back to where they are now; None where copies take more than so much.

    The copies are in the host's memory, for a device has none to spare in the middle of a step.
    """
    states = {p: optimizer.state.get(p, {}) for p in named.values()}
    tensors = [*named.values(), *(v for state in states.values() for v in state.values() if torch.is_tensor(v))]
    if sum(tensor.numel() * tensor.element_size() for tensor in tensors) > most_bytes:
        return None
    weights = {p: p.detach().to("cpu", copy=True) for p in states}
    moments = {
        p: {key: value.to("cpu", copy=True) if torch.is_tensor(value) else value for key, value in state.items()}
        for p, state in states.items()
        if state
    }

    @torch.no_grad()
    def put_back() -> None:
        for parameter, weight in weights.items():
            parameter.copy_(weight)
        optimizer.state.clear()
        for parameter, state in moments.items():
            restored = {k: v.to(states[parameter][k].device) if torch.is_tensor(v) else v for k, v in state.items()}
            optimizer.state[parameter] = restored

    return put_back
