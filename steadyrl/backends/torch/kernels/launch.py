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

FIRST = 9  # compute capability


def early(device: torch.device) -> dict[str, bool]:
    """Return what a kernel that calls ``begin`` is launched with on a device."""
    return {"EARLY": True, "launch_pdl": True} if _overlaps(device) else {"EARLY": False}


@cache
def _overlaps(device: torch.device) -> bool:
    of_nvidia = device.type == "cuda" and torch.version.cuda is not None
    return of_nvidia and torch.cuda.get_device_capability(device)[0] >= FIRST


@triton.jit
def begin(EARLY: tl.constexpr):
    """Wait for the kernels before, whose outputs are read or overwritten below; let the next one be set up."""
    if EARLY:
        cuda.gdc_wait()
        cuda.gdc_launch_dependents()
