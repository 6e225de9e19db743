"""Most lines of a log differ from an earlier one in their numbers alone: they are read by the places of these."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

TOKEN = re.compile(r"(?<![\w.@/])([-+]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d++)?+)(?!,\d)")
MOST_TEMPLATES = 256  # of a file; one with more has other texts in each line
FIRST_MARK = 7_000_001  # a number that stands in no log and shows, put in the place of another, what is read from there

Read = Callable[[str], Any]


class Templates:
    """What a function says of lines, each of which it sees only if no line before was alike."""

    def __init__(self, parse: Callable[[str], dict[str, Any]]) -> None:
        """Remember nothing yet.

        Args:
            parse: (line) -> numbers by name, of which each is one that the line spells, as an int, a float or a share
                of a percentage, or the same for all lines that are alike.
        """
        self._parse, self._known = parse, dict[str, list[tuple[str, int, Read]] | None]()

    def read(self, line: str) -> dict[str, Any]:
        """Return what the function says of a line."""
        texts = TOKEN.split(line)
        template, tokens = "0".join(texts[::2]), texts[1::2]
        if (places := self._known.get(template)) is not None:
            return {name: read(tokens[place]) for name, place, read in places}
        parsed = self._parse(line)
        if template not in self._known and len(self._known) < MOST_TEMPLATES:
            self._known[template] = self._places(line, tokens, parsed)
        return parsed

    def _places(self, line: str, tokens: list[str], parsed: dict[str, Any]) -> list[tuple[str, int, Read]] | None:
        """Return where each number of a line stands, and how it is read; None where that gives not what was parsed."""
        marks = iter(range(FIRST_MARK, FIRST_MARK + len(tokens)))
        marked = self._parse(TOKEN.sub(lambda token: str(next(marks)), line))
        places = list[tuple[str, int, Read]]()
        for name, value in marked.items():
            if type(value) not in (int, float) or not math.isfinite(value):
                return None
            read: Read = int if type(value) is int else float if value >= FIRST_MARK else _share
            place = round(value * (100.0 if read is _share else 1.0)) - FIRST_MARK
            if not 0 <= place < len(tokens):
                return None
            places.append((name, place, read))
        try:
            agrees = {name: read(tokens[place]) for name, place, read in places} == parsed
        except ValueError:
            return None
        return places if agrees else None


def _share(token: str) -> float:
    """Return the share that a percentage is."""
    return float(token) / 100.0
