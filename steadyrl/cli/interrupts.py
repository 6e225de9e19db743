"""Ctrl-C and its like: the first one ends a run after its step, with a checkpoint."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from steadyrl.backends.fsdp.torchrun import ENDS
from steadyrl.cli.terminal import note


class Interrupts:
    """What was asked by signals: during the steps to stop after the present one, outside them to end at once."""

    def __init__(self) -> None:
        self.asked = False
        self._inside = False

    @contextmanager
    def within_steps(self) -> Iterator[None]:
        """Make the first signal a request to stop after the step, the second an interrupt at once."""
        self._inside = True
        try:
            yield
        finally:
            self._inside = False

    def handle(self, number: int, frame: object) -> None:
        """Answer a signal."""
        if self.asked or not self._inside:
            raise KeyboardInterrupt
        self.asked = True
        note("stopping after this step and saving; press Ctrl-C again to stop at once")


@contextmanager
def interruptible() -> Iterator[Interrupts]:
    """Answer the signals that ask a run to end, as long as the context lasts."""
    interrupts = Interrupts()
    before = {number: signal.signal(number, interrupts.handle) for number in ENDS}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
