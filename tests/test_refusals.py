"""docs/models.md lists everything that is not supported; every line that it quotes stands in the code."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
SHORTEST = 10  # characters of a quoted part that can be told from others


def quoted():
    """Return the second column of the tables under "What is not supported"."""
    section = (ROOT / "docs" / "models.md").read_text().partition("## What is not supported")[2]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [row[1].strip() for row in rows if row[1].strip() not in ("what is said", "---")]


@cache
def strings():
    """Return every text of the package, read once; of one with values in it, the values are left out."""
    found = []
    for path in (ROOT / "steadyrl").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(p.value if isinstance(p, ast.Constant) else "\0" for p in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def pieces(line):
    """Return the pieces of a quoted line that are long enough to be looked for."""
    pieces = [piece.strip(" '") for piece in line.split("...")]
    return [piece for piece in pieces if len(piece) >= SHORTEST]


def test_refusals_that_the_list_quotes_stand_in_the_code():
    assert [line for line in quoted() if not pieces(line)] == [], "too short to be found"
    wanted = [(line, piece) for line in quoted() for piece in pieces(line)]
    assert [(line, piece) for line, piece in wanted if not any(piece in text for text in strings())] == []


def test_the_list_is_not_empty_and_a_line_that_nobody_says_is_missed():
    assert len(quoted()) > 20
    assert not any("holds weights that nobody wrote" in text for text in strings())
    assert re.search(r"What is not supported", (ROOT / "docs" / "models.md").read_text())
