"""What torchrun says of this process: which rank it is, among how many."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from steadyrl.core.counting.interrupts import SIGNALS
from steadyrl.core.errors import ConfigError

if TYPE_CHECKING:
    from steadyrl.core.config import Config

NAME = "fsdp"  # of the backend whose ranks work together
Handler = Callable[[int, FrameType | None], Any] | int | None


@dataclass(frozen=True)
class Place:
    """One process among all that train one model."""

    rank: int = 0  # its number; rank 0 runs the loop and writes the run directory
    ranks: int = 1  # how many there are
    local_rank: int = 0  # its number on this machine, which is that of its GPU
    local_ranks: int = 1  # how many there are on this machine


def place() -> Place:
    """Return the place of this process; where torchrun did not start it, it is alone."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return Place()
    return Place(*(int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")))


def require_ranks(config: Config) -> None:
    """Refuse (ConfigError) a backend of one process where torchrun started several, each a run of its own."""
    ranks, name = place().ranks, config.backend.name
    if ranks > 1 and name != NAME:
        raise ConfigError(
            f"torchrun started {ranks} processes, and backend.name = '{name}' trains in one; add backend.name={NAME}, "
            "or start `steadyrl train` without torchrun"
        )


class Noted:
    """Signals that ask this process to end are noted until the context ends, and then answered.

    torchrun sends one as soon as another rank has died, and this one is to say which: it must be able to ask.

    Attributes:
        received: What was noted.
        handlers: How each is answered from the end of the context on; by default as before.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self.handlers: dict[int, Handler] = {}

    def listen(self) -> None:
        """Note signals from now on, also those that somebody else has begun to answer since."""
        for number in SIGNALS:
            if (old_handler := signal.getsignal(number)) != self._note:
                self.handlers[number] = old_handler
                signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)

    def __enter__(self) -> Noted:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        if error is None and self.received:
            signal.raise_signal(self.received[0])


def noted() -> Noted:
    """Note signals from now on; return what is noted since this was first called."""
    _NOTED.listen()
    return _NOTED


_NOTED = Noted()
