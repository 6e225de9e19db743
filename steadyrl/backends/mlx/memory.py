"""How much memory MLX may use, and what to do when it runs out: half as much at once, the same result."""

from __future__ import annotations

import mlx.core as mx

GIB = 2**30
# What MLX says when an array does not fit. Where Metal itself runs out, the process is aborted and nothing can be done.
_LACKING = ("Unable to allocate", "Attempting to allocate", "Insufficient Memory")


def limit(memory_gib: float) -> None:
    """Bound what MLX uses; 0 leaves its own limit."""
    if memory_gib:
        mx.set_memory_limit(int(memory_gib * GIB))
        mx.set_cache_limit(int(memory_gib * GIB) // 4)  # freed buffers that are kept for reuse


def ran_out(error: Exception) -> bool:
    """Return whether an error says that memory ran out; freed memory is given back then."""
    is_lack = isinstance(error, MemoryError) or any(phrase in str(error) for phrase in _LACKING)
    if is_lack:
        mx.clear_cache()
    return is_lack
