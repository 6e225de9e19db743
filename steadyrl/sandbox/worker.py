"""A warm, clean interpreter that forks once for every candidate; runs inside the jail.

The worker receives two pipes over the socket on descriptor 0: one that holds a job, and one for its results. It forks
and waits for the fork to end, for the time to be up, or for the other end of the socket to be gone. Then it kills what
is left and says how the fork ended. Only the fork reads the job: memory that a process has freed keeps its bytes, and
every later fork would get a copy of what the worker had once read. The job holds code and arguments, never an expected
value. Nothing but the standard library.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import gc
import json
import os
import random
import select
import signal
import socket
import struct
import sys
import time
from typing import Any, NoReturn

from steadyrl.sandbox import candidate, landlock, seccomp
from steadyrl.sandbox.libc import libc

if sys.platform != "win32":
    import resource  # here, since what is imported before a fork costs the fork nothing

# What candidates import most; loading them here, once, makes importing them there free.
WARM = (
    "abc array base64 bisect calendar cmath collections.abc copy csv ctypes dataclasses datetime decimal enum "
    "fractions functools hashlib heapq html io itertools json keyword math numbers operator pprint queue random re "
    "statistics string struct sys textwrap threading time traceback types typing unicodedata uuid zlib"
).split()
READY, START = b"R", b"S"
STATUS = struct.Struct("=c?iQ")  # how it ended, whether it began, the status of waitpid, microseconds
ENDED, TIME_UP = b"E", b"T"
BEGIN_S = 20.0  # from the fork to a program's first statement: only our own code runs then, in a millisecond
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36
_CAPABILITY_VERSION = 0x20080522
_RESULTS, _LIFE, _JOB, _FIRST_OTHER, _DESCRIPTORS = 3, 4, 5, 6, 1 << 16


def main() -> None:
    """Serve jobs until the other end of the socket is closed."""
    rules: dict[str, Any] = json.loads(sys.argv[1])
    os.closerange(3, _DESCRIPTORS)  # whatever came along from the parent
    control = socket.socket(fileno=0)
    for name in WARM:
        with contextlib.suppress(ImportError):  # a distribution may leave parts of the library out
            __import__(name)
    rules["filter"] = seccomp.build() if rules["seccomp"] else None  # once, for every fork
    null = os.open(os.devnull, os.O_RDWR)
    _lock(rules)
    gc.collect()
    gc.freeze()  # forks then do not write to the pages of what is here now
    control.sendall(READY)
    while True:
        start, pipes, _, _ = socket.recv_fds(control, len(START), 2)
        if not start:
            return
        status = _run(pipes[0], pipes[1], control, null, rules)
        for pipe in pipes:
            os.close(pipe)
        control.sendall(status)


def _lock(rules: dict[str, Any]) -> None:
    """Give up, for this process and all that come from it, what no candidate may have."""
    if sys.platform != "linux":
        return
    # Undumpable: no process of the same user may look into the memory of this one.
    libc().prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if rules["readable"] is not None:
        landlock.read_only(rules["readable"])
    header, empty = struct.pack("=Ii", _CAPABILITY_VERSION, 0), bytes(24)
    if libc().capset(header, empty) != 0:
        raise OSError(ctypes.get_errno(), "capabilities could not be dropped")


def _run(job: int, results: int, control: socket.socket, null: int, rules: dict[str, Any]) -> bytes:
    """Fork, wait, kill what is left; return the status."""
    # Its end says that the candidate is gone. A socket, since a pipe could be opened anew by its name in /proc, and
    # a candidate that took back the byte which says that it began would be taken for a failure of the machine.
    life, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        _become_candidate(job, results, theirs.fileno(), null, rules)
    theirs.close()
    with life:
        # A machine that stands still for longer than a program may take must not lose the worker.
        ready = _wait(life, select.POLLIN, control, BEGIN_S)
        started = time.monotonic()
        began = life in ready and life.recv(len(READY)) == READY
        if began:  # whatever else the candidate writes there wakes nobody
            ready = _wait(life, 0, control, rules["wall_s"])
    status = _bury(pid, alone=rules["alone"])
    if control in ready:
        sys.exit(0)
    return STATUS.pack(ENDED if ready else TIME_UP, began, status, int((time.monotonic() - started) * 1e6))


def _wait(life: socket.socket, events: int, control: socket.socket, seconds: float) -> list[socket.socket]:
    """Wait for events or the end of the candidate's socket, or the end of ours; return which of them it was."""
    poller = select.poll()
    poller.register(life, events)
    poller.register(control, select.POLLIN)  # nothing is sent during a job: ready means closed
    found = [descriptor for descriptor, _ in poller.poll(max(0.0, seconds) * 1000)]
    return [one for one in (life, control) if one.fileno() in found]


def _bury(pid: int, alone: bool) -> int:
    """Kill a candidate and all that it started; return how it had ended.

    Args:
        pid: Not waited for yet, so that the number cannot belong to another process.
        alone: There is nobody else in this process's pid namespace.
    """
    if not alone:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    while True:
        if alone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)  # everyone but this process and the namespace's first
        try:
            if os.waitpid(-1, 0 if alone else os.WNOHANG) == (0, 0):
                return status
        except ChildProcessError:
            return status


def _become_candidate(job: int, results: int, life: int, null: int, rules: dict[str, Any]) -> NoReturn:
    """Turn this fork into a candidate; never returns."""
    try:
        os.setsid()
        held = [os.dup(descriptor) for descriptor in (null, null, null, results, life, job)]
        for target, descriptor in enumerate(held):
            os.dup2(descriptor, target)
        os.closerange(_FIRST_OTHER, max(256, *held) + 1)
        if sys.platform == "linux":
            libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _limit(rules)
        random.seed(0)
        if rules["filter"] is not None:
            seccomp.install(rules["filter"], os.getpid())
        os.write(_LIFE, READY)
        candidate.run(_JOB, _RESULTS, builtins)
    finally:
        os._exit(0)


def _limit(rules: dict[str, Any]) -> None:
    memory = rules["memory_mib"] << 20
    for what, soft, hard in (
        (resource.RLIMIT_CPU, rules["cpu_s"], rules["cpu_s"] + 1),
        (resource.RLIMIT_AS, memory, memory),
        (resource.RLIMIT_FSIZE, 0, 0),
        (resource.RLIMIT_NOFILE, rules["open_files"], rules["open_files"]),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_NPROC, rules["processes"], rules["processes"]),
    ):
        resource.setrlimit(what, (soft, hard))
