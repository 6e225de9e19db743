"""How much memory a process or its accelerator used, for those who must not import torch."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

_MAXRSS_BYTES = 1 if sys.platform == "darwin" else 2**10  # getrusage counts bytes there, KiB elsewhere


@dataclass(frozen=True)
class Memory:
    """The most memory in use so far, and all there is, in bytes: of the CUDA device where there is one."""

    peak: int
    total: int
    place: str


def memory_now() -> Memory:
    """Return the memory that this process used at most so far."""
    device = peak_device_memory()
    if device is not None:
        return Memory(*device, "CUDA device")
    import resource  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_BYTES
    return Memory(peak, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "machine")


def peak_device_memory() -> tuple[int, int] | None:
    """Return (most bytes ever in use, all bytes) of the CUDA device; None where no run of torch uses one."""
    if "torch" not in sys.modules:
        return None
    import torch

    if not torch.cuda.is_available() or torch.cuda.max_memory_allocated() == 0:
        return None
    return torch.cuda.max_memory_allocated(), torch.cuda.get_device_properties().total_memory
