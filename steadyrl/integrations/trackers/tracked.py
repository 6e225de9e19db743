"""Starts the processes that send a run to its trackers, and says at the end what they could not send."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from steadyrl.core.errors import ConfigError, MissingExtraError, RunError
from steadyrl.core.plugins import BUILT_IN, load, require_members
from steadyrl.core.rundir import RunDir, last_line, read_lines
from steadyrl.core.words import counted, shell_command
from steadyrl.integrations.trackers.follow import sent_until, state_file
from steadyrl.integrations.trackers.tracker import Reporting, Tracker

MARK = "STEADYRL_TRACKER"  # in the environment of a writer and of all that it starts
MOST_SHOWN = 160  # characters of an exception
END_S = 20.0  # for all trackers together, after the run has ended


def require_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that are not known or not installed, before a run begins.

    Raises:
        ConfigError: No tracker has that name.
        MissingExtraError: Its package is not installed.
    """
    for name in names:
        tracker = load("tracker", name)
        require_members(f"the tracker '{name}'", tracker, Tracker, (Reporting,), later=("anew",))
        needs = tracker.needs
        if not isinstance(needs, str) or not (needs.isidentifier() or not needs):
            raise ConfigError(f"run.trackers: '{name}' needs {needs!r:.100}; expected the name of one package, or ''")
        if needs and importlib.util.find_spec(needs) is None:
            extra = f"'steadyrl[{needs}]'" if name in BUILT_IN["tracker"] else needs
            raise MissingExtraError(
                f"the tracker '{name}' needs the package {needs}, which is not installed; install it with: "
                f"pip install {extra}"
            )


@contextmanager
def tracked(run: RunDir, names: Sequence[str], note: Callable[[str], None]) -> Iterator[None]:
    """Send a run to trackers while it goes on; then wait for them, at most ``END_S``, and note what was not sent."""
    mark = secrets.token_hex(16)
    writers = {name: _start(run, name, f"{mark}-{number}") for number, name in enumerate(names)}
    try:
        yield
    finally:
        deadline = time.monotonic() + END_S
        for writer in writers.values():
            with contextlib.suppress(BrokenPipeError):  # of a writer that is gone
                assert writer.stdin is not None
                writer.stdin.close()
        for number, (name, writer) in enumerate(writers.items()):
            _wait(writer, deadline, f"{mark}-{number}")
            if shortfall := _shortfall(run, name, writer.returncode):
                note(shortfall)


def _start(run: RunDir, name: str, mark: str) -> subprocess.Popen[bytes]:
    log_file = state_file(run, name).with_suffix(".log")
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with log_file.open("wb") as log:
        # A group of its own: Ctrl-C is for the training, which says when the end is. What the library starts is in it.
        return subprocess.Popen(
            [sys.executable, "-m", "steadyrl.integrations.trackers.writer", str(run.path.resolve()), name],
            stdin=subprocess.PIPE,  # its end tells the writer that the run has ended, also where this process is killed
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, MARK: mark},
        )


def _wait(writer: subprocess.Popen[bytes], deadline: float, mark: str) -> None:
    """Wait for a process and end it if it takes too long; unless it ended well, end all that it started, too."""
    try:
        if writer.wait(max(0.0, deadline - time.monotonic())) == 0:
            return
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(writer.pid, signal.SIGKILL)
        writer.wait()
    # A library may start processes in sessions of their own; W&B's keeps trying to reach its server for hours.
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it is gone, or somebody else's; where there is no /proc, none are found
            if f"{MARK}={mark}".encode() in file.read_bytes():
                os.kill(int(file.parent.name), signal.SIGKILL)


def _shortfall(run: RunDir, name: str, code: int | None) -> str:
    """Return what a tracker did not get, in one line; "" if it got all."""
    steps = {line["step"] for line in read_lines(run.metrics_file) if type(line.get("step")) is int}
    try:
        unsent = sum(step > sent_until(run, name) for step in steps)
    except RunError as error:
        return f"{name}: {error}"
    if code == 0 and not unsent:
        return ""
    log_file = state_file(run, name).with_suffix(".log")
    last = last_line(log_file)[:MOST_SHOWN]  # its exception, where it failed
    was_killed = code == -signal.SIGKILL  # by _wait
    cause = f"it did not end within {END_S:.0f} s" if was_killed else f"{last}; see {log_file}".lstrip("; ")
    if not unsent:
        return f"{name}: all steps were sent, but the run was not closed there ({cause})"
    later = f"send them with: {shell_command('metrics', run.path, '--to', name)}"
    return f"{name}: {unsent} of {counted(len(steps), 'step')} were not sent ({cause}); {later}"
