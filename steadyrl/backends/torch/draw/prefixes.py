"""What one call read and wrote is kept for the next, so that a prompt which goes on from another is not read again.

The turns of an episode are such prompts: each is the one before it, what the policy wrote, and what the environment
answered. Without this, an episode of ten turns is read from its beginning ten times.

Source:
    Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention" (arXiv 2309.06180),
    section 4.4, and Zheng et al., "SGLang" (arXiv 2312.07104), section 3, keep it by hashes and in a tree. Here a call
    goes on from the call before it, and nothing older is kept; where turns are not drawn together, what no prompt went
    on from yet is kept, and the oldest goes first where there is no room.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from steadyrl.backends.torch.draw.cache import Cache, Prefix

LOOK_BACK = 8  # sequences right before a prompt, in their order, among which the one that it goes on from is looked for


class Prefixes:
    """Sequences that a call has read, ``limit`` of them at most; see ``PrefixCaching`` for what is ``together``."""

    def __init__(self, limit: int, together: bool = True):
        self._limit, self._together = limit, together
        self._cached: dict[bytes, Prefix] = {}

    def hand_over(self, prompts: Sequence[np.ndarray]) -> list[Prefix | None]:
        """Return what is known of the beginning of each prompt, and forget it; all of it where turns come together.

        At least one token of a prompt is left to read, for its logits are not kept.
        """
        cached, self._cached = self._cached, {}
        order = sorted(cached)  # a sequence stands before those that go on from it
        begun = [_beginning(order, prompt[:-1].astype(np.int32).tobytes()) for prompt in prompts]
        if not self._together:
            used = {ids for ids in begun if ids is not None}
            self._cached = {ids: prefix for ids, prefix in cached.items() if ids not in used}
        return [None if ids is None else cached[ids] for ids in begun]

    def keep(self, ids: np.ndarray, cache: Cache, row: int) -> None:
        """Keep a row of a cache, whose first tokens are these ids [N]; where there is no room, it is left out."""
        if not self._together and len(self._cached) >= self._limit:
            del self._cached[next(iter(self._cached))]
        if len(self._cached) < self._limit:
            self._cached[ids.astype(np.int32).tobytes()] = cache.prefix(row, len(ids))


def _beginning(order: Sequence[bytes], prompt: bytes) -> bytes | None:
    index = bisect_right(order, prompt)
    candidates = reversed(order[max(0, index - LOOK_BACK) : index])
    return next((ids for ids in candidates if prompt.startswith(ids)), None)
