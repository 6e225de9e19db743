"""The command lines of the jails that a worker can run in, and what each of them does not stop.

- bubblewrap: own user, pid, network, ipc, uts and mount namespaces; Landlock and the list of system calls on top.
- landlock: Landlock, the list of system calls, no capabilities; the machine's own pid and network namespaces.
- weak: resource limits and nothing else.
"""

from __future__ import annotations

import json
import os
import shutil
import site
import sys
import sysconfig
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import steadyrl
from steadyrl.environments.code.sandbox import landlock, seccomp

JailName = Literal["bubblewrap", "landlock", "weak"]
PACKAGE = Path(steadyrl.__file__).parent
_START = "import sys; sys.path.append({path!r}); from steadyrl.environments.code.sandbox.worker import main; main()"
_INSIDE = "/sandbox"
ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8"}
_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")

_NEVER_STOPPED = (
    "a flaw of the kernel",
    "using up to the limits of processor time and memory, once per worker",
    "measuring time, and through it the load of the machine",
    "learning from the numbers of processes and pipes that an earlier answer made some",
)
NOT_STOPPED: dict[JailName, tuple[str, ...]] = {
    "bubblewrap": _NEVER_STOPPED,
    "landlock": (
        *_NEVER_STOPPED,
        "asking whether a file exists, how large it is and whose (not reading it)",
        "learning from access times that an earlier answer read a file of the library, or followed a link",
    ),
    "weak": (
        "reading every file that you can read, tests and keys among them",
        "deleting, renaming and emptying your files",
        "network access",
        "starting programs, and leaving processes behind that made a session of their own",
        "signals to your other processes",
        "looking into the memory of other processes of yours",
    ),
}


@dataclass(frozen=True)
class Limits:
    """What one candidate may use."""

    wall_s: float = 3.0
    """Seconds from its first statement to its end."""
    cpu_s: int = 2
    """Seconds of processor time, whole ones."""
    memory_mib: int = 384
    """Address space."""
    output_kib: int = 1024
    """Of the values that it returns; what it prints is thrown away."""
    open_files: int = 32
    """File descriptors, the three standard ones and two of our own included."""
    processes: int = 64
    """Of the user, where the jail lets it start any at all."""


def command(jail: JailName, limits: Limits, info: int | None = None) -> list[str]:
    """Return the command line of a worker.

    Args:
        jail: Which one.
        limits: Of every candidate.
        info: Descriptor to which bubblewrap says the pid of its first process; needed for that jail.
    """
    in_bubblewrap = jail == "bubblewrap"
    filtered = jail != "weak" and seccomp.supported()
    readable = [*_library(), os.devnull, "/dev/urandom"]
    rules = asdict(limits) | {
        "readable": readable if jail == "landlock" or (in_bubblewrap and landlock.version()) else None,
        "seccomp": filtered,
        "alone": in_bubblewrap,
    }
    root = _INSIDE if in_bubblewrap else str(PACKAGE.parent)
    python = os.path.realpath(sys.executable)
    start = [python, "-P", "-s", "-S", "-B", "-c", _START.format(path=root), json.dumps(rules)]
    return [*_bubblewrap(info), *start] if in_bubblewrap else start


def missing(jail: JailName) -> str:
    """Return what a jail lacks on this machine, "" where it can be tried."""
    if jail == "bubblewrap" and not shutil.which("bwrap"):
        return "bwrap is not installed"
    if jail == "landlock" and not landlock.version():
        return "the kernel offers no Landlock"
    if jail == "landlock" and not seccomp.supported():
        return "the numbers of this machine's system calls are not known"
    return ""


def _library() -> list[str]:
    # Without the packages that are installed beside the standard library, which may hold anything.
    paths = []
    for name in ("stdlib", "platstdlib"):
        folder = Path(sysconfig.get_path(name, vars=_base()))
        if folder.is_dir():
            paths += [str(p) for p in folder.iterdir() if p.name not in ("site-packages", "dist-packages")]
    return sorted({os.path.realpath(path) for path in paths})


def _base() -> dict[str, str]:
    return {"base": sys.base_prefix, "platbase": sys.base_exec_prefix, "installed_base": sys.base_prefix}


def _bubblewrap(info: int | None) -> list[str]:
    assert info is not None, "bubblewrap has to be told where to say its pid"
    # By its path: a worker's environment has a short PATH.
    arguments = [shutil.which("bwrap") or "bwrap", "--unshare-user", "--unshare-all", "--new-session"]
    arguments += ["--cap-drop", "ALL", "--info-fd", str(info)]
    for path in _SYSTEM:
        if os.path.islink(path):
            arguments += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            arguments += ["--ro-bind", path, path]
    python = os.path.realpath(sys.executable)
    base = os.path.realpath(sys.base_prefix)
    for path in (os.path.join(base, "lib"), os.path.join(base, "lib64")):
        if os.path.isdir(path) and not os.path.realpath(path).startswith(("/usr/lib", "/lib")):
            arguments += ["--ro-bind", path, path]
    arguments += ["--ro-bind", python, python, "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    for folder in _installed_packages():
        arguments += ["--tmpfs", folder]
    for file in ("__init__.py", "environments/__init__.py", "environments/code/__init__.py"):
        arguments += ["--ro-bind", str(PACKAGE / file), f"{_INSIDE}/steadyrl/{file}"]
    arguments += ["--ro-bind", str(Path(__file__).parent), f"{_INSIDE}/steadyrl/environments/code/sandbox"]
    arguments += [
        "--tmpfs",
        "/dev",
        "--dev-bind",
        "/dev/null",
        "/dev/null",
        "--dev-bind",
        "/dev/urandom",
        "/dev/urandom",
    ]
    arguments += ["--remount-ro", "/dev", "--clearenv"]
    for name, value in ENVIRONMENT.items():
        arguments += ["--setenv", name, value]
    return [*arguments, "--chdir", "/", "--remount-ro", "/", "--"]


def _installed_packages() -> list[str]:
    # Only those below what the jail shows: an empty folder is laid over each.
    stdlib = Path(sysconfig.get_path("stdlib", vars=_base()))
    candidates = {
        *(stdlib / name for name in ("site-packages", "dist-packages")),
        Path("/usr/lib/python3/dist-packages"),
        *map(Path, site.getsitepackages([sys.base_prefix])),
    }
    visible = (*_SYSTEM, os.path.join(os.path.realpath(sys.base_prefix), "lib"))
    return sorted({os.path.realpath(p) for p in candidates if p.is_dir() and str(p.resolve()).startswith(visible)})
