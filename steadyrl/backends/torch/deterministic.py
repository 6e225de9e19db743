"""The same numbers from one run to the next on a GPU: what PyTorch must be told, and sums that it has no such way for.

Gathers, scatters and attention add gradients by atomics on a GPU unless PyTorch is told not to, in whatever order they
come. On a CPU a step is deterministic as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional as F

from steadyrl.core.errors import ConfigError

# cuBLAS splits long sums by the room that it has; with one of these sizes always alike.
WORKSPACE, WORKSPACES = "CUBLAS_WORKSPACE_CONFIG", (":4096:8", ":16:8")
WIDTH = 128  # numbers that are summed in one product


def prepare(device: torch.device, required: bool) -> None:
    """Choose the workspace of cuBLAS, at which PyTorch looks once, in the first product of a process.

    A variable that the user has set stays, unless the setting asks for another. Ours is taken back after that product:
    while the variable is set, PyTorch parses it anew for every product, which took 70 of 85 microseconds on the host of
    an H200. PyTorch gives each stream a workspace of its own in any case, and with it cuBLAS repeats its sums.

    Raises:
        ConfigError: PyTorch promises nothing of the device, and the setting asks for it.
    """
    if required and device.type not in {"cpu", "cuda"}:
        raise ConfigError(
            f"backend.args.deterministic = true works on CUDA devices and on the CPU; got the device '{device.type}'; "
            "set it to false"
        )
    chosen = os.environ.get(WORKSPACE)
    if chosen:
        if required and chosen not in WORKSPACES:
            os.environ[WORKSPACE] = WORKSPACES[0]
    elif device.type == "cuda":
        os.environ[WORKSPACE] = WORKSPACES[0]
        try:
            number = torch.ones(1, 1, device=device)
            torch.mm(number, number)
        finally:
            del os.environ[WORKSPACE]


@contextmanager
def deterministic(enabled: bool, device: torch.device) -> Iterator[None]:
    """Let all that a GPU computes inside come out the same from one run to the next.

    With its flag PyTorch takes deterministic kernels for gathers, scatters and the backward pass of attention (cuDNN's
    is left out), and raises RuntimeError for an operation that has none. If it only warned, attention would take its
    other kernels. Memory is not filled first, for nothing reads what it has not written.
    """
    if not enabled or device.type != "cuda":
        yield
        return
    memory: Any = torch.utils.deterministic  # which sets its attribute by a class of its own
    flag, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled, tuned = memory.fill_uninitialized_memory, torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(flag, warn_only=warns)
        memory.fill_uninitialized_memory, torch.backends.cudnn.benchmark = filled, tuned


def running_sums(x: torch.Tensor) -> torch.Tensor:
    """Return the sums [N, V] of all numbers up to each; where PyTorch's own are not deterministic, by products."""
    if x.device.type == "cpu" or not torch.are_deterministic_algorithms_enabled():
        return x.cumsum(-1)
    return sums_by_products(x)


def sums_by_products(x: torch.Tensor) -> torch.Tensor:
    """Return the sums [N, V] of all numbers up to each: within blocks by a product, then of the blocks before."""
    blocks = F.pad(x, (0, -x.shape[-1] % WIDTH)).view(len(x), -1, WIDTH)  # [N, B, WIDTH]
    inside = blocks @ torch.ones(WIDTH, WIDTH, dtype=x.dtype, device=x.device).triu()
    if blocks.shape[1] > 1:
        before = F.pad(sums_by_products(inside[:, :, -1])[:, :-1], (1, 0))  # [N, B]
        inside = inside + before[:, :, None]
    return inside.flatten(1)[:, : x.shape[-1]].contiguous()
