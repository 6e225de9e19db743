"""Launches that overlap the end of the kernel before: programmatic dependent launch, on cards since Hopper.

A captured step is some two hundred kernels of a few microseconds, and between two of them a GPU stands still for one:
the next kernel is set up once the one before is over. Here it is set up earlier, and waits inside.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton compiles no annotations but its own.
from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda

FIRST = 9  # major compute capability


def early(device: torch.device) -> dict[str, bool]:
    """Return what a kernel that calls ``begin`` is launched with on a device."""
    return {"EARLY": True, "launch_pdl": True} if is_since(FIRST, device) else {"EARLY": False}


@cache
def is_since(capability: int, device: torch.device) -> bool:
    """Return whether a device is a card of NVIDIA with a major compute capability, or a newer one."""
    if device.type != "cuda" or torch.version.cuda is None:
        return False
    return torch.cuda.get_device_capability(device)[0] >= capability


@triton.jit
def begin(EARLY: tl.constexpr):
    """Wait for the kernels before, whose outputs are read or overwritten below; let the next one be set up."""
    if EARLY:
        cuda.gdc_wait()
        cuda.gdc_launch_dependents()
