"""Folders for temporary files, which are removed even where the program that made them was killed.

A program holds a lock on each of its folders for as long as it lives. The kernel frees the lock of a program that was
killed, so that the next one that makes such a folder can tell and remove what is left.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from steadyrl.core.errors import AccessError

log = logging.getLogger(__name__)

PREFIX = "srl-"  # short: the path of a socket in such a folder has 108 characters at most
_PROFILE = "profile"  # a link in the folder to the browser profile that Playwright made elsewhere
_PROFILE_PREFIX = "playwright_"  # what the name of such a profile begins with; nothing else is ever followed


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a folder that is removed at the end, or by a later program if this one is killed."""
    sweep()
    folder = Folder()
    try:
        yield folder.path
    finally:
        folder.remove()


class Folder:
    """A new folder of this program at ``path``; AccessError where none can be made."""

    def __init__(self) -> None:
        while True:
            try:
                self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
            except OSError as error:
                raise AccessError(
                    f"no folder for temporary files can be made: {error}; set TMPDIR to one with room"
                ) from error
            try:
                self._lock = _lock(self.path, wait=True)
            except FileNotFoundError:  # another program took it for a dead one's
                continue
            except OSError as error:
                shutil.rmtree(self.path, ignore_errors=True)
                raise AccessError(
                    f"folders for temporary files cannot be locked in '{self.path.parent}': {error.strerror}; set "
                    "TMPDIR to a folder of a local disk"
                ) from error
            if self.path.is_dir():  # else another program took it for a dead one's before it was locked
                return
            self._unlock()

    def note_profile(self, profile: str) -> None:
        """Remember a profile that goes with this folder."""
        (self.path / _PROFILE).symlink_to(profile)

    def remove(self) -> None:
        """Remove the folder with all that is in it, and the profile that was noted."""
        _remove(self.path)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def sweep() -> None:
    """Remove the folders of programs of this user that were killed."""
    if sys.platform == "win32":
        return
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # it went meanwhile, or is held
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            lock = _lock(path, wait=False)
            _remove(path)
            log.info("removed '%s', which a program that was killed had left", path)
            if lock is not None:
                os.close(lock)


def _lock(path: Path, wait: bool) -> int | None:
    """Return an open file that holds the lock of a folder; OSError where another program holds it."""
    if sys.platform == "win32":  # folders cannot be locked there; a killed program leaves its own
        return None
    import fcntl  # not on Windows

    with contextlib.ExitStack() as undo:
        file = os.open(path, os.O_RDONLY)
        undo.callback(os.close, file)
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        undo.pop_all()
    return file


def _remove(path: Path) -> None:
    link = path / _PROFILE
    if link.is_symlink():
        profile = Path(os.readlink(link))
        if profile.name.startswith(_PROFILE_PREFIX) and profile.parent == path.parent:
            shutil.rmtree(profile, ignore_errors=True)
    shutil.rmtree(path, ignore_errors=True)
