"""On Linux, a faster library for matrix products than the reference BLAS that MLX's wheel brings."""

from __future__ import annotations

import ctypes
import sys

OPENBLAS = "libopenblas.so.0"  # Debian: apt-get install libopenblas0


def faster_products() -> bool:
    """Let MLX multiply with the system's OpenBLAS, if there is one; return whether there is.

    MLX looks ``cblas_sgemm`` up when it is first used, and takes the one that was loaded globally. On a Mac MLX uses
    Apple's own libraries, and nothing is done.
    """
    if sys.platform != "linux":
        return False
    try:
        ctypes.CDLL(OPENBLAS, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True
