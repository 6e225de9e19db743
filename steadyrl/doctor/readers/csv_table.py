"""Tables as text: a header and rows, separated by commas, semicolons or tabs."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from steadyrl.doctor.readers.lines import Lines
from steadyrl.doctor.readers.rows import Rows, find_step_key
from steadyrl.doctor.readers.spelling import spelled
from steadyrl.doctor.series import RawLog

SEPARATORS = ",\t;"
CHUNK = 4096


def find_separator(header: str, row: str) -> str | None:
    """Return what separates the cells of a table, or None if these are not its first two lines."""
    for separator in SEPARATORS:
        names, cells = (next(_rows(iter([line]), separator), []) for line in (header, row))
        has_names = any(name.strip() for name in names) and all(spelled(name) is None for name in names)
        if len(names) == len(cells) > 1 and has_names and any(spelled(cell) is not None for cell in cells):
            return separator
    return None


def names_step(header: str, row: str, separator: str) -> bool:
    """Return whether a table has a column of steps."""
    names, cells = (next(_rows(iter([line]), separator)) for line in (header, row))
    return find_step_key([dict(zip(names, cells, strict=True))]) is not None


def read(path: Path, separator: str) -> RawLog:
    """Read a table; an empty cell is no value, and a row with too few or too many cells is left out."""
    rows = Rows()
    lines = Lines(path)
    text = (line.decode("utf-8", errors="replace") for chunk in lines for line in chunk)
    table = _rows(text, separator)
    names = next(table)
    chunk: list[dict[str, Any]] = []
    broken = 0
    for cells in table:
        if len(cells) == len(names):
            chunk.append({name: cell for name, cell in zip(names, cells, strict=True) if name and cell})
        else:
            broken += bool(cells)
        if len(chunk) == CHUNK:
            rows.add(chunk)
            chunk = []
    rows.add(chunk)
    notes = lines.notes()
    if broken:
        notes.append(f"rows left out, for they have not {len(names)} cells: {broken}")
    return rows.log(str(path), "csv", {}, notes)


def _rows(lines: Iterator[str], separator: str) -> Iterator[list[str]]:
    """Yield the cells of each row; of a row that is no text of a table, one empty cell."""
    reader = csv.reader(lines, delimiter=separator)
    while True:
        try:
            yield next(reader)
        except StopIteration:
            return
        except csv.Error:
            yield [""]
