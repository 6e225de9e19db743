"""A folder that is there whole or not at all: it is written beside its place and renamed as the last thing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from steadyrl.core.errors import AccessError, SteadyError
from steadyrl.core.rundir import readable_as_usual

_MARK = "UNFINISHED"  # in a folder that an export writes; one with it may be removed by the next


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder to write into; it becomes ``folder`` if the block ends well, and goes otherwise.

    A process that is killed leaves ``<folder>.part``, which the next export into the same place removes.

    Raises:
        AccessError: The folder is not empty or the current one, cannot be written, or the disk is full.
    """
    partial: Path | None = None
    try:
        target = Path(os.path.realpath(folder))  # a link cannot be replaced by a folder, but what it points to can
        partial = _partial_folder(folder, target)
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir(parents=True)
        (partial / _MARK).touch()
        yield partial
        readable_as_usual(partial)
        (partial / _MARK).unlink()
        partial.replace(target)  # an empty folder in its place is replaced
    except BaseException as error:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError) and not isinstance(error, SteadyError):
            raise AccessError(
                f"cannot write '{folder}': {_reason(error)}; free some space or choose another folder"
            ) from error
        raise


def _partial_folder(folder: Path, target: Path) -> Path:
    """Return the folder beside the place that is written first; refuse (AccessError) one that is taken."""
    partial = target.parent / f"{target.name}.part"
    if os.path.lexists(target) and not target.is_dir():
        raise AccessError(f"'{folder}' is a file; give a folder that is empty or not there yet")
    if target.is_dir() and target.samefile("."):  # whoever works in it would be left in a folder that is gone
        raise AccessError(
            f"'{folder}' is the current folder, which an export would replace; give a folder that is not there yet"
        )
    if target.is_dir() and any(target.iterdir()):
        raise AccessError(f"'{folder}' is not empty; remove it, or give a folder that is empty or not there yet")
    if partial.exists() and not (partial / _MARK).is_file() and (partial.is_file() or any(partial.iterdir())):
        raise AccessError(f"'{partial}' is in the way and was not left by an export; rename it, or give another folder")
    return partial


def _reason(error: OSError) -> str:
    # The error of a copied folder lists every file; one is enough.
    details = error.args[0] if isinstance(error, shutil.Error) else None
    return str(details[0][-1] if isinstance(details, list) else error)
