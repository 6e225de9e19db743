"""A warm, clean interpreter that forks once for every candidate; runs inside the jail.

The worker receives three descriptors over the socket on descriptor 0: a pipe that holds a job, a pipe for its results,
and the null device, opened anew for every job, since all who share an open file share its flags. It forks and waits for
the fork to end, for the time to be up, or for the other end of the socket to be gone. Then it kills what is left and
says how the fork ended. Memory that a process has freed keeps its bytes, and every later fork gets a copy. So only the
fork reads the job, and what the fork may choose about its end is written into one piece of memory that is cleared. The
job holds code and arguments, never an expected value. Nothing but the standard library.
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

from steadyrl.environments.code.sandbox import candidate, landlock, seccomp
from steadyrl.environments.code.sandbox.libc import libc

if sys.platform != "win32":
    import resource  # here, since what is imported before a fork costs the fork nothing

# What candidates import most; loading them here, once, makes importing them there free.
WARM = (
    "abc array base64 bisect calendar cmath collections.abc copy csv ctypes dataclasses datetime decimal enum "
    "fractions functools hashlib heapq html io itertools json keyword math numbers operator pprint queue random re "
    "statistics string struct sys textwrap threading time traceback types typing unicodedata uuid zlib"
).split()
READY, START = b"R", b"S"
# When it began and ended, each in seconds and nanoseconds; the status of waitpid; how it ended; whether it began.
STATUS = struct.Struct("=4qic?2x")
ENDED, TIME_UP = b"E", b"T"
BEGIN_S = 20.0  # from the fork to a program's first statement: only our own code runs then, in a millisecond
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36
_CAPABILITY_VERSION = 0x20080522
_RESULTS, _LIFE, _JOB, _FIRST_OTHER, _DESCRIPTORS = 3, 4, 5, 6, 1 << 16
_RECEIVED = 3  # descriptors of a job


class _Report(ctypes.Structure):
    """The memory of ``STATUS``. No object of Python is ever made of what stands in it."""

    _fields_ = [
        ("began_at", ctypes.c_int64 * 2),
        ("ended_at", ctypes.c_int64 * 2),
        ("status", ctypes.c_int32),
        ("how", ctypes.c_char),
        ("began", ctypes.c_bool),
    ]


def main() -> None:
    """Serve jobs until the other end of the socket is closed."""
    rules: dict[str, Any] = json.loads(sys.argv[1])
    os.closerange(3, _DESCRIPTORS)  # whatever came along from the parent
    control = socket.socket(fileno=0)
    for name in WARM:
        with contextlib.suppress(ImportError):  # a distribution may leave parts of the library out
            __import__(name)
    rules["filter"] = seccomp.build() if rules["seccomp"] else None  # once, for every fork
    report = _Report()
    _lock(rules)
    gc.collect()
    gc.freeze()  # forks then do not write to the pages of what is here now
    control.sendall(READY)
    while True:
        start, received, _, _ = socket.recv_fds(control, len(START), _RECEIVED)
        if not start:
            return
        _run(received, control, rules, report)
        for descriptor in received:
            os.close(descriptor)
        control.sendall(report)
        ctypes.memset(ctypes.byref(report), 0, ctypes.sizeof(report))


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


def _run(received: list[int], control: socket.socket, rules: dict[str, Any], report: _Report) -> None:
    """Fork, wait, kill what is left, and write how it ended."""
    # Its end says that the candidate is gone. A socket, since a pipe could be opened anew by its name in /proc, and
    # a candidate that took back the byte which says that it began would be taken for a failure of the machine.
    life, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        _become_candidate(received, theirs.fileno(), rules)
    theirs.close()
    with life:
        # A machine that stands still for longer than a program may take must not lose the worker.
        ready = _wait(life, select.POLLIN, control, BEGIN_S)
        libc().clock_gettime(time.CLOCK_MONOTONIC, report.began_at)
        report.began = life in ready and life.recv(len(READY)) == READY
        if report.began:  # whatever else the candidate writes there wakes nobody
            ready = _wait(life, 0, control, rules["wall_s"])
    report.how = ENDED if ready else TIME_UP
    _bury(pid, rules["alone"], report)
    libc().clock_gettime(time.CLOCK_MONOTONIC, report.ended_at)
    if control in ready:
        sys.exit(0)


def _wait(life: socket.socket, events: int, control: socket.socket, seconds: float) -> list[socket.socket]:
    """Wait for events or the end of the candidate's socket, or the end of ours; return which of them it was."""
    poller = select.poll()
    poller.register(life, events)
    poller.register(control, select.POLLIN)  # nothing is sent during a job: ready means closed
    ready = [descriptor for descriptor, _ in poller.poll(max(0.0, seconds) * 1000)]
    return [sock for sock in (life, control) if sock.fileno() in ready]


def _bury(pid: int, alone: bool, report: _Report) -> None:
    """Kill a candidate and all that it started; write how it had ended.

    Args:
        pid: Not waited for yet, so that the number cannot belong to another process.
        alone: There is nobody else in this process's pid namespace.
        report: Where its status goes.
    """
    # The calls of the C library, for Python would make objects of what they say; those that fail have nothing to do.
    if not alone:
        libc().killpg(pid, signal.SIGKILL)
    libc().kill(pid, signal.SIGKILL)
    libc().waitpid(pid, ctypes.byref(report, _Report.status.offset), 0)
    while True:
        if alone:
            libc().kill(-1, signal.SIGKILL)  # everyone but this process and the namespace's first
        if libc().waitpid(-1, None, 0 if alone else os.WNOHANG) <= 0:
            return


def _become_candidate(received: list[int], life: int, rules: dict[str, Any]) -> NoReturn:
    try:
        job, results, null = received
        os.setsid()
        copies = [os.dup(descriptor) for descriptor in (null, null, null, results, life, job)]
        for target, descriptor in enumerate(copies):
            os.dup2(descriptor, target)
        os.closerange(_FIRST_OTHER, max(256, *copies) + 1)
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
    for limit, soft, hard in (
        (resource.RLIMIT_CPU, rules["cpu_s"], rules["cpu_s"] + 1),
        (resource.RLIMIT_AS, memory, memory),
        (resource.RLIMIT_FSIZE, 0, 0),
        (resource.RLIMIT_NOFILE, rules["open_files"], rules["open_files"]),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_NPROC, rules["processes"], rules["processes"]),
    ):
        resource.setrlimit(limit, (soft, hard))
