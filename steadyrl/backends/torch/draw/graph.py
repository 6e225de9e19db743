"""Decoding steps as CUDA graphs: one launch a token instead of hundreds.

A graph is captured for the rows of a cache. Prompts that take the places of finished rows go on with it; when the batch
becomes smaller, another one is captured. Captured on a GPU only; the step that is captured is tested on a CPU. Models
that ask the device for a number in every step (experts that count their tokens, rotations that depend on the longest
row) cannot be captured, and go on without.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from steadyrl.backends.torch.draw.cache import Cache
from steadyrl.backends.torch.draw.decoder import Decoder

log = logging.getLogger(__name__)

Function = Callable[..., Any]
# How many rows steps of a model were captured for: calls before a capture take as long as 40 tokens of a small model.
_CAPTURED_ROW_COUNTS: WeakKeyDictionary[nn.Module, set[int]] = WeakKeyDictionary()


class GraphDecoder:
    """A decoder whose steps are replayed graphs; see ``batch.Engine``."""

    def __init__(self, decoder: Decoder):
        self._decoder, self._captures = decoder, True
        self._captured: _Step | None = None

    def step(self, tokens: torch.Tensor, cache: Cache) -> torch.Tensor:
        """See Engine."""
        if self._captures and (self._captured is None or self._captured.keys is not cache.keys):
            self._captured = None  # other rows have other keys
            self._captured = self._try_capture(lambda: _Step(self._decoder, cache))
        if self._captured is None:
            return self._decoder.step(tokens, cache)
        self._captured.follow(cache)
        cache.positions = cache.positions + 1
        cache.used += 1
        logits: torch.Tensor = self._captured(tokens)
        return logits

    def with_logits(self, function: Function) -> Function:
        """Return a function of logits [B, V] and uniform numbers [B], captured for the logits of captured steps."""
        captured: Captured | None = None

        def replay_or_call(logits: torch.Tensor, uniform: torch.Tensor) -> Any:
            nonlocal captured
            if self._captures and self._captured is not None and logits is self._captured.outputs:
                if captured is None or captured.inputs[0] is not logits:
                    captured = self._try_capture(lambda: Captured(function, (logits, uniform.clone())))
                if captured is not None:
                    return captured(logits, uniform)
            return function(logits, uniform)

        return replay_or_call

    def _try_capture(self, capture: Callable[[], Any]) -> Any:
        """Return what is captured; None where it cannot be, and then nothing is tried again."""
        try:
            try:
                return capture()
            except torch.OutOfMemoryError:  # a capture gets none of the memory that was freed elsewhere, if it is kept
                torch.cuda.empty_cache()
            return capture()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._captures = False
            log.info("decoding steps are not captured as a CUDA graph: %s", str(error).splitlines()[0])
            return None


class Captured:
    """A function of tensors whose launches are captured once and replayed.

    Args:
        function: It waits for nothing that the device computes, from its second call on.
        inputs: Tensors that keep their place in memory; what it is called with later is copied there.
        rewind: Takes back what calls of the function have changed.
        set_up: Whether such a function was captured before, so that it need not be called first.

    Attributes:
        inputs: The same.
        outputs: What the function returns, in tensors that every replay overwrites.
    """

    def __init__(
        self,
        function: Function,
        inputs: tuple[torch.Tensor, ...],
        rewind: Callable[[], None] | None = None,
        set_up: bool = False,
    ):
        self._rewind = rewind or (lambda: None)
        self.inputs = inputs
        self._function = function  # a graph reads and writes the tensors that it holds, and keeps none of them
        torch.cuda.synchronize()
        try:
            if not set_up:
                self._call()
            self._capture()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # sizes that decide on a kernel are others than before
            if not set_up:
                raise
            self._call()
            self._capture()

    def _call(self) -> None:
        """Call the function: libraries set themselves up, and kernels are compiled."""
        with torch.cuda.stream(_stream_and_pool(torch.cuda.current_device())[0]):
            self._function(*self.inputs)
            self._rewind()
            with _no_waits():
                self._function(*self.inputs)
            self._rewind()
        torch.cuda.synchronize()

    def _capture(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        with _sharing(self._graph):
            self.outputs = self._function(*self.inputs)
        self._rewind()

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """Replay; return ``outputs``."""
        for buffer, tensor in zip(self.inputs, inputs, strict=True):
            if buffer is not tensor:
                buffer.copy_(tensor)
        self._graph.replay()
        return self.outputs


@contextmanager
def _sharing(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    """Capture what is launched inside, in memory that all such graphs share.

    What one graph leaves is what another takes: graphs of one sampling are replayed in turns, and need nothing of what
    another has computed but its results, which are kept. Unlike torch.cuda.graph this gives no freed memory back
    first: it would be asked for again in a moment.
    """
    stream, pool_graph = _stream_and_pool(torch.cuda.current_device())
    with torch.cuda.stream(stream):
        # What other threads ask of the device meanwhile, a judge's or NCCL's, does not end the capture.
        graph.capture_begin(pool_graph.pool(), "thread_local")
        try:
            yield
        except BaseException:  # whatever it is, the capture must end before anything else is launched
            with suppress(RuntimeError):  # it says that the capture failed, and not why
                graph.capture_end()
            raise
        graph.capture_end()
    torch.cuda.synchronize()


@cache
def _stream_and_pool(card: int) -> tuple[Any, torch.cuda.CUDAGraph]:
    """Return a stream of a card to capture on, and a graph that keeps the memory which others share."""
    stream, graph = torch.cuda.Stream(card), torch.cuda.CUDAGraph()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        torch.zeros(1, device="cuda")
        graph.capture_end()
    return stream, graph


@contextmanager
def _no_waits() -> Iterator[None]:
    """Raise RuntimeError where something waits for the device: it could not be captured."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


class _Step(Captured):
    """A step for the rows of one cache."""

    def __init__(self, decoder: Decoder, cache: Cache):
        self.keys, self._changes = cache.keys, cache.changes
        self._state = state = StepState(cache)
        rows, captured_rows = len(cache.positions), _CAPTURED_ROW_COUNTS.setdefault(decoder.body, set())
        super().__init__(
            lambda tokens: state.step(decoder, tokens, cache),
            (torch.zeros_like(cache.positions),),
            lambda: state.rewind(cache),
            rows in captured_rows,
        )
        captured_rows.add(rows)

    def follow(self, cache: Cache) -> None:
        """Go on from where prompts have entered, or columns were dropped."""
        if self._changes != cache.changes:
            self._state.rewind(cache)
            self._changes = cache.changes


class StepState:
    """What moves from step to step, in tensors that keep their place in memory."""

    def __init__(self, cache: Cache):
        self._positions = cache.positions.clone()
        self._column = torch.tensor([cache.used], device=cache.positions.device)
        self._visible = torch.zeros(len(cache.positions), cache.length, dtype=torch.bool, device=cache.positions.device)
        self.rewind(cache)

    def rewind(self, cache: Cache) -> None:
        """Stand where the cache stands."""
        self._positions.copy_(cache.positions)
        self._column.fill_(cache.used)
        self._visible.zero_()
        self._visible[:, : cache.used] = True if cache.visible is None else cache.visible[:, : cache.used]

    def step(self, decoder: Decoder, tokens: torch.Tensor, cache: Cache) -> torch.Tensor:
        """Append tokens [B], return logits [B, V], and move on by one column."""
        self._visible.index_fill_(1, self._column, True)
        logits = decoder.step_at(tokens, self._positions, self._column, self._visible, cache)
        self._positions += 1
        self._column += 1
        return logits
