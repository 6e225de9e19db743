"""Waits for the commands of a launcher."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from steadyrl.core.errors import EngineError
from steadyrl.lab.launchers.command import Ended, Launcher

POLL_S = 0.5
SILENT_S = 600.0  # a scheduler that is restarted or overloaded does not answer for some minutes


def wait(
    launcher: Launcher,
    names: Iterable[str],
    stop: Callable[[], bool],
    look: Callable[[], None],
    again: Callable[[Ended], bool],
) -> None:
    """Wait until all commands ended.

    Args:
        launcher: It has started them.
        names: Of the commands.
        stop: Asked again and again; once it returns True, the commands are stopped.
        look: Called again and again, to show how far they are.
        again: Called with each command that ended; True if it was started again.

    Raises:
        EngineError: The scheduler has not answered for ten minutes.
    """
    waiting, stopped, answered = set(names), False, time.monotonic()
    try:
        while waiting:
            if stop() and not stopped:
                launcher.stop()
                stopped = True
            time.sleep(POLL_S)
            look()
            try:
                ended = launcher.ended()
            except EngineError:
                if time.monotonic() - answered > SILENT_S:
                    raise
                continue
            answered = time.monotonic()
            for ending in ended:
                if not again(ending):
                    waiting.discard(ending.name)
    finally:
        if waiting:
            launcher.stop()
