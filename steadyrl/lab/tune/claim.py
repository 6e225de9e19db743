"""Shares work between processes, on one machine or several: who holds the lock of a folder does what belongs there.

The system lets go of a lock when its process ends, however that happens, so what a lost process had begun is free.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from steadyrl.core.errors import AccessError, RunError
from steadyrl.core.rundir import RunDir

_POLL_S = 0.5


@contextmanager
def claimed(folder: Path) -> Iterator[bool]:
    """Hold a folder if no other process does; yield whether this one holds it now.

    Raises:
        AccessError: The folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AccessError(f"cannot make the folder '{folder}': {error.strerror}; give another --folder") from error
    with ExitStack() as stack:
        try:
            stack.enter_context(RunDir(folder).writing())
            mine = True
        except RunError:
            mine = False
        yield mine


@contextmanager
def awaited(folder: Path) -> Iterator[None]:
    """Hold a folder, once no other process does."""
    while True:
        with claimed(folder) as mine:
            if mine:
                yield
                return
        time.sleep(_POLL_S)
