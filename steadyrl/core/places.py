"""Where relative paths begin: in the current folder; and which folder a user meant who started in another one."""

from __future__ import annotations

import os
from pathlib import Path

_settings_files: list[Path] = []  # the file that settings were read from last; a run's is below the folder it began in


def settings_read(file: Path) -> None:
    """Remember where settings stand: what is missing here may be there as seen from a folder around them."""
    _settings_files[:] = [Path(os.path.abspath(file))]


def from_here(path: Path) -> str:
    """Return where a relative path begins, as the end of a clause."""
    return "" if path.is_absolute() else f", seen from {Path.cwd()}{path_hint(path)}"


def path_hint(*paths: Path) -> str:
    """Return in which other folder one of relative paths is there, in parentheses; "" where none is known."""
    folders = [folder for file in _settings_files for folder in file.parents if folder != Path.cwd()]
    for folder in folders:
        if any((folder / path).exists() for path in paths):
            return f" (it is there from {os.path.relpath(folder)}: start in that folder)"
    return ""
