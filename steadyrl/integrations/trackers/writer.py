"""The process that sends a run to one tracker while it goes on.

Its command is ``python -m steadyrl.integrations.trackers.writer RUN NAME``. A process of its own, because a library
that hangs, crashes or waits for a server must not reach the training: it shares neither memory nor the interpreter
with it, and it can be stopped whatever it does.
"""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

from steadyrl.core.rundir import RunDir
from steadyrl.integrations.trackers.follow import Follower

LOOK_S = 1.0
NICE = 10  # the training goes first


def main(path: str, name: str) -> None:
    """Send a run until the process that trains it closes our input, which it does at its end, however that comes."""
    os.nice(NICE)
    run = RunDir(Path(path))
    follower = Follower(run, name)
    while not select.select([sys.stdin], [], [], LOOK_S)[0]:
        follower.send()
    status = run.status
    follower.close("killed" if status == "running" else status)


if __name__ == "__main__":
    main(*sys.argv[1:])
