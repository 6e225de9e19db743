"""Decoding steps as CUDA graphs: one launch a token instead of hundreds.

A graph is captured for the rows that are left; when finished rows leave the batch, another one is. Captured on a GPU
only; the step that is captured is tested on a CPU. Models that ask the device for a number in every step (experts that
count their tokens, rotations that depend on the longest row) cannot be captured, and go on without.
"""

from __future__ import annotations

import logging

import torch

from steadyrl.backends.torch.cache import Cache
from steadyrl.backends.torch.decoder import Decoder

log = logging.getLogger(__name__)
WARM_UP = 2  # runs before a capture, as torch's documentation asks: libraries set themselves up in the first


class GraphDecoder:
    """A decoder whose steps are replayed graphs; see ``sampler.Engine``."""

    def __init__(self, decoder: Decoder):
        self._decoder, self._captures = decoder, True
        self._captured: _Captured | None = None

    def step(self, tokens: torch.Tensor, cache: Cache) -> torch.Tensor:
        """See Engine."""
        if self._captures and (self._captured is None or self._captured.keys is not cache.keys):
            self._captured = None  # other rows have other keys
            try:
                self._captured = _Captured(self._decoder, cache)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                self._captures = False
                log.info("decoding steps are not captured as a CUDA graph: %s", str(error).splitlines()[0])
        if self._captured is None:
            return self._decoder.step(tokens, cache)
        cache.places = cache.places + 1
        cache.used += 1
        return self._captured.replay(tokens)


class _Captured:
    """A graph of one step for the rows of one cache."""

    def __init__(self, decoder: Decoder, cache: Cache):
        self.keys = cache.keys
        self._tokens = torch.zeros_like(cache.places)
        self._moving = StepState(cache)
        torch.cuda.synchronize()
        asks = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")  # what waits for the device cannot be captured
        try:
            with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
                for _ in range(WARM_UP):
                    self._moving.step(decoder, self._tokens, cache)
        finally:
            torch.cuda.set_sync_debug_mode(asks)
        torch.cuda.synchronize()
        self._moving.rewind(cache)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._logits = self._moving.step(decoder, self._tokens, cache)
        self._moving.rewind(cache)

    def replay(self, tokens: torch.Tensor) -> torch.Tensor:
        self._tokens.copy_(tokens)
        self._graph.replay()
        return self._logits


class StepState:
    """What moves from step to step, in tensors that keep their place in memory."""

    def __init__(self, cache: Cache):
        self._places = cache.places.clone()
        self._column = torch.tensor([cache.used], device=cache.places.device)
        self._visible = torch.zeros(len(cache.places), cache.length, dtype=torch.bool, device=cache.places.device)
        self.rewind(cache)

    def rewind(self, cache: Cache) -> None:
        """Stand where the cache stands."""
        self._places.copy_(cache.places)
        self._column.fill_(cache.used)
        self._visible.zero_()
        self._visible[:, : cache.used] = True if cache.visible is None else cache.visible[:, : cache.used]

    def step(self, decoder: Decoder, tokens: torch.Tensor, cache: Cache) -> torch.Tensor:
        """Append tokens [B], return logits [B, V], and move on by one column."""
        self._visible.index_fill_(1, self._column, True)
        logits = decoder.step_at(tokens, self._places, self._column, self._visible, cache)
        self._places += 1
        self._column += 1
        return logits
