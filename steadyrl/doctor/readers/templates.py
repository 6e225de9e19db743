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
        self._parse, self._slots = parse, dict[str, list[tuple[str, int, Read]] | None]()

    def read(self, line: str) -> dict[str, Any]:
        """Return what the function says of a line."""
        texts = TOKEN.split(line)
        template, tokens = "0".join(texts[::2]), texts[1::2]
        if (slots := self._slots.get(template)) is not None:
            return {name: read(tokens[index]) for name, index, read in slots}
        parsed = self._parse(line)
        if template not in self._slots and len(self._slots) < MOST_TEMPLATES:
            self._slots[template] = self._find_slots(line, tokens, parsed)
        return parsed

    def _find_slots(self, line: str, tokens: list[str], parsed: dict[str, Any]) -> list[tuple[str, int, Read]] | None:
        """Return where each number of a line stands, and how it is read; None where that gives not what was parsed."""
        marks = iter(range(FIRST_MARK, FIRST_MARK + len(tokens)))
        marked = self._parse(TOKEN.sub(lambda token: str(next(marks)), line))
        slots = list[tuple[str, int, Read]]()
        for name, value in marked.items():
            if type(value) not in (int, float) or not math.isfinite(value):
                return None
            read_token: Read = int if type(value) is int else float if value >= FIRST_MARK else _share
            index = round(value * (100.0 if read_token is _share else 1.0)) - FIRST_MARK
            if not 0 <= index < len(tokens):
                return None
            slots.append((name, index, read_token))
        try:
            agrees = {name: read_token(tokens[index]) for name, index, read_token in slots} == parsed
        except ValueError:
            return None
        return slots if agrees else None


def _share(token: str) -> float:
    return float(token) / 100.0
