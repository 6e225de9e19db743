"""Decoding steps as CUDA graphs: one launch a token instead of hundreds.

A graph is captured for the rows that are left; when finished rows leave the batch, another one is. Captured on a GPU
only; the step that is captured is tested on a CPU. Models that ask the device for a number in every step (experts that
count their tokens, rotations that depend on the longest row) cannot be captured, and go on without.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import torch

from steadyrl.backends.torch.cache import Cache
from steadyrl.backends.torch.decoder import Decoder

log = logging.getLogger(__name__)
WARM_UP = 2  # runs before a capture, as torch's documentation asks: libraries set themselves up in the first

Function = Callable[..., Any]


class GraphDecoder:
    """A decoder whose steps are replayed graphs; see ``sampler.Engine``."""

    def __init__(self, decoder: Decoder):
        self._decoder, self._captures = decoder, True
        self._captured: _Step | None = None

    def step(self, tokens: torch.Tensor, cache: Cache) -> torch.Tensor:
        """See Engine."""
        if self._captures and (self._captured is None or self._captured.keys is not cache.keys):
            self._captured = None  # other rows have other keys
            try:
                self._captured = _Step(self._decoder, cache)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                self._captures = False
                log.info("decoding steps are not captured as a CUDA graph: %s", str(error).splitlines()[0])
        if self._captured is None:
            return self._decoder.step(tokens, cache)
        cache.places = cache.places + 1
        cache.used += 1
        found: torch.Tensor = self._captured(tokens)
        return found

    def with_logits(self, function: Function) -> Function:
        """Return a function of logits [B, V] and another tensor that is captured for the logits of captured steps."""
        captured: list[Captured] = []

        def of(logits: torch.Tensor, more: torch.Tensor) -> Any:
            if self._captured is None or logits is not self._captured.found:
                return function(logits, more)
            if not captured or captured[0].inputs[0] is not logits:
                captured[:] = [Captured(function, logits, more.clone())]
            return captured[0](logits, more)

        return of


class Captured:
    """A function of tensors whose launches are captured once and replayed.

    Args:
        function: It waits for nothing that the device computes.
        inputs: Tensors that keep their place in memory; what it is called with later is copied there.

    Attributes:
        inputs: The same.
        found: What the function returns, in tensors that every replay overwrites.
    """

    def __init__(self, function: Function, *inputs: torch.Tensor, rewind: Callable[[], None] = lambda: None):
        self.inputs = inputs
        stream, keeper = _capturing()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            with _no_waits():
                for _ in range(WARM_UP):
                    function(*inputs)
            rewind()
            torch.cuda.synchronize()
            self._graph, self.found = _capture(lambda: function(*inputs), keeper.pool())
        torch.cuda.synchronize()
        rewind()

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """Replay; return ``found``."""
        for place, given in zip(self.inputs, inputs, strict=True):
            if place is not given:
                place.copy_(given)
        self._graph.replay()
        return self.found


def _capture(work: Callable[[], Any], *pool: Any) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Capture what some work launches; return the graph, and what the work returns.

    Not by torch.cuda.graph, which gives all freed memory back first: it would be asked for again in a moment.
    """
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(*pool)
    try:
        found = work()
    except BaseException:
        with suppress(RuntimeError):  # it says that the capture failed, and not why
            graph.capture_end()
        raise
    graph.capture_end()
    return graph, found


@cache
def _capturing() -> tuple[Any, torch.cuda.CUDAGraph]:
    """Return the stream that all captures are made on, and the graph that keeps the memory which they share.

    What one graph leaves is what the next one takes: graphs of one sampling are replayed in turns, and need nothing of
    what another has computed but its results, which are kept.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph, _ = _capture(lambda: torch.zeros(1, device="cuda"))
    return stream, graph


@contextmanager
def _no_waits() -> Iterator[None]:
    """Raise RuntimeError where something waits for the device: it could not be captured."""
    asks = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(asks)


class _Step(Captured):
    """A step for the rows of one cache."""

    def __init__(self, decoder: Decoder, cache: Cache):
        self.keys = cache.keys
        moving = StepState(cache)
        super().__init__(
            lambda tokens: moving.step(decoder, tokens, cache),
            torch.zeros_like(cache.places),
            rewind=lambda: moving.rewind(cache),
        )


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
