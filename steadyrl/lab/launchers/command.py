"""What a launcher is: it starts commands somewhere, says which of them ended, and stops them. It knows nothing of runs.

Where nothing else queues commands, ``Queue`` begins so many at a time, and the others when one of these has ended.

The commands, the folders that they work in and their logs are on a file system that every machine of the launcher sees.
"""

from __future__ import annotations

import shlex
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from steadyrl.core import config as configs
from steadyrl.core import plugins
from steadyrl.core.errors import ConfigError, EngineError
from steadyrl.core.rundir import last_line
from steadyrl.core.sections import Section

OURS = (sys.executable, "-m", "steadyrl")


@dataclass(frozen=True)
class Command:
    """A program to start."""

    name: str  # how the launcher calls it when it ended
    argv: tuple[str, ...]
    folder: Path  # where it starts; an absolute path
    log: Path  # the file that its output is appended to; an absolute path in a folder that exists

    def shell(self, *before: str) -> str:
        """Return a line for a shell that becomes the command, behind words as of `env`, so that signals reach it."""
        words = shlex.join((*before, *self.argv))
        return f"cd {shlex.quote(str(self.folder))} && exec {words} >> {shlex.quote(str(self.log))} 2>&1"

    def error(self, ended: Ended) -> str:
        """Return the last line of its log, without a leading "error:"; "" where it was killed, or said nothing."""
        return "" if ended.code is None or ended.code < 0 else last_line(self.log).removeprefix("error: ")


@dataclass(frozen=True)
class Ended:
    """A command that ended."""

    name: str
    code: int | None  # its exit status, negative for a signal; None where it was not begun or nobody knows
    why: str = ""  # what the launcher says of it, such as "TIMEOUT"; it may be empty

    @property
    def reason(self) -> str:
        """Return why it ended, in a word or two."""
        return self.why or f"code {self.code}"


class Launcher(Protocol):
    """Starts commands on one machine or many.

    A module is a launcher if it has a section ``Settings`` and a function ``build(settings, at_once)`` that returns one
    of these; ``at_once`` is the number of commands that may run at the same time.
    """

    def start(self, commands: Sequence[Command]) -> None:
        """Start commands, or queue them.

        Raises:
            ConfigError: The scheduler is not there, or refuses them.
        """

    def ended(self) -> list[Ended]:
        """Return the commands that ended since the last call.

        Raises:
            EngineError: The scheduler does not answer now.
        """

    def stop(self) -> None:
        """Send SIGTERM to what runs, and begin nothing that waits; ``ended`` returns all of them in time."""


def our_command(name: str, words: Sequence[str], logs: Path) -> Command:
    """Return a command of steadyrl that starts where this process was started, and makes the folder of its log."""
    logs.mkdir(parents=True, exist_ok=True)
    return Command(name, (*OURS, *words), Path.cwd(), (logs / f"{name}.log").absolute())


def choose(name: str, args: Mapping[str, object], overrides: Sequence[str], at_once: int) -> Launcher:
    """Return a launcher by its short name or import path; overrides (KEY=VALUE) replace what ``args`` says.

    Raises:
        ConfigError: There is no such launcher, or a setting is wrong.
        MissingExtraError: It needs a package that is not installed.
    """
    plugin, raw_settings = plugins.load("launcher", name), dict(args)
    section = getattr(plugin, "Settings", None)
    if not isinstance(section, type) or not issubclass(section, Section):
        raise ConfigError(f"launcher.name: '{name}' has no class 'Settings' derived from steadyrl.core.config.Section")
    for override in overrides:
        key, sign, text = (part.strip() for part in override.partition("="))
        if not sign or not key:
            raise ConfigError(f"--launcher-args {override:.120}: expected KEY=VALUE, as in partition=gpu")
        field = plugin.Settings.model_fields.get(key)
        # A text stays one: of a time limit such as 04:00:00 TOML makes a time of the day.
        raw_settings[key] = text if field is not None and field.annotation is str else configs.parse_value(text)
    settings = configs.validate(plugin.Settings, raw_settings, "launcher.args")
    launcher: Launcher = plugins.make("launcher", name, settings, at_once)
    return launcher


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
