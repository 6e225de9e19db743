"""Has commands carried out by a launcher: shows how far they are, and starts again what was cut from outside.

A command that was cut while nobody asked for it (a preemption, a time limit, a lost machine) is started again if it has
saved a checkpoint since it was started; without one it would only be cut again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, Protocol

from steadyrl.core.errors import EngineError
from steadyrl.lab.jobs import POLL_S, Follow
from steadyrl.lab.launchers.command import Command, Ended, Launcher

SILENT_S = 600.0  # a scheduler that is restarted or overloaded does not answer for some minutes

End = tuple[Literal["done", "cut", "failed"], str]  # how a command ended, and why


class Work(Protocol):
    """What a command does in another process, perhaps on another machine: known by what it writes, since its start."""

    @property
    def has_saved(self) -> bool:
        """Whether there is a newer checkpoint than at its start."""

    def report(self, follow: Follow) -> None:
        """Show what is new."""

    def end(self, ended: Ended) -> End:
        """Return how it ended, with what to do if it does not go on."""


def run_commands(
    launcher: Launcher, commands: Mapping[str, Command], begin: Callable[[str], Work], follow: Follow
) -> dict[str, End]:
    """Start commands, and wait until all have ended; ``begin`` returns the work of one that is about to start.

    Returns:
        How each ended, by name; what failed after it was stopped is left out.

    Raises:
        ConfigError: The launcher cannot start them.
        EngineError: The scheduler has not answered for ten minutes.
    """
    works, ends = {name: begin(name) for name in commands}, {}
    launcher.start(list(commands.values()))
    for ended in _endings(launcher, works, follow):
        name, work = ended.name, works.pop(ended.name)
        work.report(follow)  # what it wrote since the last look; of a run that has ended no step may be told
        state, text = work.end(ended)
        if state == "cut" and not follow.stop():
            if work.has_saved:
                follow.event((name, "cut", f"cut ({ended.reason}); it goes on from its last checkpoint"))
                works[name] = begin(name)
                launcher.start([commands[name]])
                continue
            state = "failed"
        if state != "failed" or not follow.stop():
            ends[name] = state, text
            event = "failed" if state == "failed" else "end"
            follow.event((name, event, "interrupted" if state == "cut" else text))
    return ends


def _endings(launcher: Launcher, works: Mapping[str, Work], follow: Follow) -> Iterator[Ended]:
    """Yield each command that ended, as long as there are works; what still runs is stopped where the loop is left."""
    stopped, answered = False, time.monotonic()
    try:
        while works:
            if follow.stop() and not stopped:
                launcher.stop()
                stopped = True
            time.sleep(POLL_S)
            for work in works.values():
                work.report(follow)
            try:
                ended = launcher.ended()
            except EngineError:
                if time.monotonic() - answered > SILENT_S:
                    raise
                continue
            answered = time.monotonic()
            yield from ended
    finally:
        if works:
            launcher.stop()
