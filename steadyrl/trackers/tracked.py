"""Starts the processes that send a run to its trackers, and says at the end what they could not send."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from steadyrl.errors import MissingExtraError, RunError
from steadyrl.plugins import load
from steadyrl.rundir import RunDir, read_lines
from steadyrl.trackers.follow import sent_until, state_file

END_S = 20.0  # for all trackers together, after the run has ended


def require_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that are not known or not installed, before a run begins.

    Raises:
        ConfigError: No tracker has that name.
        MissingExtraError: Its package is not installed.
    """
    for name in names:
        needs = load("tracker", name).needs
        if importlib.util.find_spec(needs) is None:
            raise MissingExtraError(
                f"run.trackers names '{name}', and the package {needs} is not installed; install it with: "
                f"pip install 'steadyrl[{needs}]'"
            )


@contextmanager
def tracked(run: RunDir, names: Sequence[str], note: Callable[[str], None]) -> Iterator[None]:
    """Send a run to trackers while it goes on; afterwards wait for them, but not longer than ``END_S``.

    Args:
        run: A run directory that says "running".
        names: Of the trackers.
        note: Told what was not sent.
    """
    writers = {name: _start(run, name) for name in names}
    try:
        yield
    finally:
        until = time.monotonic() + END_S
        for name, writer in writers.items():
            _wait(writer, until)
            if lost := _said(run, name, writer.returncode):
                note(lost)


def _start(run: RunDir, name: str) -> subprocess.Popen[bytes]:
    said = state_file(run, name).with_suffix(".log")
    said.parent.mkdir(parents=True, exist_ok=True)
    with said.open("wb") as log:
        # A group of its own: Ctrl-C is for the training, which says when the end is. What the library starts is in it.
        return subprocess.Popen(
            [sys.executable, "-m", "steadyrl.trackers.writer", str(run.path.resolve()), name],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait(writer: subprocess.Popen[bytes], until: float) -> None:
    """Wait for a process and end it if it takes too long, with all that it started."""
    try:
        writer.wait(max(0.0, until - time.monotonic()))
        return
    except subprocess.TimeoutExpired:
        pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(writer.pid, signal.SIGKILL)
    writer.wait()


def _said(run: RunDir, name: str, code: int | None) -> str:
    """Return what a tracker did not get, in one line; "" if it got all."""
    steps = {line["step"] for line in read_lines(run.metrics_file) if type(line.get("step")) is int}
    try:
        lost = sum(step > sent_until(run, name) for step in steps)
    except RunError as error:
        return f"{name}: {error}"
    if code == 0 and not lost:
        return ""
    said = state_file(run, name).with_suffix(".log")
    why = f"it did not end within {END_S:.0f} s" if code == -signal.SIGKILL else f"see {said}"
    if not lost:
        return f"{name}: all steps were sent, but the run was not closed there ({why})"
    later = f"send them with: steadyrl metrics {run.path} --to {name}"
    return f"{name}: {lost} of {len(steps)} steps were not sent ({why}); {later}"
