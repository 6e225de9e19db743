"""Metrics that a trainer printed as Python dicts among other output, as TRL does: {'loss': '0.1', 'epoch': 0.5}."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from steadyrl.doctor.readers.lines import Lines
from steadyrl.doctor.readers.rows import Rows
from steadyrl.doctor.series import RawLog

MAX_TEXT = 1 << 16  # parsing takes hundreds of times the memory of the text
MAX_BRACKETS = 100
DICT = re.compile(r"\{ *'.*\}", re.DOTALL)
# Numbers that Python shows in a form that is no literal.
BARE = re.compile(r"(?<=: )(-?(?:nan|inf)\b|(?:\w+\.)*(?:float|int|bfloat|tensor|array)\w*\([^()]*\))")


def read(path: Path) -> RawLog:
    """Read the dicts with numbers that a console log holds."""
    rows = Rows()
    lines = Lines(path)
    for chunk in lines:
        rows.add(find_rows(chunk))
    return rows.log(str(path), "printed", {}, lines.notes())


def find_rows(lines: list[bytes]) -> list[dict[str, Any]]:
    """Return the dicts with at least one number that some lines hold, one per line at most."""
    found = (_parse(line.decode("utf-8", errors="replace")) for line in lines if b"{" in line and b"'" in line)
    return [row for row in found if row]


def _parse(line: str) -> dict[str, Any]:
    held = DICT.search(line)
    # Metrics have no backslashes; Python would warn of some of them while parsing.
    if held is None or len(held[0]) > MAX_TEXT or "\\" in held[0] or held[0].count("[") > MAX_BRACKETS:
        return {}
    for text in (held[0], BARE.sub(r"'\1'", held[0])):
        try:
            row = ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):  # text that only looks like a dict
            continue
        return {str(key): value for key, value in row.items()} if isinstance(row, dict) else {}
    return {}
