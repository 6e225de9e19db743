"""Waits for the commands of a launcher."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from steadyrl.core.errors import EngineError
from steadyrl.lab.launchers.command import Ended, Launcher

POLL_S = 0.5
SILENT_S = 600.0  # a scheduler that is restarted or overloaded does not answer for some minutes


def endings(launcher: Launcher, names: set[str], stop: Callable[[], bool], look: Callable[[], None]) -> Iterator[Ended]:
    """Yield each command that ended, until all have; what still runs is stopped where the loop is left.

    Args:
        launcher: It has started them.
        names: Of the commands that run. One that has ended is removed; whoever starts it again adds it.
        stop: Asked again and again; once it returns True, the commands are stopped.
        look: Called again and again, to show how far they are.

    Raises:
        EngineError: The scheduler has not answered for ten minutes.
    """
    stopped, answered = False, time.monotonic()
    try:
        while names:
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
                names.discard(ending.name)
                yield ending
    finally:
        if names:
            launcher.stop()
