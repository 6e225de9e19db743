"""Ctrl-C and its like: the first one ends a run after its step, with a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from steadyrl.cli.terminal import note
from steadyrl.core.counting.interrupts import handling_signals, is_at_once


class Interrupts:
    """What was asked by signals: during the steps to stop after the present one, outside them to end at once."""

    def __init__(self) -> None:
        self.stop_requested = False
        self.cut_steps = False  # from the first step to the last; after them, whether an error or a signal ended them
        self._inside = False

    @contextmanager
    def within_steps(self) -> Iterator[None]:
        """Make the first signal a request to stop after the step, the second an interrupt at once.

        While rewards or environments work, which may wait for others without end, the first one interrupts too.
        """
        self._inside = self.cut_steps = True
        try:
            yield
            self.cut_steps = False
        finally:
            self._inside = False

    def handle(self, number: int, frame: object) -> None:
        """Answer a signal."""
        if self.stop_requested or not self._inside or is_at_once():
            raise KeyboardInterrupt
        self.stop_requested = True
        note("stopping after this step and saving; press Ctrl-C again to stop at once")


@contextmanager
def interruptible() -> Iterator[Interrupts]:
    """Answer the signals that ask a run to end, as long as the context lasts; an interrupt ends the command.

    A run that is interrupted has saved its last whole step, and has noted that.
    """
    interrupts = Interrupts()
    try:
        with handling_signals(interrupts.handle):
            yield interrupts
    except KeyboardInterrupt:
        note("stopped")
        raise typer.Exit(130) from None
