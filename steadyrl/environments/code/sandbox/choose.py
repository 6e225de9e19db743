"""Which jail holds on this machine: found by trying to break out of each, not by asking for its version."""

from __future__ import annotations

import functools
import logging
import os
import socket
from typing import Literal

from pydantic import Field

from steadyrl.core.errors import ConfigError, require_posix
from steadyrl.core.rundir import write_text
from steadyrl.core.scratch import scratch_folder
from steadyrl.core.sections import Section
from steadyrl.environments.code.sandbox import jails
from steadyrl.environments.code.sandbox.jails import JailName, Limits
from steadyrl.environments.code.sandbox.outcome import Outcome, Returned
from steadyrl.environments.code.sandbox.pool import JailError, Sandbox

log = logging.getLogger(__name__)


class SandboxSettings(Section):
    """Settings of the sandbox for code that a model wrote."""

    jail: Literal["auto", "bubblewrap", "landlock"] = Field("auto")
    """'auto' uses the strictest jail that works on this machine."""
    allow_weak: bool = Field(False)
    """Run code with resource limits only if no jail works. sandbox.md says what that risks."""
    workers: int = Field(1, ge=1, le=64, description="Number of warm interpreters.")
    wall_s: float = Field(3.0, gt=0, le=600, description="Maximum seconds for all calls of one answer.")
    memory_mib: int = Field(384, ge=64, description="Maximum address space of one answer, in MiB.")


# Each returns whether it got out. Paths and numbers come from outside: the jail has neither environment nor /proc.
_ESCAPES = """
import os, signal, socket

def written(path):
    with open(path, "w") as file:
        return bool(file.write("x")) or True

def read(path):
    return bool(open(path).read(1))

def listed(path):
    return bool(os.listdir(path))

def removed(path):
    return os.unlink(path) is None

def connected(port):
    return socket.create_connection(("127.0.0.1", port), timeout=0.3) is not None

def datagram(port):
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", port)) > 0

def signalled(pid):
    return os.kill(pid, 0) is None

def signalled_parent(_):
    return os.kill(os.getppid(), signal.SIGSTOP) is None

def environment(name):
    return name in os.environ

def forked(_):
    pid = os.fork()
    return True

def program(path):
    os.execv(path, [path])
"""
# Those whose success bubblewrap bears without the list of system calls: what they start ends with the namespace.
_HARMLESS_IN_BUBBLEWRAP = frozenset({"forked", "program", "signalled_parent"})


def open_sandbox(settings: SandboxSettings) -> Sandbox:
    """Return a pool in the best jail that holds.

    Raises:
        ConfigError: None does, and weak ones are not allowed.
    """
    require_posix("running code that a model wrote")
    limits = Limits(wall_s=settings.wall_s, memory_mib=settings.memory_mib, cpu_s=max(1, round(settings.wall_s)))
    jail_names: tuple[JailName, ...] = ("bubblewrap", "landlock") if settings.jail == "auto" else (settings.jail,)
    reasons = []
    for jail in jail_names:
        reason = probe(jail)
        if not reason:
            log.info("code runs in the jail '%s'", jail)
            return Sandbox(jail, limits, settings.workers)
        reasons.append(f"{jail}: {reason}")
    if settings.allow_weak:
        log.warning(
            "code runs under resource limits alone (%s). This does not stop: %s",
            "; ".join(reasons),
            "; ".join(jails.NOT_STOPPED["weak"]),
        )
        return Sandbox("weak", limits, settings.workers)
    raise ConfigError(
        f"no jail for code holds on this machine ({'; '.join(reasons)}). Install bubblewrap, allow unprivileged user "
        "namespaces, or use a kernel with Landlock (5.13 or newer). On a machine with nothing to lose, "
        "task.args.sandbox = { allow_weak = true } runs code under resource limits alone (docs/sandbox.md)"
    )


@functools.lru_cache(maxsize=len(jails.NOT_STOPPED))
def probe(jail: JailName) -> str:
    """Try to break out of a jail; return why it does not hold here, "" where it does."""
    if lack := jails.missing(jail):
        return lack
    with (
        Sandbox(jail, Limits(wall_s=2.0)) as sandbox,
        socket.create_server(("127.0.0.1", 0)) as server,
        scratch_folder() as folder,
    ):
        target = folder / "target"
        write_text(target, "secret")
        port = server.getsockname()[1]
        attempts: list[tuple[str, object]] = [
            *((name, str(target)) for name in ("read", "removed")),
            *(("written", str(path)) for path in (target, folder / "new", "/tmp/new", "/new", "/dev/new")),
            ("listed", str(folder)),
            ("listed", str(jails.PACKAGE / "loop")),
            ("listed", os.path.expanduser("~")),  # "~" itself, where the user has no home
            ("read", f"/proc/{os.getpid()}/environ"),
            ("connected", port),
            ("datagram", port),
            ("signalled", os.getpid()),
            ("environment", "HOME"),
            ("signalled_parent", 0),
            ("program", "/bin/true"),
            ("forked", 0),
        ]
        try:
            harmless = sandbox.run("def f(x):\n    return x + 1", "f", [[1]])
            if harmless.results != (Returned(2),):
                return f"a harmless program does not run in it ({harmless.note or harmless.verdict})"
            escapes = [name for name, argument in attempts if _escaped(name, sandbox.run(_ESCAPES, name, [[argument]]))]
        except JailError as error:
            return str(error).removeprefix(f"{jail}: ")
    if jail == "bubblewrap":
        escapes = [name for name in escapes if name not in _HARMLESS_IN_BUBBLEWRAP]
    return f"it does not stop what it should: {', '.join(dict.fromkeys(escapes))}" if escapes else ""


def _escaped(name: str, outcome: Outcome) -> bool:
    if name == "program":  # one that replaced the candidate leaves no value behind
        return outcome.verdict == "killed"
    return any(isinstance(result, Returned) and bool(result.value) for result in outcome.results)
