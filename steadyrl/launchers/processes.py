"""Processes of this machine."""

from __future__ import annotations

import subprocess
from collections import deque
from collections.abc import Sequence

from steadyrl.launchers.command import Command, Ended
from steadyrl.sections import Section


class Settings(Section):
    """Processes of this machine have no settings."""


def build(settings: Settings, at_once: int) -> Processes:
    """Return the launcher."""
    return Processes(at_once)


class Processes:
    """Starts commands as processes, so many at a time."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._waiting: deque[Command] = deque()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._not_begun: list[Ended] = []

    def start(self, commands: Sequence[Command]) -> None:
        """Queue commands, and begin as many as may run."""
        self._waiting.extend(commands)
        self._fill()

    def ended(self) -> list[Ended]:
        """Return what ended, and begin what waited for it."""
        codes = {name: process.poll() for name, process in self._running.items()}
        found = [Ended(name, code) for name, code in codes.items() if code is not None]
        for one in found:
            del self._running[one.name]
        self._fill()
        found, self._not_begun = [*found, *self._not_begun], []
        return found

    def stop(self) -> None:
        """Send SIGTERM to all processes."""
        self._not_begun += [Ended(command.name, None, "was not begun") for command in self._waiting]
        self._waiting.clear()
        for process in self._running.values():
            process.terminate()

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._at_once:
            command = self._waiting.popleft()
            with command.log.open("ab") as log:
                # In a session of its own, a process does not get the Ctrl-C of the terminal: it is asked to stop.
                self._running[command.name] = subprocess.Popen(
                    command.argv,
                    cwd=command.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
