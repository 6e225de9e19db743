"""Job arrays of SLURM, by the commands sbatch, squeue, sacct and scancel of the cluster.

Every command is a task of an array. SLURM begins a task again after a preemption or the loss of a node (--requeue).
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence

from pydantic import Field

from steadyrl.core.errors import ConfigError, EngineError
from steadyrl.core.sections import Section
from steadyrl.lab.launchers.command import Command, Ended

_POLL_S = 10.0  # administrators ask for no more
_ANSWER_S = 120.0  # that a command of SLURM may take
_SAVE_S = 120  # before the time limit a run is asked to end, and saves
# As squeue and sacct name them; a task in any other state goes on or begins again.
_ENDED = tuple("BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED TIMEOUT".split())
_FORGOTTEN = "Invalid job id"  # what scancel says of a job that ended, and squeue some minutes after its end

_IN_QUEUE = ("--noheader", "--array", "--states=all", "--Format=JobArrayID:40,State:30,exit_code:20")
_IN_ACCOUNTS = ("--noheader", "--parsable2", "--allocations", "--format=JobID,State,ExitCode")


class Settings(Section):
    """What a run needs."""

    cpus: int = Field(1, ge=1, description="CPU cores of a run.")
    gpus: int = Field(0, ge=0, description="GPUs of a run.")
    partition: str = Field("", description="Partition. Empty takes the cluster's default.")
    time: str = Field("", description="Time limit of a run, such as '4:00:00'. Empty takes the partition's.")
    options: list[str] = Field([], description="Further options of sbatch, such as '--account=lab' or '--mem=32G'.")


def build(settings: Settings, at_once: int) -> Slurm:
    """Return the launcher."""
    return Slurm(settings, at_once)


class Slurm:
    """Starts commands as tasks of job arrays."""

    def __init__(self, settings: Settings, at_once: int) -> None:
        self._settings, self._at_once = settings, at_once
        self._tasks: dict[str, str] = {}  # names of the commands by array and task ("123_4")
        self._last_poll = 0.0

    def start(self, commands: Sequence[Command]) -> None:
        """Submit an array with a task for each command."""
        settings = self._settings
        options = [
            f"--array=0-{len(commands) - 1}%{self._at_once}",
            "--job-name=steadyrl",
            f"--output={commands[0].log.parent}/slurm-%A_%a.log",  # what is written before a command begins
            "--requeue",
            "--open-mode=append",
            f"--signal=B:TERM@{_SAVE_S}",
            f"--cpus-per-task={settings.cpus}",
            *([f"--gpus={settings.gpus}"] if settings.gpus else []),
            *([f"--partition={settings.partition}"] if settings.partition else []),
            *([f"--time={settings.time}"] if settings.time else []),
            *settings.options,
        ]
        try:
            # Each task becomes its command, so that signals to the script reach it.
            cases = [f"{number}) {command.shell()};;" for number, command in enumerate(commands)]
            script = "\n".join(["#!/bin/sh", 'case "$SLURM_ARRAY_TASK_ID" in', *cases, "esac", ""])
            output = _ask(["sbatch", "--parsable", *options], script)
        except EngineError as error:
            raise ConfigError(f"{error}; fix what it says with --launcher-args, or start the study again") from error
        array = output.strip().partition(";")[0]  # a federation adds the name of the cluster
        self._tasks |= {f"{array}_{number}": command.name for number, command in enumerate(commands)}

    def ended(self) -> list[Ended]:
        """Return the tasks that ended; SLURM is asked every ten seconds."""
        now = time.monotonic()
        if not self._tasks or now - self._last_poll < _POLL_S:
            return []
        self._last_poll = now
        listed: dict[str, tuple[int | None, str]] = {}
        for array in self._arrays():  # with those that ended some minutes ago
            for line in _ask_if_known(["squeue", f"--jobs={array}", *_IN_QUEUE]).splitlines():
                task, state, status = line.split()
                listed[task] = _end(state, os.waitstatus_to_exitcode(int(status)))
        forgotten = [task for task in self._tasks if task not in listed]
        if forgotten:
            listed |= dict(_accounts(forgotten))
        ended = [
            Ended(self._tasks[task], *listed.get(task, (None, "SLURM does not know it any more")))
            for task in self._tasks
            if task not in listed or listed[task][1] in _ENDED
        ]
        ended_names = {ending.name for ending in ended}
        self._tasks = {task: name for task, name in self._tasks.items() if name not in ended_names}
        return ended

    def stop(self) -> None:
        """Cancel what waits, and send SIGTERM to what runs."""
        self._last_poll = 0.0
        for array in self._arrays():
            _ask_if_known(["scancel", "--state=PENDING", array])
            _ask_if_known(["scancel", "--batch", "--signal=TERM", array])

    def _arrays(self) -> list[str]:
        return sorted({task.partition("_")[0] for task in self._tasks})


def _accounts(tasks: Sequence[str]) -> Iterator[tuple[str, tuple[int | None, str]]]:
    """Yield what the accounting says of tasks that the queue has forgotten; nothing where the cluster keeps none."""
    try:
        output = _ask(["sacct", f"--jobs={','.join(tasks)}", *_IN_ACCOUNTS])
    except EngineError:
        return
    for line in output.splitlines():
        task, state, status = line.split("|")
        code, _, signal = status.partition(":")
        state = state.partition(" ")[0]  # "CANCELLED by 1000"
        yield task, _end(state, -int(signal) if signal not in ("", "0") else int(code))


def _end(state: str, code: int) -> tuple[int | None, str]:
    # A task that was cancelled before it began has a code of 0, which says nothing.
    return (None if state == "CANCELLED" and not code else code), state


def _ask_if_known(argv: list[str]) -> str:
    """Return what a command of SLURM prints of an array; nothing where SLURM holds none of its tasks any more."""
    try:
        return _ask(argv)
    except EngineError as error:
        if _FORGOTTEN in str(error):
            return ""
        raise


def _ask(argv: list[str], script: str = "") -> str:
    """Return what a command of SLURM prints; EngineError where it fails, ConfigError where there is none."""
    try:
        done = subprocess.run(argv, input=script, capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    except OSError as error:
        raise ConfigError(
            f"the launcher 'slurm' needs the command '{argv[0]}' on the PATH: {error.strerror}; start the study on a "
            "login machine of the cluster, or take another --launcher"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"{argv[0]} did not answer within {_ANSWER_S:.0f} s") from error
    if done.returncode:
        reason = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise EngineError(f"{argv[0]}: {reason}")
    return done.stdout
