"""What is printed must do nothing but be read: text of models and files comes without control characters."""

from __future__ import annotations

import re

# C0 and C1 controls apart from newline and tab, and the marks that reorder text.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Return a text whose control characters are written out (an escape as its code), so that a terminal obeys none."""
    return _CONTROLS.sub(lambda found: ascii(found.group())[1:-1], text)
