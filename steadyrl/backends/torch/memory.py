"""Memory on a CPU is kept from step to step; where PyTorch runs out of it, half as much is done at once."""

from __future__ import annotations

import ctypes
import os
import platform

import torch

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # names of malloc.h
# Tensors of 2 MiB and more lie on pages of that size where Linux gives them on request: fewer faults in a first step,
# and fewer look-ups of addresses in products that read weights. PyTorch reads this with its first tensor.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def keep_freed(device: torch.device) -> None:
    """Let glibc keep freed memory for the next step, instead of giving it back to the system.

    Every step allocates the same gigabytes again. Each page that comes anew from the system is a fault and is filled
    with zeros first: a tenth of the processor time of a step. Other systems and allocators are left as they are.
    """
    if device.type == "cpu" and platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, -1)


def ran_out(error: Exception) -> bool:
    """Return whether an error says that memory ran out; a GPU's freed memory is given back then."""
    lacks = isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
    if lacks and torch.cuda.is_available():
        torch.cuda.empty_cache()
    return lacks
