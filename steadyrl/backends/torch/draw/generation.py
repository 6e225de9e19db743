"""Completions of many prompts, as many of them at a time as memory holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import torch

from steadyrl.backends.limits import AtOnce
from steadyrl.backends.stops import StopStrings
from steadyrl.backends.torch import memory
from steadyrl.backends.torch.draw.forward import can_pad
from steadyrl.backends.torch.draw.prefixes import Prefixes
from steadyrl.backends.torch.draw.sampler import sample
from steadyrl.backends.torch.load.model import SplitModel
from steadyrl.core.counting.count import tell
from steadyrl.core.protocols import Tokenizer
from steadyrl.core.types import Completion, Sampling


class Generation:
    """Samples from a model: so many completions at the same time, fewer once memory has run out."""

    def __init__(self, split: SplitModel, kind: str, tokenizer: Tokenizer, lower: torch.dtype | None, rows: int):
        self._split, self._tokenizer, self._lower = split, tokenizer, lower
        self._at_once = AtOnce(rows, "backend.args.generate_rows", memory.ran_out)
        # Where the model's own cache cannot be padded, only prompts of one length go together.
        self._can_pad = split.ours or can_pad(split, kind)
        self._prefixes: Prefixes | None = None

    @contextmanager
    def keeping(self, together: bool) -> Iterator[None]:
        """See PrefixCaching; a model whose keys and values are not ours to keep reads everything again."""
        if self._split.ours:
            self._prefixes = Prefixes(self._at_once.size, together)
        try:
            yield
        finally:
            self._prefixes = None

    def __call__(
        self,
        prompts: Sequence[np.ndarray],
        sampling: Sampling,
        seeds: Sequence[int],
        context: Callable[[], AbstractContextManager[object]],
    ) -> list[Completion]:
        """Return a completion per prompt, read within a context; see Backend."""
        prefixes = self._prefixes
        known_prefixes = [None] * len(prompts) if prefixes is None else prefixes.hand_over(prompts)
        unread = [len(prompt) - len(prefix or ()) for prompt, prefix in zip(prompts, known_prefixes, strict=True)]
        # The longest first: those that enter later find the columns that they need.
        order = sorted(range(len(prompts)), key=unread.__getitem__, reverse=True)
        completions: dict[int, Completion] = {}

        def draw(most_rows: int) -> None:
            rows = [i for i in order if i not in completions]
            if not self._can_pad:
                rows = [i for i in rows if len(prompts[i]) == len(prompts[rows[0]])]
            if not self._split.ours:
                rows = rows[:most_rows]
            row_prefixes = [known_prefixes[i] for i in rows]
            for i in rows:
                known_prefixes[i] = None  # ``row_prefixes`` alone holds it, and is emptied
            with context():
                sample(
                    self._split,
                    [prompts[i] for i in rows],
                    sampling,
                    [seeds[i] for i in rows],
                    self._tokenizer.end_ids,
                    self._tokenizer.pad_id,
                    self._lower,
                    StopStrings(sampling.stop, self._tokenizer.decode) if sampling.stop else None,
                    row_prefixes,
                    None if prefixes is None else prefixes.keep,
                    most_rows,
                    lambda number, completion: completions.update({rows[number]: completion}),
                )

        while len(completions) < len(prompts):
            self._at_once.fitting(draw, len(prompts) - len(completions))
            tell("completions in all", len(completions), len(prompts))
        return [completions[number] for number in range(len(prompts))]
