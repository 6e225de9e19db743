"""Text of models and files is printed without control characters, so that it cannot act on the terminal."""

from __future__ import annotations

import re
import sys
from contextlib import suppress

# C0 and C1 controls apart from newline and tab, and the marks that reorder text.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Return a text whose control characters are replaced by their codes, so that a terminal obeys none of them."""
    return _CONTROLS.sub(lambda found: ascii(found.group())[1:-1], text)


def note(text: str) -> None:
    """Show the user something that is no result; a standard error that is closed has no reader to show it to."""
    with suppress(OSError):
        print(printable(text), file=sys.stderr, flush=True)
