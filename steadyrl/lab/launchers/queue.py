"""A launcher that begins so many commands at a time, and the others when one of these has ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from steadyrl.core.errors import ConfigError, EngineError
from steadyrl.lab.launchers.command import Command, Ended


class Running(Protocol):
    """A command that has begun."""

    def poll(self) -> Ended | None:
        """Return how it ended, None while it runs.

        Raises:
            EngineError: Nobody knows now.
        """

    def terminate(self) -> None:
        """Ask it to end; it may take its time."""


class Queue:
    """Starts commands, so many at a time; an error in ``begin`` leaves its command in the queue."""

    def __init__(self, at_once: int, begin: Callable[[Command], Running]) -> None:
        self._at_once, self._begin = at_once, begin
        self._waiting: deque[Command] = deque()
        self._running: list[Running] = []
        self._ended: list[Ended] = []

    def start(self, commands: Sequence[Command]) -> None:
        """Queue commands, and begin as many as may run."""
        self._waiting.extend(commands)
        try:
            self._fill()
        except EngineError as error:
            raise ConfigError(f"{error}; fix what it says with --launcher-args, or start it again") from error

    def ended(self) -> list[Ended]:
        """Return what ended, and begin what waited for it."""
        for command in list(self._running):
            if (ending := command.poll()) is not None:
                self._running.remove(command)
                self._ended.append(ending)
        self._fill()
        ended, self._ended = self._ended, []
        return ended

    def stop(self) -> None:
        """Ask what runs to end, and begin nothing that waits."""
        self._ended += [Ended(command.name, None, "was not begun") for command in self._waiting]
        self._waiting.clear()
        for command in self._running:
            command.terminate()

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._at_once:
            self._running.append(self._begin(self._waiting[0]))
            self._waiting.popleft()
