"""Text files in bounded memory: chunks of lines, and the JSON objects of many lines in one call."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

BLOCK = 1 << 20
MAX_LINE = 16 << 20  # a line of metrics has kilobytes; what is longer is something else, and would fill the memory
BOM = b"\xef\xbb\xbf"


class Lines:
    """The lines of a file, without their ends, in chunks of about a megabyte.

    Attributes:
        too_long: How many lines above ``MAX_LINE`` were passed over so far.
    """

    def __init__(self, path: Path):
        self.path = path
        self.too_long = 0

    def __iter__(self) -> Iterator[list[bytes]]:
        rest, passing = b"", False
        with self.path.open("rb") as file:
            for block in _blocks(file):
                lines = (rest + block).split(b"\n")
                rest = lines.pop()
                if passing:
                    rest = rest if lines else b""
                    passing, lines = not lines, lines[1:]
                if len(rest) > MAX_LINE:
                    self.too_long += 1
                    rest, passing = b"", True
                yield lines
        if rest:
            yield [rest]

    def notes(self) -> list[str]:
        """Return what was passed over."""
        if not self.too_long:
            return []
        return [f"lines left out, for they are longer than {MAX_LINE >> 20} MiB: {self.too_long}"]


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """Yield the text of a file as UTF-8 without its mark; in UTF-16 are texts that PowerShell redirected."""
    mark = file.read(len(BOM))
    file.seek(len(BOM) if mark == BOM else 0)
    if mark[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
        while block := file.read(BLOCK):
            yield decoder.decode(block).encode(errors="replace")
    while block := file.read(BLOCK):
        yield block


def read_objects(path: Path, add: Callable[[list[dict[str, Any]]], None]) -> list[str]:
    """Give the JSON objects of a file, one per line, to ``add`` chunk by chunk.

    Returns:
        Notes on lines that were left out.
    """
    lines, broken = Lines(path), 0
    for chunk in lines:
        rows, bad = parse_objects(chunk)
        broken += bad
        if rows:
            add(rows)
    notes = lines.notes()
    if broken:
        notes.append(f"lines left out, for they are torn or no JSON object: {broken}")
    return notes


def parse_objects(lines: list[bytes]) -> tuple[list[dict[str, Any]], int]:
    """Return the JSON objects of some lines, and how many lines hold none; blank lines are not counted."""
    # One call for all lines is several times faster than one per line.
    together = parse_json(b"[" + b",".join(lines) + b"]")
    # A torn line and the next may happen to make valid JSON together: then the count differs.
    if isinstance(together, list) and len(together) == len(lines) and set(map(type, together)) == {dict}:
        return together, 0
    filled = [line for line in lines if line and not line.isspace()]
    rows = [row for row in map(parse_json, filled) if isinstance(row, dict)]
    return rows, len(filled) - len(rows)


def parse_json(text: bytes) -> Any:
    """Return what a JSON text holds, or None for what is no JSON or nested too deeply to be a log."""
    try:
        return json.loads(text.decode("utf-8", errors="replace"))
    except (ValueError, RecursionError):
        return None
