"""Joins the policies of several checkpoints of one start model into one, matrix by matrix.

What was learned is a difference of weights. Differences of adapters are joined by spherical interpolation, which keeps
their length: the mean of two that point in different directions is shorter than either. Whole weights are averaged, for
the start model need not be there any more.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from steadyrl.backends.huggingface.portable import POLICY, PROBE, writing
from steadyrl.backends.torch.arithmetic import full_float32
from steadyrl.backends.torch.save.state import load_tensors, tensors_in, weight_files
from steadyrl.core.errors import ModelError
from steadyrl.core.rundir import read_json

ADAPTER, SETTINGS = "adapter_model.safetensors", "adapter_config.json"
_PARALLEL = 1e-4  # radians: below this the sphere is flat in float64


@full_float32()
def join_adapters(checkpoints: Sequence[Path], to: Path) -> int:
    """Write a checkpoint with the joined adapter, whose rank is the sum of the ranks, and return that rank.

    The matrices stand side by side: [c1 B1, c2 B2] times [A1; A2] is c1 B1 A1 + c2 B2 A2, without an approximation.

    Raises:
        CheckpointError: A checkpoint is damaged.
        ModelError: The adapters have other modules or shapes, or matrices that cannot stand side by side.
    """
    policies = [checkpoint / POLICY for checkpoint in checkpoints]
    adapters = [load_tensors(policy / ADAPTER) for policy in policies]
    configs = [read_json(policy / SETTINGS) for policy in policies]
    # The side of each matrix that is not its rank.
    sides = [
        {
            name: matrix.shape[1 if _is_lora_a(name) else 0] if matrix.ndim == 2 else -1
            for name, matrix in tensors.items()
        }
        for tensors in adapters
    ]
    for policy, tensors, config, side in zip(policies, adapters, configs, sides, strict=True):
        _require_plain(policy, tensors, config)
        _require_alike(policy, side, policies[0], sides[0])
    scales, joined = [config["lora_alpha"] / config["r"] for config in configs], {}
    for name in filter(_is_lora_a, adapters[0]):
        b_name = _lora_b_of(name)
        lora_a = [tensors[name].float() for tensors in adapters]  # [rank, in] each
        # [out, rank] each
        lora_b = [scale * tensors[b_name].float() for scale, tensors in zip(scales, adapters, strict=True)]
        shares = spherical(_products(lora_a, lora_b))
        joined[name] = torch.cat(lora_a, 0)
        joined[b_name] = torch.cat([share * matrix for share, matrix in zip(shares, lora_b, strict=True)], 1)
    rank = sum(int(config["r"]) for config in configs)
    _copy_rest(policies[0], to / POLICY)
    with writing():
        save_file(joined, to / POLICY / ADAPTER, {"format": "pt"})
    changed = configs[0] | {"r": rank, "lora_alpha": rank}  # the scale alpha / r is in the matrices
    (to / POLICY / SETTINGS).write_text(json.dumps(changed, indent=2), encoding="utf-8")
    return rank


def join_weights(checkpoints: Sequence[Path], to: Path) -> None:
    """Write a checkpoint with the mean of whole weights, computed in float32 and kept in their precision.

    Raises:
        CheckpointError: A checkpoint is damaged.
        ModelError: The models have other weights or shapes.
    """
    policies = [checkpoint / POLICY for checkpoint in checkpoints]
    files = [weight_files(policy) for policy in policies]
    shapes = [{name: tuple(tensor.shape) for name, tensor in tensors_in(paths)} for paths in files]
    for policy, policy_shapes in zip(policies, shapes, strict=True):
        _require_alike(policy, policy_shapes, policies[0], shapes[0])
    _copy_rest(policies[0], to / POLICY)
    # Mapped from the files, and read where they are used.
    other_weights = [dict(tensors_in(paths)) for paths in files[1:]]
    for file in files[0]:
        mean = {
            name: (sum((weights[name].float() for weights in other_weights), tensor.float()) / len(files)).to(
                tensor.dtype
            )
            for name, tensor in tensors_in([file])
        }
        with writing():
            save_file(mean, to / POLICY / file.name, {"format": "pt"})


def spherical(products: np.ndarray) -> np.ndarray:
    """Return the share of each of several vectors in their spherical interpolation, one after the other.

    The k-th is joined at 1 / k to what the ones before it gave: every step goes along the arc between the two. Vectors
    of one direction, or without length, are averaged.

    Args:
        products: Inner products of the vectors [M, M].

    Source: the second stage of WARP (arXiv:2406.16768), which interpolates differences from the start, layer by layer.
    """
    shares = np.zeros(len(products))  # [M]
    shares[0] = 1.0
    for k in range(1, len(products)):
        share, lengths = 1 / (k + 1), math.sqrt(max(shares @ products @ shares, 0) * max(products[k, k], 0))
        angle = math.acos(np.clip(shares @ products[k] / lengths, -1, 1)) if lengths > 0 else 0.0
        remaining, added = 1 - share, share
        if _PARALLEL < angle < math.pi - _PARALLEL:
            remaining, added = (math.sin(part * angle) / math.sin(angle) for part in (remaining, added))
        shares *= remaining
        shares[k] = added
    return shares


def _products(lora_a: Sequence[torch.Tensor], lora_b: Sequence[torch.Tensor]) -> np.ndarray:
    """Return the inner products of the differences ``lora_b @ lora_a``, which are never built."""
    a, b = [matrix.double() for matrix in lora_a], [matrix.double() for matrix in lora_b]
    pairs = [[float(((b[i].T @ b[j]) * (a[i] @ a[j].T)).sum()) for j in range(len(a))] for i in range(len(a))]
    return np.array(pairs)


def _is_lora_a(name: str) -> bool:
    return ".lora_A." in name or "lora_embedding_A" in name


def _lora_b_of(name: str) -> str:
    return name.replace(".lora_A.", ".lora_B.").replace("lora_embedding_A", "lora_embedding_B")


def _require_plain(policy: Path, tensors: Mapping[str, torch.Tensor], config: Mapping[str, object]) -> None:
    pairs = {side for name in filter(_is_lora_a, tensors) for side in (name, _lora_b_of(name))}
    plain = pairs == set(tensors) and all(matrix.ndim == 2 for matrix in tensors.values())
    if not plain or any(config.get(key) for key in ("rank_pattern", "alpha_pattern", "use_rslora", "use_dora")):
        raise ModelError(
            f"the adapter in '{policy}' has more than one rank, or matrices that are no pair, as of fused experts; "
            "expected a pair of matrices of one rank for each module. Such adapters cannot be joined"
        )


def _require_alike(policy: Path, shapes: Mapping[str, object], first: Path, expected: Mapping[str, object]) -> None:
    differ = sorted(name for name in {*shapes, *expected} if shapes.get(name) != expected.get(name))
    if differ:
        raise ModelError(
            f"'{policy}' holds other weights than '{first}': {len(differ)} are missing, unknown or of another shape, "
            f"such as {differ[0]}; join runs of one start model with the same trained modules"
        )


def _copy_rest(policy: Path, to: Path) -> None:
    """Copy what is beside the weights; the probe is of one policy alone."""
    shutil.copytree(policy, to, ignore=shutil.ignore_patterns("*.safetensors", PROBE))
