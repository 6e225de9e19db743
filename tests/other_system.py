"""Pretends that this process runs on Windows, as far as our own modules can see.

The standard library and the packages are imported first, for they are themselves: what is missing is missing for us.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys

# What CPython has on POSIX systems alone (see "Availability" in the pages of the standard library).
MODULES = ("curses", "fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty")
OF_OS = """
    O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_PATH WIFSIGNALED WTERMSIG WNOHANG chown chroot confstr fork forkpty
    getegid
    geteuid getgid getgroups getloadavg getpgid getpriority getsid getuid initgroups killpg mkfifo nice openpty
    pidfd_open posix_spawn pread pwrite register_at_fork sched_getaffinity sched_setaffinity sched_yield
    sendfile setegid seteuid setgid setgroups setpgid setpriority setsid setuid statvfs sysconf uname wait wait3 wait4
""".split()
OF_SIGNAL = (
    "SIGALRM SIGHUP SIGKILL SIGQUIT SIGSTOP SIGUSR1 SIGUSR2 SIGCHLD SIGXCPU alarm setitimer pthread_sigmask".split()
)
PACKAGES = """
    asyncio concurrent.futures ctypes http.server multiprocessing.util select selectors shutil socketserver subprocess
    tempfile threading numpy scipy.stats pydantic typer rich.console matplotlib.figure starlette.applications uvicorn
""".split()


def pretend() -> None:
    """Take from this process what Windows lacks."""
    for name in PACKAGES:
        importlib.import_module(name)
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]  # the import statement then says that there is none
    for module, names in ((os, OF_OS), (signal, OF_SIGNAL)):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    asyncio.ProactorEventLoop = asyncio.SelectorEventLoop  # uvicorn asks for Windows' own loop by name
    sys.platform = "win32"
