"""Folders for files that no longer matter when their process has ended, however it ended.

A process that is killed removes nothing. So each folder holds a file that its process keeps locked; the system gives
the lock back when the process ends, and the next process that makes a folder removes those that nobody holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "srl-"
_LOCK = ".owner"
_UNLOCKED_S = 3600.0  # a folder without the file may have been made this very moment


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a folder that is removed at the end, or by a later process if this one is killed."""
    folder, lock = claim_folder()
    try:
        yield folder
    finally:
        release_folder(folder, lock)


def claim_folder() -> tuple[Path, int]:
    """Make a folder, after removing what dead processes left.

    Returns:
        The folder, and the descriptor that keeps it; give both to ``release_folder``.
    """
    sweep()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))  # short: the path of a socket in it has 108 characters at most
    made = folder / "new"
    lock = os.open(made, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    made.rename(folder / _LOCK)  # it has this name only once it is locked, so that nobody finds it free before
    return folder, lock


def release_folder(folder: Path, lock: int) -> None:
    """Remove a folder and all in it."""
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def sweep() -> None:
    """Remove folders whose processes have ended; those of other users are left alone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another process removes it at the same time, or it is another user's
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            if _abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _abandoned(folder: Path) -> bool:
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return time.time() - folder.stat().st_mtime > _UNLOCKED_S
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
