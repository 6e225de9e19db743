"""How much memory an accelerator had to give, for those who must not import torch."""

from __future__ import annotations

import sys


def peak_device_memory() -> tuple[int, int] | None:
    """Return (most bytes ever in use, all bytes) of the CUDA device; None where no run of torch uses one."""
    if "torch" not in sys.modules:
        return None
    import torch

    if not torch.cuda.is_available() or torch.cuda.max_memory_allocated() == 0:
        return None
    return torch.cuda.max_memory_allocated(), torch.cuda.get_device_properties().total_memory
