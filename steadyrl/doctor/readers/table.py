"""Tables in text: as notebooks and issue threads show them, with bars, tabs or spaces between the cells, or in HTML.

A header is a line of names, one of them a metric's, over a line with as many cells, most of them numbers.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from steadyrl.doctor.readers.lines import Lines, head
from steadyrl.doctor.readers.rows import Rows
from steadyrl.doctor.readers.spelling import spelled
from steadyrl.doctor.series import RawLog

MAX_HTML = 4 << 20  # bytes; they are rewritten as a whole
MAX_TEXT = 1 << 14  # characters of a line
CHUNK = 1024
METRIC = re.compile(r"loss|reward|\bkl\b|entropy|grad", re.IGNORECASE)
STEPS = re.compile(r"step|iter(ation)?|epoch|update|episode", re.IGNORECASE)
RULE = re.compile(r"[\s|:+=_-]*")
TWO_WORDS = re.compile(r"\b(Training|Validation|Train|Eval) (Loss)\b")
NOTHING = {"no log", "", "-", "none"}


class _Table:
    """Takes lines in their order, and keeps the rows of the first table of metrics."""

    def __init__(self) -> None:
        self.rows = Rows()
        self.count = 0
        self._header: list[str] = []
        self._before: list[str] = []
        self._chunk: list[dict[str, Any]] = []

    def add(self, line: str) -> None:
        if len(line) > MAX_TEXT or RULE.fullmatch(line):
            return
        cells = _cells(line)
        header = self._header or self._before
        if header and len(cells) == len(header) + 1:  # an index without a name, as pandas prints
            cells = cells[1:]
        if len(cells) == len(header) and _is_row(cells):
            self._header = header
            self._chunk.append(dict(zip(header, cells, strict=True)))
            self.count += 1
        if len(self._chunk) == CHUNK:
            self.flush()
        self._before = cells if _is_header(cells) else []

    def flush(self) -> None:
        self.rows.add(self._chunk)
        self._chunk = []


def find(path: Path, notes: Sequence[str]) -> RawLog | None:
    """Return the log of the first table of metrics in a text, or None if it holds none."""
    found = _Table()
    for chunk in _lines(path):
        for line in chunk:
            found.add(line)
    found.flush()
    return found.rows.log(str(path), "printed", {}, notes) if found.count else None


def _lines(path: Path) -> Iterator[list[str]]:
    """Yield chunks of lines; of HTML one line for each row of a table."""
    page = head(path, MAX_HTML)
    if b"<tr" in page:
        yield _rewritten(page.decode("utf-8", errors="replace"))
        return
    for chunk in Lines(path):
        yield [line.decode("utf-8", errors="replace") for line in chunk]


def _rewritten(page: str) -> list[str]:
    flat = re.sub(r"\s+", " ", page)
    ruled = re.sub(r"<t[dh]\b[^>]{0,2000}>", "|", re.sub(r"<tr\b[^>]{0,2000}>", "\n", flat))
    return html.unescape(re.sub(r"<[^>]{0,2000}>", "", ruled)).splitlines()


def _cells(line: str) -> list[str]:
    """Return the cells of a line: between bars, else tabs, else two spaces or more, else single ones."""
    text = line.replace("│", "|").replace("┃", "|").strip()
    if "|" in text:
        return [cell.strip() for cell in text.removeprefix("|").removesuffix("|").split("|")]
    if "\t" in text:
        return [cell.strip() for cell in text.split("\t")]
    wide = re.split(r"\s{2,}", text)
    return wide if len(wide) > 2 else TWO_WORDS.sub(r"\1_\2", text).split()


def _is_header(cells: list[str]) -> bool:
    named = all(cell and spelled(cell) is None and len(cell) <= 80 for cell in cells)
    return named and len(cells) > 1 and bool(METRIC.search(" ".join(cells))) and any(map(STEPS.search, cells))


def _is_row(cells: list[str]) -> bool:
    numbers = sum(spelled(cell) is not None for cell in cells)
    nothing = sum(cell.lower() in NOTHING for cell in cells)
    return numbers > 0 and numbers + nothing > len(cells) / 2
