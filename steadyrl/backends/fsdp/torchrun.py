"""What torchrun says of this process: which rank it is, among how many."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

from steadyrl.config import Config
from steadyrl.errors import ConfigError

NAME = "fsdp"  # of the backend whose ranks work together
Handler = Callable[[int, FrameType | None], Any] | int | None
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # what asks a process to end


@dataclass(frozen=True)
class Place:
    """One process among all that train one model.

    Attributes:
        rank: Its number; rank 0 runs the loop and writes the run directory.
        ranks: How many there are.
        here: Its number on this machine, which is that of its GPU.
        here_ranks: How many there are on this machine.
    """

    rank: int = 0
    ranks: int = 1
    here: int = 0
    here_ranks: int = 1


def place() -> Place:
    """Return the place of this process; where torchrun did not start it, it is alone."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return Place()
    return Place(*(int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")))


def require_ranks(config: Config) -> None:
    """Refuse a backend that trains in one process where torchrun started several: each would train a run of its own.

    Raises:
        ConfigError: It is such a backend.
    """
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
        came: What was noted.
        answer: How each is answered from the end of the context on; by default as before.
    """

    def __init__(self) -> None:
        self.came: list[int] = []
        self.answer: dict[int, Handler] = {
            number: signal.signal(number, lambda number, frame: self.came.append(number)) for number in _ENDS
        }

    def __enter__(self) -> Noted:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self.answer.items():
            signal.signal(number, handler)
        if error is None and self.came:
            signal.raise_signal(self.came[0])


@functools.cache
def noted() -> Noted:
    """Return what is noted from when this is first called."""
    return Noted()
