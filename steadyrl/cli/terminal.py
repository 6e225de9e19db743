"""Text of models and files is printed without control characters, so that it cannot act on the terminal."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from steadyrl.core.errors import printable as printable  # where the commands find it


def near(path: Path) -> Path:
    """Return a path as seen from the current folder where it lies below it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def note(text: str) -> None:
    """Show the user something that is no result; a standard error that is closed has no reader to show it to."""
    with suppress(OSError):
        print(printable(text), file=sys.stderr, flush=True)
