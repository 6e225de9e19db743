"""What backends do at the limits of a model and of a machine: refuse a text too long, and take less at once."""

from __future__ import annotations

import logging

from steadyrl.core.errors import ModelError

log = logging.getLogger(__name__)

# Bytes of weights and moments that are copied before the updates of a step, so that they can be taken back. The copy
# takes some hundredths of a second, less than 2 % of a step of a model of this size (22 million trained numbers).
MOST_REMEMBERED = 1 << 28


def require_room(context: int | None, prompt: int, new: int) -> None:
    """Refuse a text that would go beyond a model's positions: some fail there, others write nonsense.

    Args:
        context: Tokens that the positions reach; None for no limit.
        prompt: Tokens of the longest prompt.
        new: Tokens that may be sampled.

    Raises:
        ModelError: The two together are more.
    """
    if context is not None and prompt + new > context:
        left = context - prompt
        raise ModelError(
            f"a prompt of {prompt} tokens and sampling.max_new_tokens = {new} go beyond the {context} tokens that the "
            "model's positions reach; shorten the prompt"
            + (f" or set sampling.max_new_tokens = {left} or less" if left > 0 else "")
        )


def halved(error: BaseException, size: int, setting: str) -> int:
    """Return half the size after an error that says that memory ran out, and log it.

    Args:
        error: What was raised.
        size: What was tried at once.
        setting: The setting that bounds it, for the message.

    Raises:
        ModelError: Not even one at a time fits.
    """
    if size <= 1:
        raise ModelError(
            f"memory ran out with {setting} at 1 already; take a smaller model, or shorter prompts and completions"
        ) from error
    log.warning("memory ran out with %s = %d; going on with %d, which changes no result", setting, size, size // 2)
    return size // 2
