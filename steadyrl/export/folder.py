"""A folder that is there whole or not at all: it is written beside its place and renamed as the last thing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from steadyrl.errors import AccessError, SteadyError

_MARK = "UNFINISHED"  # in a folder that an export writes; one with it may be removed by the next


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder to write into; it becomes ``folder`` if the block ends well, and goes otherwise.

    A process that is killed leaves ``<folder>.part``, which the next export into the same place removes.

    Raises:
        AccessError: The folder is not empty, cannot be written, or the disk is full.
    """
    part = folder.with_name(folder.name + ".part")
    _require_free(folder, part)
    try:
        if part.exists():
            shutil.rmtree(part)
        part.mkdir(parents=True)
        (part / _MARK).touch()
        yield part
        (part / _MARK).unlink()
        part.replace(folder)  # an empty folder in its place is replaced
    except BaseException as error:
        shutil.rmtree(part, ignore_errors=True)
        if isinstance(error, OSError) and not isinstance(error, SteadyError):
            raise AccessError(f"cannot write '{folder}': {error}; free some space or choose another folder") from error
        raise


def _require_free(folder: Path, part: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise AccessError(f"'{folder}' is a file; give a folder that is empty or not there yet")
    if folder.is_dir() and any(folder.iterdir()):
        raise AccessError(f"'{folder}' is not empty; remove it, or give a folder that is empty or not there yet")
    if part.exists() and not (part / _MARK).is_file() and (part.is_file() or any(part.iterdir())):
        raise AccessError(f"'{part}' is in the way and was not left by an export; rename it, or give another folder")
