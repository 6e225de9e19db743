"""The process that sends a run to one tracker while it goes on.

Its command is ``python -m steadyrl.integrations.trackers.writer RUN NAME``. A process of its own, because a library
that hangs, crashes or waits for a server must not reach the training: it shares neither memory nor the interpreter
with it, and it can be stopped whatever it does.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from steadyrl.core.rundir import RunDir
from steadyrl.integrations.trackers.follow import Follower

LOOK_S = 1.0
NICE = 10  # the training goes first


def main(path: str, name: str) -> None:
    """Send a run until it ends, or until the process that trains it is gone."""
    os.nice(NICE)
    trainer = os.getppid()
    run = RunDir(Path(path))
    follower = Follower(run, name)
    while True:
        status = run.status
        gone = os.getppid() != trainer
        follower.send()
        if status != "running" or gone:
            follower.close("killed" if status == "running" else status)
            return
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
