"""Text files in bounded memory: chunks of lines, and the JSON objects of many lines in one call.

Gzipped files are unpacked as they are read, and never beyond a limit.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import closing
from io import BufferedReader
from pathlib import Path
from typing import Any

BLOCK = 1 << 20
MAX_LINE = 16 << 20  # a line of metrics has kilobytes; what is longer is something else, and would fill the memory
MAX_UNPACKED = 2 << 30  # bytes of a gzipped file; a run's log has megabytes
GZIP = b"\x1f\x8b"
COLOUR = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]")
RAY = re.compile(rb"^\((?:\w+ )*pid=\d+[^)]*\) ")
BOM = b"\xef\xbb\xbf"

Packed = gzip.GzipFile | BufferedReader


class Lines:
    """The lines of a file, without their ends, in chunks of about a megabyte.

    Attributes:
        too_long: How many lines above ``MAX_LINE`` were passed over so far.
        damage: What is wrong with a gzipped file, "" if nothing was found so far.
    """

    def __init__(self, path: Path):
        self.path = path
        self.too_long = 0
        self.damage = ""

    def __iter__(self) -> Iterator[list[bytes]]:
        rest, passing = b"", False
        with closing(opened(self.path)) as file:
            for block in _decoded(self._blocks(file)):
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
        found = [self.damage] if self.damage else []
        if self.too_long:
            found.append(f"lines left out, for they are longer than {MAX_LINE >> 20} MiB: {self.too_long}")
        return found

    def _blocks(self, file: Packed) -> Iterator[bytes]:
        """Yield the bytes of a file until its end, its damage or the limit."""
        total, name = 0, self.path.name
        packed = isinstance(file, gzip.GzipFile)
        try:
            while block := file.read1(BLOCK):
                total += len(block)
                yield block
                if packed and total > MAX_UNPACKED:
                    self.damage = f"'{name}' unpacks to more than {MAX_UNPACKED >> 20} MiB; the rest is left out"
                    return
        except (EOFError, gzip.BadGzipFile, zlib.error):
            self.damage = f"'{name}' is torn or damaged after {total} unpacked bytes; the rest is left out"


def opened(path: Path) -> Packed:
    """Open a file, unpacking it if it is gzipped."""
    with path.open("rb") as file:
        packed = file.read(len(GZIP)) == GZIP
    return gzip.open(path) if packed else path.open("rb")


def head(path: Path, size: int) -> bytes:
    """Return the first bytes of a file, unpacked."""
    found = b""
    with closing(opened(path)) as file:
        try:
            while len(found) < size and (block := file.read1(size - len(found))):
                found += block
        except (EOFError, gzip.BadGzipFile, zlib.error):
            return found  # ``Lines`` says that it is torn
    return found


def whole(path: Path, limit: int) -> bytes | None:
    """Return all bytes of a file, unpacked; None if they are more than a limit."""
    found = head(path, limit + 1)
    return found if len(found) <= limit else None


def text_of(line: bytes) -> str:
    """Return the text of a line as it stands."""
    return line.decode("utf-8", errors="replace")


def plain(line: bytes) -> str:
    """Return the text of a line without its colours and the prefix of Ray."""
    return text_of(RAY.sub(b"", COLOUR.sub(b"", line) if b"\x1b" in line else line))


def _decoded(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield text as UTF-8 without its mark; in UTF-16 are texts that PowerShell redirected."""
    first = next(blocks, b"")
    if first[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
        yield decoder.decode(first).encode(errors="replace")
        for block in blocks:
            yield decoder.decode(block).encode(errors="replace")
        return
    yield first.removeprefix(BOM)
    yield from blocks


def objects(path: Path, notes: list[str]) -> Iterator[list[dict[str, Any]]]:
    """Yield the JSON objects of a file, one per line, in chunks; at the end put into ``notes`` what was left out."""
    lines, broken = Lines(path), 0
    for chunk in lines:
        rows, bad = parse_objects(chunk)
        broken += bad
        if rows:
            yield rows
    notes += lines.notes()
    if broken:
        notes.append(f"lines left out, for they are torn or no JSON object: {broken}")


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
        return json.loads(text_of(text))
    except (ValueError, RecursionError):
        return None
