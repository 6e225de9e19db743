"""What to do when PyTorch runs out of memory: half as much at once, the same result."""

from __future__ import annotations

import torch

from steadyrl.backends import limits


def halved(error: BaseException, size: int, setting: str) -> int:
    """Return half the size, see ``limits.halved``; anything but a lack of memory is raised again."""
    if not _lacks_memory(error):
        raise error
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return limits.halved(error, size, setting)


def _lacks_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
