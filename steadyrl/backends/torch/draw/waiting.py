"""Prompts that wait for a row of the batch that is being decoded, in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from steadyrl.backends.torch.device import to_device
from steadyrl.backends.torch.draw.cache import Prefix

# Reads ids [G, P], visible [G, P] and what is known before them; returns logits [G, V] and a cache.
Read = Callable[[torch.Tensor, torch.Tensor, list[Prefix | None]], tuple[torch.Tensor, Any]]


class Waiting:
    """The prompts that were not read yet; what needs no reading of one is emptied when the prompt is read."""

    def __init__(self, prompts: Sequence[np.ndarray], prefixes: list[Prefix | None], pad_id: int, device: torch.device):
        self._prompts, self._prefixes, self._pad_id, self._device = prompts, prefixes, pad_id, device
        self._texts = [prompt.tobytes() for prompt in prompts]
        prefix_lengths = [0 if prefix is None else len(prefix) for prefix in prefixes]
        unread = [len(prompt) - n for prompt, n in zip(prompts, prefix_lengths, strict=True)]
        widest = [np.maximum.accumulate(lengths[::-1])[::-1] for lengths in (prefix_lengths, unread)]
        self._columns: list[int] = [*(widest[0] + widest[1]).tolist(), 0]
        self._next = 0

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._prompts) - self._next

    @property
    def columns(self) -> int:
        """Return how many columns of a cache any of those that wait takes, at most."""
        return self._columns[self._next]

    def fitting(self, free: int, rows: int) -> int:
        """Return how many enter now: samples of one prompt together, so that it is read once.

        Args:
            free: Rows that have ended. If they are half of all, samples of one prompt need not enter together.
            rows: All rows.
        """
        count = end = min(free, len(self))
        while 0 < end < len(self) and self._texts[self._next + end - 1] == self._texts[self._next + end]:
            end -= 1
        return end or (count if 2 * free >= rows else 0)

    def read(self, count: int, read: Read) -> tuple[list[int], torch.Tensor, Any, torch.Tensor | None]:
        """Read the next prompts, equal ones once.

        Returns:
            Their numbers, the logits [count, V] of their first tokens, the cache, and the row of the cache [count] that
            each of them continues; None for that if each has one of its own.
        """
        numbers = list(range(self._next, self._next + count))
        self._next += count
        row_of_text: dict[str | bytes, int] = {}
        owner = [row_of_text.setdefault(self._texts[number], len(row_of_text)) for number in numbers]
        first = [numbers[owner.index(row)] for row in range(len(row_of_text))]
        prefixes = [self._prefixes[number] for number in first]
        for number in numbers:
            self._prefixes[number] = None  # ``prefixes`` alone holds it, and is emptied
        unread = [
            self._prompts[number][0 if prefix is None else len(prefix) :]
            for number, prefix in zip(first, prefixes, strict=True)
        ]
        width = max(map(len, unread))
        ids = np.full((len(unread), width), self._pad_id, np.int64)  # [G, P]
        visible = np.zeros((len(unread), width), bool)
        for row, prompt in enumerate(unread):  # padded on the left
            ids[row, width - len(prompt) :] = prompt
            visible[row, width - len(prompt) :] = True
        logits, cache = read(to_device(ids, self._device), to_device(visible, self._device), prefixes)
        prefixes.clear()
        if len(first) == count:
            return numbers, logits, cache, None
        owner_tensor = to_device(np.array(owner), self._device)  # [count]
        return numbers, logits[owner_tensor], cache, owner_tensor
