"""Which device a run computes on, and in which precision."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import cache
from types import ModuleType

import numpy as np
import torch

from steadyrl.core.errors import ConfigError

log = logging.getLogger(__name__)
WIDTH, REPEATED = 384, 5  # of the matrices whose product is timed: some ten milliseconds in all
NOTABLE = 1.1  # times as long
KERNELS_ON = frozenset({"cuda"})  # types of devices that kernels of Triton are tried on


def lower_precision(name: str, device: torch.device) -> torch.dtype | None:
    """Return the type that matrices are multiplied in, or None for that of the weights."""
    if name == "auto":
        # Older cards compute bfloat16 as float32, far slower than float32 itself.
        fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        name = "bf16" if fast else "fp32"
    if name == "bf16" and device.type == "cpu":
        times = _cpu_product_seconds(torch.bfloat16) / _cpu_product_seconds(torch.float32)
        if times > NOTABLE:
            log.warning(
                "backend.precision = 'bf16': this processor takes %.1f times as long for a product in bfloat16 as in "
                "float32, so that 'fp32' is faster here, and more exact",
                times,
            )
    return torch.bfloat16 if name == "bf16" else None


def _cpu_product_seconds(dtype: torch.dtype) -> float:
    x, times = torch.ones(WIDTH, WIDTH, dtype=dtype), []
    for _ in range(REPEATED):
        began = time.perf_counter()
        torch.mm(x, x)
        times.append(time.perf_counter() - began)
    return min(times)


def lays_blocks(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether oneDNN lays out matrices of a type in blocks: on a CPU, which needs AVX-512 for bfloat16."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return dtype != torch.bfloat16 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def optional_kernels(kernels: Callable[[torch.device], ModuleType]) -> Callable[[torch.device], ModuleType | None]:
    """Let a function that imports kernels of ours and tries them return None where they do not run.

    PyTorch's own have to do there: without CUDA, without Triton (a PyTorch for CPUs comes without), without a compiler
    for it or a folder that it may write to. Each device is tried once.
    """

    @cache
    def tried(device: torch.device) -> ModuleType | None:
        try:
            return kernels(device)
        except Exception as error:  # Triton, a driver and a compiler raise errors of their own
            reason = str(error).strip()[:200]
            log.warning("kernels of Triton do not run (%s), and PyTorch's take longer: %s", kernels.__name__, reason)
            return None

    def where_they_run(device: torch.device) -> ModuleType | None:
        return tried(device) if device.type in KERNELS_ON else None

    return where_they_run


def to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """Return an array on a device; the host does not wait until a GPU has done what it was told before."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def chosen_device(name: str) -> torch.device:
    """Return the device that a setting names.

    Raises:
        ConfigError: There is none of that name here.
    """
    if name != "auto":
        try:
            probe = torch.zeros(1, device=name)
            probe.item()  # a device such as 'meta' holds shapes and no numbers
        except (RuntimeError, AssertionError) as error:
            first = str(error).splitlines()[0]
            raise ConfigError(f"backend.device = '{name}' cannot be used: {first}; try 'auto' or 'cpu'") from error
        if probe.is_cuda:  # streams and kernels of ours go to the present card
            torch.cuda.set_device(probe.device)
        return probe.device
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
