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
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing.forkserver import ensure_running
from pathlib import Path

from steadyrl.core.sections import Section
from steadyrl.lab.launchers.command import OURS, Command, Ended, Queue

# Of these a fork has what can be imported. None starts a thread that a run waits for: a fork would lose it.
LOADED = (
    "steadyrl.cli.study", "steadyrl.cli.tune", "steadyrl.loop.launch", "steadyrl.backends.torch.backend",
    "transformers.models.auto.modeling_auto", "transformers.models.auto.tokenization_auto",
)  # fmt: skip


class Settings(Section):
    """Processes of this machine have no settings."""


def build(settings: Settings, at_once: int) -> Queue:
    """Return the launcher."""
    return Queue(at_once, _Process)


class _Process:
    def __init__(self, command: Command) -> None:
        self._name = command.name
        self._process: subprocess.Popen[bytes] | multiprocessing.process.BaseProcess
        if sys.platform != "linux" or command.argv[: len(OURS)] != OURS:
            with command.log.open("ab") as log:
                # In a session of its own, a process does not get the Ctrl-C of the terminal: it is asked to stop.
                self._process = subprocess.Popen(
                    command.argv,
                    cwd=command.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            return
        work = command.argv[len(OURS) :], command.folder, command.log, dict(os.environ)
        self._process = _server().Process(target=_run, args=work)
        self._process.start()

    def poll(self) -> Ended | None:
        process = self._process
        code = process.poll() if isinstance(process, subprocess.Popen) else process.exitcode
        return None if code is None else Ended(self._name, code)

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
    os.setsid()  # a session of its own, so that the Ctrl-C of the terminal does not reach it
    os.chdir(folder)
    with log.open("ab") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    os.environ.clear()  # the server, from which this was forked, has the environment of its own start
    os.environ.update(environment)
    sys.argv = ["steadyrl", *words]
    try:
        runpy.run_module("steadyrl", run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # multiprocessing leaves them out
