"""Text of models and files is printed without control characters, so that it cannot act on the terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

from steadyrl.core.errors import printable as printable  # where the commands find it


def near(path: Path) -> Path:
    """Return a path as seen from the current folder where it lies below it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def show_text(text: str) -> None:
    """Print a result. A terminal's lines end between words, so that no number is cut."""
    text = printable(text)
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        text = textwrap.fill(text, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    print(text)


def note(text: str) -> None:
    """Show the user something that is no result; a standard error that is closed has no reader to show it to."""
    with suppress(OSError):
        print(printable(text), file=sys.stderr, flush=True)
