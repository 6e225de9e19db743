"""What backends do at the limits of a model and of a machine: refuse a text too long, and take less at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from steadyrl.core.counting.count import tell
from steadyrl.core.errors import ModelError

log = logging.getLogger(__name__)
Result = TypeVar("Result")

# Bytes of weights and moments that are copied before the updates of a step, so that they can be taken back. The copy
# takes some hundredths of a second, less than 2 % of a step of a model of this size (22 million trained numbers).
MOST_REMEMBERED = 1 << 28
MOST_COMPARED = 1 << 31  # bytes of gradients that are held beside one another, at most


def require_room(context: int | None, prompt: int, new: int) -> None:
    """Refuse (ModelError) a text beyond a model's positions (None: no limit): some write nonsense there."""
    if context is not None and prompt + new > context:
        room = context - prompt
        raise ModelError(
            f"a prompt of {prompt} tokens and sampling.max_new_tokens = {new} go beyond the {context} tokens that the "
            "model's positions reach; shorten the prompt"
            + (f" or set sampling.max_new_tokens = {room} or less" if room > 0 else "")
        )


class AtOnce:
    """How much a backend does at once: half as much after each lack of memory, and no result depends on that."""

    def __init__(self, size: int, setting: str, ran_out: Callable[[Exception], bool]):
        self.size, self._setting, self._ran_out = size, setting, ran_out

    def fitting(self, work: Callable[[int], Result], limit: int | None = None) -> Result:
        """Do some work of a size, at most what there is to do, and again with half where memory runs out.

        Raises:
            ModelError: Not even one at a time fits.
        """
        while True:
            size = self.size if limit is None else min(self.size, limit)
            try:
                return work(size)
            except (RuntimeError, MemoryError) as error:
                if not self._ran_out(error):
                    raise
                if size <= 1:
                    raise ModelError(
                        f"memory ran out with {self._setting} at 1 already; take a smaller model, or shorter prompts "
                        "and completions"
                    ) from error
            self.size = size // 2
            log.warning(
                "memory ran out with %s = %d; going on with %d, which changes no result", self._setting, size, self.size
            )

    def map_batches(
        self, order: Sequence[int], work: Callable[[Sequence[int]], Sequence[Result]], noun: str
    ) -> list[Result]:
        """Do some work for all items, in an order and as many at once as fit; return the results by index."""
        done: dict[int, Result] = {}  # by index
        while len(done) < len(order):
            results = self.fitting(lambda size: work(order[len(done) : len(done) + size]), len(order) - len(done))
            done.update(zip(order[len(done) :], results, strict=False))
            tell(noun, len(done), len(order))
        return [done[index] for index in range(len(order))]
