"""A process of its own for one run, what may happen to it on the way, and a judge's server for runs that need one."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from steadyrl.core.errors import SteadyError

PATIENCE_S = 300.0  # for one process that trains some steps; the machine may be busy
_CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink")
_GROWS = ("open", "os.mkdir")  # what a full disk refuses


@dataclass(frozen=True)
class Fault:
    """What happens to a process on its way.

    Attributes:
        kind: "operation": SIGKILL at an operation on files; "moment": SIGKILL after some time; "full": no file can be
            made from an operation on; "size": no file grows beyond a size; "memory": no more than some MiB beside what
            it has; "none".
        at: The operation counted from 1, seconds, bytes, or MiB.
    """

    kind: str
    at: float = 0.0

    def __str__(self) -> str:
        return self.kind if self.kind == "none" else f"{self.kind} {self.at:.3g}"


def in_child(work: Callable[[], None], folder: Path, fault: Fault) -> tuple[int, str]:
    """Do something in a fork of this process, to which something happens.

    Args:
        work: What the child does.
        folder: Operations on files count where they are below it; ``tmp`` in it is the folder for temporary files.
        fault: What happens.

    Returns:
        The exit code (0 done, 2 refused with an error of ours, 1 anything else, negative: the signal) and what it said.
    """
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told)
        code = 1
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                _prepare(folder, fault)
                work()
            code = 0
        except SteadyError as error:
            os.write(tell, str(error)[:2000].encode("utf-8", "replace"))
            code = 2
        except Exception as error:  # what no caller expects is what the campaign looks for
            os.write(tell, f"{type(error).__name__}: {error}"[:2000].encode("utf-8", "replace"))
        finally:
            os._exit(code)
    os.close(tell)
    code = _wait(child, fault.at if fault.kind == "moment" else PATIENCE_S)
    with os.fdopen(told, "rb") as pipe:
        return code, pipe.read().decode("utf-8", "replace")


def _prepare(folder: Path, fault: Fault) -> None:
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder / "tmp")
    (folder / "tmp").mkdir(exist_ok=True)
    match fault.kind:
        case "operation":
            watch_files(folder, lambda count, _: os.kill(os.getpid(), signal.SIGKILL) if count == fault.at else None)
        case "full":
            watch_files(folder, lambda count, event: _refuse(event) if count >= fault.at else None)
        case "size":
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(fault.at), resource.RLIM_INFINITY))
        case "memory":
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            size = pages * resource.getpagesize() + int(fault.at * 2**20)
            resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))


def _refuse(event: str) -> None:
    if event in _GROWS:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _wait(child: int, seconds: float) -> int:
    """Wait for a child at most so long, and kill it then; return how it ended."""
    until = time.monotonic() + seconds
    while (done := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() >= until:
            os.kill(child, signal.SIGKILL)
            done = os.waitpid(child, 0)
            break
        time.sleep(0.002)
    return os.waitstatus_to_exitcode(done[1])


def watch_files(folder: Path, seen: Callable[[int, str], object]) -> None:
    """Call ``seen`` before every operation that changes files below a folder, with a running number and its name."""
    number = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal number
        if event == "open":
            path, mode, flags = arguments
            writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else flags & os.O_ACCMODE
        else:
            writes = event in _CHANGES
            path = arguments[0] if writes else None
        if writes and isinstance(path, str | os.PathLike) and _place(path, event, arguments).startswith(str(folder)):
            number += 1
            seen(number, event)

    sys.addaudithook(hook)


def _place(path: Any, event: str, arguments: tuple[Any, ...]) -> str:
    """Return a path with the folder that it is relative to: shutil.rmtree names files by an open folder."""
    if os.path.isabs(path) or event not in ("os.remove", "os.rmdir", "os.mkdir"):
        return str(path)
    descriptor = arguments[-1]
    if isinstance(descriptor, int) and descriptor >= 0:
        return os.path.join(os.readlink(f"/proc/self/fd/{descriptor}"), path)
    return os.path.abspath(path)


@contextlib.contextmanager
def fair_judge() -> Iterator[str]:
    """Serve verdicts that depend on the text alone, in a process of its own; yields the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Verdicts)
    parent, child = os.getpid(), os.fork()
    if child == 0:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        while os.getppid() == parent:  # it ends with the campaign, however that ends
            time.sleep(0.2)
        os._exit(0)
    server.server_close()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


class _Verdicts(BaseHTTPRequestHandler):
    """Grades one answer by its number of vowels."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
        label, text = re.findall(r"answer with the label (\w+)\n(.*?)\n\w+ end", asked[1]["content"], re.DOTALL)[0]
        grade = sum(text.count(letter) for letter in "aeiou") % 11
        names = re.findall(r'"(\w+)": grade', asked[0]["content"])
        verdict = {"reason": "vowels", "candidate": label, "scores": dict.fromkeys(names, grade)}
        body = json.dumps({"choices": [{"message": {"content": json.dumps(verdict)}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""
