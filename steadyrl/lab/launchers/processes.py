"""Processes of this machine.

On Linux a command of steadyrl is forked from one process that has loaded what most runs need: loading it takes five
seconds of a processor, as long as twenty steps of a small model. Elsewhere, and other programs, are started anew.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Protocol

from steadyrl.core.sections import Section
from steadyrl.lab.launchers.command import OURS, Command, Ended

# Of these a fork has what can be imported. None starts a thread that a run waits for: a fork would lose it.
LOADED = (
    "steadyrl.cli.study", "steadyrl.cli.tune", "steadyrl.loop.launch", "steadyrl.backends.torch.backend",
    "transformers.models.auto.modeling_auto", "transformers.models.auto.tokenization_auto",
)  # fmt: skip


class Settings(Section):
    """Processes of this machine have no settings."""


def build(settings: Settings, at_once: int) -> Processes:
    """Return the launcher."""
    return Processes(at_once)


class Processes:
    """Starts commands as processes, so many at a time."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._waiting: deque[Command] = deque()
        self._running: dict[str, _Process] = {}
        self._not_begun: list[Ended] = []

    def start(self, commands: Sequence[Command]) -> None:
        """Queue commands, and begin as many as may run."""
        self._waiting.extend(commands)
        self._fill()

    def ended(self) -> list[Ended]:
        """Return what ended, and begin what waited for it."""
        codes = {name: process.poll() for name, process in self._running.items()}
        ended = [Ended(name, code) for name, code in codes.items() if code is not None]
        for ending in ended:
            del self._running[ending.name]
        self._fill()
        ended, self._not_begun = [*ended, *self._not_begun], []
        return ended

    def stop(self) -> None:
        """Send SIGTERM to all processes."""
        self._not_begun += [Ended(command.name, None, "was not begun") for command in self._waiting]
        self._waiting.clear()
        for process in self._running.values():
            process.terminate()

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._at_once:
            command = self._waiting.popleft()
            begin = _Forked if sys.platform == "linux" and command.argv[: len(OURS)] == OURS else _started
            self._running[command.name] = begin(command)


class _Process(Protocol):
    def poll(self) -> int | None: ...
    def terminate(self) -> None: ...


def _started(command: Command) -> _Process:
    with command.log.open("ab") as log:
        # In a session of its own, a process does not get the Ctrl-C of the terminal: it is asked to stop.
        return subprocess.Popen(
            command.argv,
            cwd=command.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


class _Forked:
    def __init__(self, command: Command) -> None:
        words = command.argv[len(OURS) :]
        self._process = _server().Process(target=_run, args=(words, command.folder, command.log, dict(os.environ)))
        self._process.start()

    def poll(self) -> int | None:
        return self._process.exitcode

    def terminate(self) -> None:
        self._process.terminate()


@cache
def _server() -> multiprocessing.context.ForkServerContext:
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(list(LOADED))
    if threading.current_thread() is threading.main_thread():
        # A Ctrl-C while it loads would end it in a traceback; what is ignored stays so in a new process.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        ensure_running()
        signal.signal(signal.SIGINT, before)
    return server


def _run(words: Sequence[str], folder: Path, log: Path, environment: Mapping[str, str]) -> None:
    """Be the command: in a session of its own, with its folder, its log and today's environment."""
    os.setsid()
    os.chdir(folder)
    with log.open("ab") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["steadyrl", *words]
    try:
        runpy.run_module("steadyrl", run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # multiprocessing leaves them out
