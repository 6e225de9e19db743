"""Text files in bounded memory: chunks of lines, and the JSON objects of many lines in one call.

Gzipped files are unpacked as they are read, and never beyond a limit.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import lru_cache
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import Any

BLOCK = 1 << 20
MAX_LINE = 16 << 20  # a line of metrics has kilobytes; what is longer is something else, and would fill the memory
MAX_UNPACKED = 2 << 30  # bytes of a gzipped file; a run's log has megabytes
LARGE = 1 << 18  # bytes of JSON: for less, a quicker parser is not worth the 20 ms that its import takes
MAX_NOTEBOOK = 256 << 20  # bytes; it is parsed at once
GZIP, NOTEBOOK = b"\x1f\x8b", ".ipynb"
COLOUR = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]")
RAY = re.compile(rb"^\((?:\w+ )*pid=\d+[^)]*\) ")


def lines(path: Path, notes: list[str] | None = None) -> Iterator[list[bytes]]:
    """Yield the lines of a file, without their ends, in chunks of about a megabyte.

    Args:
        path: Of the file.
        notes: Takes at the end what was passed over: lines above ``MAX_LINE``, and what is torn or too large.
    """
    partial_line, skipping, too_long, lost_notes = b"", False, 0, list[str]()
    for block in _decoded(_blocks(path, lost_notes)):
        full_lines = (partial_line + block).split(b"\n")
        partial_line = full_lines.pop()
        if skipping:
            partial_line = partial_line if full_lines else b""
            skipping, full_lines = not full_lines, full_lines[1:]
        if len(partial_line) > MAX_LINE:
            too_long += 1
            partial_line, skipping = b"", True
        yield full_lines
    if partial_line:
        yield [partial_line]
    if too_long:
        lost_notes.append(f"lines left out, for they are longer than {MAX_LINE >> 20} MiB: {too_long}")
    if notes is not None:
        notes += lost_notes


def _blocks(path: Path, lost_notes: list[str], size: int = BLOCK) -> Iterator[bytes]:
    """Yield the bytes of a file, unpacked, until its end, its damage or the limit."""
    total = 0
    with closing(_opened(path)) as file:
        try:
            while block := file.read1(size):
                total += len(block)
                yield block
                if isinstance(file, gzip.GzipFile) and total > MAX_UNPACKED:
                    size_limit = f"{MAX_UNPACKED >> 20} MiB"
                    lost_notes.append(f"'{path.name}' unpacks to more than {size_limit}; the rest is left out")
                    return
        except (EOFError, gzip.BadGzipFile, zlib.error):
            lost_notes.append(f"'{path.name}' is torn or damaged after {total} unpacked bytes; the rest is left out")


def _opened(path: Path) -> gzip.GzipFile | BufferedIOBase:
    if path.suffix == NOTEBOOK:
        return BytesIO(_notebook(path)[0])
    with path.open("rb") as file:
        packed = file.read(len(GZIP)) == GZIP
    return gzip.open(path) if packed else path.open("rb")


def source(path: Path) -> Sequence[str]:
    """Return the source of each code cell of a notebook, in their order; of another file none."""
    return _notebook(path)[1] if path.suffix == NOTEBOOK else ()


def _notebook(path: Path) -> tuple[bytes, Sequence[str]]:
    stat = path.stat()
    return _cells(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=1)
def _cells(path: Path, changed: int, size: int) -> tuple[bytes, Sequence[str]]:
    """Return what the cells of a notebook showed, and their source; of an output its table in HTML, else its text."""
    document = parse_json(path.read_bytes()) if size <= MAX_NOTEBOOK else None
    cells = document.get("cells") if isinstance(document, dict) else None
    output_texts, sources = list[str](), list[str]()
    for cell in cells if isinstance(cells, list) else ():
        outputs = cell.get("outputs") if isinstance(cell, dict) else None
        sources += [_joined(cell.get("source"))] if isinstance(outputs, list) else []
        for output in outputs if isinstance(outputs, list) else ():
            data = output.get("data") if isinstance(output, dict) else None
            formats = data if isinstance(data, dict) else {}
            table = _joined(formats.get("text/html"))
            output_texts.append(table if "<tr" in table else _joined(formats.get("text/plain") or output.get("text")))
    return "\n".join(output_texts).encode(errors="replace"), sources


def _joined(text: Any) -> str:
    """Return a text of a notebook, which may be a list of its lines."""
    return "".join(map(str, text)) if isinstance(text, list) else text if isinstance(text, str) else ""


def _decoded(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield text as UTF-8 without its mark; in UTF-16 are texts that PowerShell redirected."""
    first = next(blocks, b"")
    if first[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
        yield decoder.decode(first).encode(errors="replace")
        yield from (decoder.decode(block).encode(errors="replace") for block in blocks)
        return
    yield first.removeprefix(codecs.BOM_UTF8)
    yield from blocks


def head(path: Path, size: int) -> bytes:
    """Return the first bytes of a file, unpacked."""
    content = b""
    for block in _blocks(path, [], min(size, BLOCK)):
        content += block
        if len(content) >= size:
            break
    return content[:size]


def text_of(line: bytes) -> str:
    """Return the text of a line as it stands."""
    return line.decode("utf-8", errors="replace")


def plain(line: bytes) -> str:
    """Return the text of a line without its colours and the prefix of Ray."""
    return text_of(RAY.sub(b"", COLOUR.sub(b"", line) if b"\x1b" in line else line))


def objects(path: Path, notes: list[str] | None = None) -> Iterator[list[dict[str, Any]]]:
    """Yield the JSON objects of a file, one per line, in chunks; arguments as of ``lines``."""
    broken = 0
    for chunk in lines(path, notes):
        rows, bad = parse_objects(chunk)
        broken += bad
        if rows:
            yield rows
    if broken and notes is not None:
        notes.append(f"lines left out, for they are torn or no JSON object: {broken}")


def parse_objects(lines: list[bytes]) -> tuple[list[dict[str, Any]], int]:
    """Return the JSON objects of some lines, and how many lines hold none; blank lines are not counted."""
    # One call for all lines is several times faster than one per line.
    parsed = parse_json(b"[" + b",".join(lines) + b"]")
    # A torn line and the next may happen to make valid JSON together: then the count differs.
    if isinstance(parsed, list) and len(parsed) == len(lines) and set(map(type, parsed)) == {dict}:
        return parsed, 0
    filled = [line for line in lines if line and not line.isspace()]
    rows = [row for row in map(parse_json, filled) if isinstance(row, dict)]
    return rows, len(filled) - len(rows)


def parse_json(text: bytes) -> Any:
    """Return what a JSON text holds, or None for what is no JSON or nested too deeply to be a log.

    Of what the quicker parser takes it makes the same as Python's, which is asked about all that it refuses: deep
    nesting, broken Unicode.
    """
    if len(text) >= LARGE:
        from pydantic_core import from_json

        try:
            return from_json(text)
        except ValueError:
            pass
    try:
        return json.loads(text_of(text))
    except (ValueError, RecursionError):
        return None
