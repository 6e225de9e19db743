"""MLX's fused kernels: on Linux they are compiled by the system's g++ when first used, which may fail."""

from __future__ import annotations

import logging
import time

import mlx.core as mx

log = logging.getLogger(__name__)


def fused_or_plain() -> None:
    """Try a fused kernel, and switch them off for the process where it cannot be had; results are the same."""
    factor = float(time.time_ns() % 10**9)  # a kernel of an earlier process would come from MLX's cache on the disk
    try:
        mx.eval(mx.compile(lambda x: mx.exp(x) * factor + x)(mx.ones(4)))
    except RuntimeError as error:
        mx.disable_compile()
        message = " ".join(str(error).split())[:200]
        log.warning("MLX cannot compile kernels here (%s); going on without, which changes no result", message)
