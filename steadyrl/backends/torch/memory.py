"""What to do when memory runs out: half as much at once, the same result."""

from __future__ import annotations

import logging

import torch

from steadyrl.errors import ModelError

log = logging.getLogger(__name__)


def halved(error: BaseException, size: int, setting: str) -> int:
    """Return half the size after an error that says that memory ran out, and log it.

    Args:
        error: What was raised; anything but a lack of memory is raised again.
        size: What was tried at once.
        setting: The setting that bounds it, for the message.

    Raises:
        ModelError: Not even one at a time fits.
    """
    if not _lacks_memory(error):
        raise error
    if size <= 1:
        raise ModelError(
            f"memory ran out with {setting} at 1 already; take a smaller model, or shorter prompts and completions"
        ) from error
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    log.warning("memory ran out with %s = %d; going on with %d, which changes no result", setting, size, size // 2)
    return size // 2


def _lacks_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
