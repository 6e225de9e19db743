"""The rows that are decoded at a time: those that have ended leave, and prompts that wait take their places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from steadyrl.backends.torch.device import to_device
from steadyrl.backends.torch.draw.cache import Cache
from steadyrl.backends.torch.draw.tokens import Tokens
from steadyrl.backends.torch.draw.waiting import Read, Waiting
from steadyrl.core.counting.count import tell

# Of the rows so many must have ended before the batch is made smaller: that copies the cache and, on a GPU, captures
# another graph.
LEAVE_SHARE = {"cpu": 0.1, "cuda": 0.5}
# Of the rows so many must have ended before prompts that wait are read into their places: nothing is captured for that.
ENTER_SHARE = {"cpu": 0.1, "cuda": 0.25}
# Tokens between looks at how many rows are left, at what truncation left and at stop strings: on a GPU a look waits.
LOOK_EVERY = {"cpu": 1, "cuda": 8}

# From logits [B, V] and uniform numbers [B]: tokens [B], their log-probs [B], and what they were drawn from [B, V].
Choose = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
# The rows of a cache that are given up, the numbers of their prompts, and the cache.
Leave = Callable[[Sequence[int], Sequence[int], Any], None]


class Engine(Protocol):
    """What goes on from prompts that were read: our decoder, or transformers' own forward."""

    def step(self, tokens: torch.Tensor, cache: Any) -> torch.Tensor:
        """Append tokens [B]; return logits [B, V] float32 of the next."""


class Rows:
    """B rows of a cache, in which as many prompts begin.

    Attributes:
        numbers: [B], the prompt of each row.
        start_steps: [B], the step at which each row began.
        prompts: [B] int64 on the device, as ``numbers``.
        ages: [B] int64 on the device, how many tokens were drawn for each.
        active: [B] bool on the device, False for rows that have ended.
        cache: Keys and values of what was read.
        logits: [B, V], of the next tokens.
    """

    def __init__(self, engine: Engine, waiting: Waiting, count: int, read: Read):
        self._engine, self._waiting = engine, waiting
        numbers, self.logits, self.cache, owner = waiting.read(count, read)
        if owner is not None:
            self.cache.spread(owner)
        self.numbers, self.start_steps = np.array(numbers), np.zeros(count, np.int64)
        self.prompts = to_device(self.numbers, self.logits.device)
        self.ages, self.active = torch.zeros_like(self.prompts), torch.ones_like(self.prompts, dtype=torch.bool)

    def step(self, tokens: torch.Tensor) -> None:
        """Append tokens [B]."""
        if isinstance(self.cache, Cache) and self.cache.used == self.cache.length:
            self.cache.compact(self._waiting.columns)
        self.logits = self._engine.step(tokens, self.cache)

    def keep(self, remaining: np.ndarray) -> None:
        """Keep these rows, in this order."""
        rows = to_device(remaining, self.prompts.device)
        self.cache.take(rows)
        self.numbers, self.start_steps = self.numbers[remaining], self.start_steps[remaining]
        self.prompts, self.ages, self.active = self.prompts[rows], self.ages[rows], self.active[rows]

    def enter(self, free: np.ndarray, step: int, read: Read) -> None:
        """Let the next prompts begin at a step, in the place of rows that have ended."""
        numbers, logits, cache, owner = self._waiting.read(len(free), read)
        rows = to_device(free, self.prompts.device)
        owner = torch.arange(len(free), device=rows.device) if owner is None else owner
        self.cache.enter(rows, cache, owner, self._waiting.columns)
        self.numbers[free], self.start_steps[free] = numbers, step
        self.prompts = self.prompts.index_copy(0, rows, to_device(self.numbers[free], rows.device))
        self.ages, self.active = self.ages.index_fill(0, rows, 0), self.active.index_fill(0, rows, True)
        self.logits = logits if len(free) == len(self.numbers) else self.logits.index_copy(0, rows, logits)


def decode(rows: Rows, tokens: Tokens, waiting: Waiting, choose: Choose, read: Read | None, leave: Leave) -> None:
    """Draw tokens until every row has ended and no prompt waits.

    Args:
        rows: The first ones.
        tokens: Takes what is drawn.
        waiting: The other prompts; none where ``read`` is None.
        choose: Draws.
        read: Reads prompts that enter.
        leave: Is called before rows leave the cache.
    """
    kind, max_tokens, total = rows.prompts.device.type, tokens.sampling.max_new_tokens, len(rows.numbers) + len(waiting)
    look_every = LOOK_EVERY.get(kind, 1)
    step = last_look = 0
    while True:
        choice = choose(rows.logits, tokens.uniforms[rows.prompts, rows.ages])
        tokens.add(rows.prompts, rows.ages, rows.active, choice)
        step, rows.ages = step + 1, rows.ages + 1
        ids, full, entering = choice[0], step - rows.start_steps == max_tokens, np.zeros(0, np.int64)
        look = full.any() or step % look_every == 0
        if look:
            tokens.look(rows.prompts, rows.ages, step - last_look)
            last_look = step
        rows.active = ~tokens.ended[rows.prompts]
        if look:
            ended = full if full.all() else full | ~rows.active.cpu().numpy()
            tell("completions", total - len(waiting) - int((~ended).sum()), total)
        if look and ended.any():
            entering, leaving = _turnover(ended, full, waiting, kind)
            if (leavers := np.concatenate([entering, leaving])).size:
                leave(leavers.tolist(), rows.numbers[leavers].tolist(), rows.cache)
            if len(leaving) == len(ended):
                return
            if leaving.size:
                remaining = np.setdiff1d(np.arange(len(ended)), leaving)
                rows.keep(remaining)
                ids, entering = ids[to_device(remaining, ids.device)], np.searchsorted(remaining, entering)
        # Prompts enter behind the step, for their first tokens are not drawn yet; where all rows are new, it is spared.
        if len(entering) < len(rows.numbers):
            rows.step(ids)
        if entering.size and read is not None:
            rows.enter(entering, step, read)


def _turnover(ended: np.ndarray, full: np.ndarray, waiting: Waiting, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the places that prompts enter, in their order, and those that are given up.

    Args:
        ended: [B] bool, the rows that have ended.
        full: [B] bool, those that may not have another token; they do not stay.
        waiting: The prompts that may enter.
        kind: Of the device.
    """
    free = np.argsort(-(ended + 1 * full), kind="stable")[: ended.sum()]  # those that are full come first
    count, rows = 0, len(ended)
    if free.size and (free.size >= ENTER_SHARE.get(kind, 0.1) * rows or full.any()):
        count = waiting.fitting(len(free), rows)
    entering, ended_rows = np.sort(free[:count]), free[count:]
    enough = len(waiting) == count and ended_rows.size >= LEAVE_SHARE.get(kind, 0.1) * rows
    give_up = full[ended_rows].any() or enough or ended.all()
    return entering, ended_rows if give_up else ended_rows[:0]
