"""Warm workers in a jail, handed one candidate at a time: ``Sandbox.run`` is the whole interface."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import queue
import select
import signal
import socket
import subprocess
import tempfile
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from steadyrl.environments.code.sandbox import candidate, jails, values
from steadyrl.environments.code.sandbox.jails import JailName, Limits
from steadyrl.environments.code.sandbox.outcome import Outcome, read_outcome
from steadyrl.environments.code.sandbox.worker import BEGIN_S, READY, START, STATUS, TIME_UP

log = logging.getLogger(__name__)

_START_S = 20.0  # a worker starts in 0.1 s; a machine busy with other work takes longer
_GRACE_S = 5.0  # after the wall limit, for the worker itself to answer
_TRIES = 3


class JailError(Exception):
    """A worker cannot be started or does not answer: a fault of the machine, never of a candidate."""


class Worker:
    """One jailed process that forks for every candidate."""

    def __init__(self, jail: JailName, limits: Limits):
        self._limits = limits
        self._inner_pid: int | None = None
        self._control, theirs = socket.socketpair()
        info_read, info_write = os.pipe()
        in_bubblewrap = jail == "bubblewrap"
        with theirs, tempfile.TemporaryFile() as errors:
            try:
                self._process = subprocess.Popen(
                    jails.command(jail, limits, info_write if in_bubblewrap else None),
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    env=jails.ENVIRONMENT,
                    pass_fds=(info_write,) if in_bubblewrap else (),
                    start_new_session=True,
                    cwd="/",
                )
            except OSError as error:
                self._control.close()
                os.close(info_read)
                raise JailError(f"{jail}: {error}") from error
            finally:
                os.close(info_write)
            theirs.close()  # else a worker that dies would leave this end waiting
            self._await_ready(jail, info_read, errors)
        self.close = weakref.finalize(self, _end, self._process, self._control, self._inner_pid)

    def _await_ready(self, jail: JailName, info_read: int, errors: Any) -> None:
        self._control.settimeout(_START_S)
        try:
            answer = self._control.recv(1)
        except OSError:
            answer = b""
        if jail == "bubblewrap":
            with contextlib.suppress(ValueError, KeyError):  # it failed before it could say
                self._inner_pid = json.loads(_available(info_read))["child-pid"]
        os.close(info_read)
        if answer != READY:
            _end(self._process, self._control, self._inner_pid)
            errors.seek(0)
            error_lines = errors.read().decode(errors="replace").strip().splitlines()
            raise JailError(f"{jail}: {error_lines[-1] if error_lines else 'the worker did not start'}")

    def run(self, job: bytes, steps: int) -> Outcome:
        """Run one candidate.

        Raises:
            JailError: The worker is gone; this one cannot be used again.
        """
        with (
            _pipe() as (job_read, job_write),
            _pipe() as (result_read, result_write),
            open(os.devnull, "r+b", buffering=0) as null,
        ):
            try:
                socket.send_fds(self._control, [START], [stream.fileno() for stream in (job_read, result_write, null)])
            except OSError as error:
                raise JailError(f"the worker is gone ({error})") from error
            job_read.close()
            result_write.close()
            os.set_blocking(job_write.fileno(), False)
            return self._talk(memoryview(job), job_write, result_read.fileno(), steps)

    def _talk(self, job: memoryview, job_write: io.FileIO, read: int, steps: int) -> Outcome:
        """Hand over the job and collect lines until the worker says that nothing of the candidate is left."""
        deadline = time.monotonic() + BEGIN_S + self._limits.wall_s + _GRACE_S
        lines, limit = bytearray(), self._limits.output_kib << 10
        poller = select.poll()
        poller.register(read, select.POLLIN)
        poller.register(self._control, select.POLLIN)
        if job := _write(job_write, job):
            poller.register(job_write, select.POLLOUT)
        status = b""
        while len(status) < STATUS.size:
            ready = dict(poller.poll(max(0.0, deadline - time.monotonic()) * 1000))
            if not ready:
                raise JailError("the worker does not answer")
            if job_write.fileno() in ready and not (job := _write(job_write, job)):
                poller.unregister(job_write)
            if read in ready:
                chunk = os.read(read, 1 << 16)
                # What is over the limit is read and dropped, so that the candidate's end is seen as it comes.
                lines += chunk[: limit + 1 - len(lines)]
                if not chunk:
                    poller.unregister(read)
            if self._control.fileno() in ready:
                chunk = self._control.recv(STATUS.size - len(status))
                if not chunk:
                    raise JailError("the worker died")
                status += chunk
        lines += _available(read)[: limit + 1 - len(lines)]
        *times, ended, how, began = STATUS.unpack(status)
        wall_s = (times[2] - times[0]) + (times[3] - times[1]) / 1e9
        if not began:
            raise JailError("a candidate could not be started in its jail, or not in time")
        if len(lines) > limit:
            note = f"more than {self._limits.output_kib} KiB of values"
            return Outcome("output", (), note, wall_s, compiled=True)
        return read_outcome(bytes(lines), steps, how == TIME_UP, ended, wall_s)


class Sandbox:
    """A pool of workers; may be shared by threads. Workers start when they are first needed."""

    def __init__(self, jail: JailName, limits: Limits | None = None, workers: int = 1):
        self.jail = jail
        self.limits = limits or Limits()
        self._idle: queue.LifoQueue[Worker | None] = queue.LifoQueue()
        for _ in range(workers):
            self._idle.put(None)

    def run(self, code: str, entry: str, calls: Sequence[Sequence[Any]]) -> Outcome:
        """Execute code and call a function of it, in a fresh process.

        Args:
            code: Python source of anybody.
            entry: The function's name.
            calls: Positional arguments of each call; plain values.

        Raises:
            JailError: No worker could be had, or three in a row were lost.
        """
        no_names = values.encode({})
        steps = [["call", values.encode(list(arguments)), no_names] for arguments in calls]
        return self.run_steps(code, entry, json.dumps(steps), len(steps))

    def run_steps(self, code: str, entry: str, steps: str, count: int) -> Outcome:
        """Execute code and take steps with it, in a fresh process.

        Args:
            code: Python source of anybody.
            entry: Name of the function that "call" steps call.
            steps: A line of JSON; see ``candidate``. It is passed on without being read.
            count: How many steps there are.

        Raises:
            JailError: No worker could be had, or three in a row were lost.
        """
        lines = f"{json.dumps({'code': code, 'entry': entry})}\n{steps}".encode()
        job = candidate.LENGTH.pack(candidate.LENGTH.size + len(lines)) + lines
        worker = self._idle.get()
        try:
            for attempt in range(1, _TRIES + 1):
                try:
                    worker = worker or Worker(self.jail, self.limits)
                    return worker.run(job, count)
                except JailError as error:
                    if worker is not None:
                        worker.close()
                        worker = None
                    if attempt == _TRIES:
                        raise
                    log.warning("a worker of the sandbox was replaced: %s", error)
            raise AssertionError("the last try returns or raises")
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """End all workers that are idle; they end by themselves when the pool is forgotten."""
        for _ in range(self._idle.qsize()):
            worker = self._idle.get()
            if worker is not None:
                worker.close()
            self._idle.put(None)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _end(process: subprocess.Popen[bytes], control: socket.socket, inner_pid: int | None) -> None:
    control.close()  # a worker that lives answers this by ending
    try:
        process.wait(timeout=0.5)
    except subprocess.TimeoutExpired:
        for pid in (inner_pid, process.pid):  # the first process of a pid namespace takes all others with it
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[io.FileIO, io.FileIO]]:
    read, write = os.pipe()
    with io.FileIO(read, "r") as reader, io.FileIO(write, "w") as writer:
        yield reader, writer


def _write(pipe: io.FileIO, data: memoryview) -> memoryview:
    """Write as much as a pipe takes now; return what is left, nothing where nobody reads any more."""
    try:
        while data:
            written = pipe.write(data)
            if written is None:
                return data
            data = data[written:]
    except BrokenPipeError:
        return data[:0]
    return data


def _available(descriptor: int) -> bytes:
    os.set_blocking(descriptor, False)
    data = bytearray()
    with contextlib.suppress(BlockingIOError):
        while chunk := os.read(descriptor, 1 << 16):
            data += chunk
    return bytes(data)
