"""On Linux, a faster library for matrix products than the reference BLAS that MLX's wheel brings."""

from __future__ import annotations

import ctypes
import sys

OPENBLAS = "libopenblas.so.0"  # Debian: apt-get install libopenblas0


def faster_products(threads: int = 0) -> bool:
    """Let MLX multiply with the system's OpenBLAS, if there is one; return whether there is.

    MLX looks ``cblas_sgemm`` up when it is first used, and takes the one that was loaded globally. On a Mac MLX uses
    Apple's own libraries, and nothing is done.

    Args:
        threads: Threads that OpenBLAS multiplies with; 0 leaves its own number.
    """
    if sys.platform != "linux":
        return False
    try:
        library = ctypes.CDLL(OPENBLAS, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    if threads:
        library.openblas_set_num_threads(threads)
    return True
