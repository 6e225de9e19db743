"""Checkpoints of shared weights: each rank writes its share, and any number of ranks reads what it needs.

The files are safetensors, cut as torch.distributed.checkpoint cuts them; nothing in them can be executed. The policy
stands beside them as a plain model folder, as the backend ``torch`` writes it.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter

from steadyrl.backends.huggingface import portable
from steadyrl.backends.torch.backend import TorchBackend
from steadyrl.backends.torch.save.state import POLICY, SHARES, finish_policy
from steadyrl.core.errors import CheckpointError

_MOMENTS = ("exp_avg", "exp_avg_sq")


def fill(optimizer: torch.optim.Optimizer) -> None:
    """Give every weight the state that Adam begins with: then what is saved and loaded is always the same tensors."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.zeros((), device=parameter.device),
                **{name: torch.zeros_like(parameter, requires_grad=False) for name in _MOMENTS},
            }


def save(folder: Path, backend: TorchBackend, group: dist.ProcessGroup) -> None:
    """Write this rank's share of weights and optimizer.

    Raises:
        OSError: A rank cannot write.
    """
    shares = folder / SHARES
    shares.mkdir(parents=True, exist_ok=True)  # another machine may not see what rank 0 has just made
    writer = HuggingFaceStorageWriter(str(shares), save_distributed=True)
    try:
        state_dict_saver.save(_tensors(backend), storage_writer=writer, process_group=group)
    except CheckpointException as error:
        raise OSError(_first_failure(error)) from error


def save_policy(folder: Path, backend: TorchBackend, adapter: bool) -> None:
    """Write the policy as a model folder, or an adapter; all weights must be gathered."""
    path, model = folder / POLICY, backend.model
    # Asked for their state, FSDP's modules would share out their weights again.
    tensors = {name: p.detach() for name, p in model.named_parameters(remove_duplicate=False)}
    with portable.writing():
        model.save_pretrained(path, state_dict=tensors)
        finish_policy(path, model, adapter)
        backend.tokenizer.save(path)


def load(folder: Path, backend: TorchBackend, group: dist.ProcessGroup) -> None:
    """Read this rank's share, however many ranks wrote it.

    Raises:
        CheckpointError: It is damaged, of another model, or was written by another backend.
    """
    shares = folder / SHARES
    if not shares.is_dir():
        raise CheckpointError(
            f"another backend than fsdp wrote '{folder}'; resume with that one, or start a new run with model.path = "
            f"'{folder / POLICY}'"
        )
    try:
        reader = HuggingFaceStorageReader(str(shares))
        state_dict_loader.load(_tensors(backend), storage_reader=reader, process_group=group)
    except (CheckpointException, SafetensorError, OSError) as error:
        raise CheckpointError(
            f"'{shares}' is damaged or does not fit the model ({_first_failure(error)}); delete that checkpoint's "
            "folder to resume from an earlier one"
        ) from error


def _tensors(backend: TorchBackend) -> dict[str, torch.Tensor]:
    """Return weights and optimizer state by name, which are read in place."""
    tensors: dict[str, torch.Tensor] = {}
    for name, parameter in backend.trainable().items():
        tensors[f"weight|{name}"] = parameter.detach()
        tensors |= {f"{kind}|{name}": value for kind, value in backend.optimizer.state[parameter].items()}
    return tensors


def _first_failure(error: BaseException) -> str:
    """Return what the first rank that failed says, in one line."""
    inner = next(iter(error.failures.values()))[0] if isinstance(error, CheckpointException) else error
    return " ".join(str(inner).split())[:300] or type(inner).__name__
