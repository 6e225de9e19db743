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
    part: Path | None = None
    try:
        place = Path(os.path.realpath(folder))  # a link cannot be replaced by a folder, but what it points to can
        part = _free_part(folder, place)
        if part.exists():
            shutil.rmtree(part)
        part.mkdir(parents=True)
        (part / _MARK).touch()
        yield part
        readable_as_usual(part)
        (part / _MARK).unlink()
        part.replace(place)  # an empty folder in its place is replaced
    except BaseException as error:
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)
        if isinstance(error, OSError) and not isinstance(error, SteadyError):
            raise AccessError(
                f"cannot write '{folder}': {_reason(error)}; free some space or choose another folder"
            ) from error
        raise


def _free_part(folder: Path, place: Path) -> Path:
    """Return the folder beside the place that is written first; refuse (AccessError) one that is taken."""
    part = place.parent / f"{place.name}.part"
    if os.path.lexists(place) and not place.is_dir():
        raise AccessError(f"'{folder}' is a file; give a folder that is empty or not there yet")
    if place.is_dir() and place.samefile("."):  # whoever works in it would be left in a folder that is gone
        raise AccessError(
            f"'{folder}' is the current folder, which an export would replace; give a folder that is not there yet"
        )
    if place.is_dir() and any(place.iterdir()):
        raise AccessError(f"'{folder}' is not empty; remove it, or give a folder that is empty or not there yet")
    if part.exists() and not (part / _MARK).is_file() and (part.is_file() or any(part.iterdir())):
        raise AccessError(f"'{part}' is in the way and was not left by an export; rename it, or give another folder")
    return part


def _reason(error: OSError) -> str:
    """Return what to say of an error; of a copied folder's, which lists every file, the first."""
    listed = error.args[0] if isinstance(error, shutil.Error) else None
    return str(listed[0][-1] if isinstance(listed, list) else error)
