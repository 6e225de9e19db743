"""Writes records in a terminal. Text is printed without control characters, so that none can act on the terminal."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text as Line

from steadyrl.core.errors import printable
from steadyrl.show.page import records

STYLES: dict[records.Tone, str] = {
    "good": "bold green", "bad": "bold red", "warn": "bold yellow", "info": "bold cyan", "none": "",
}  # fmt: skip
ROLES = {"strong": "bold", "soft": "dim", "headline": "bold", "code": "", "note": "", "": ""}
LONGEST = 300  # characters of a prompt or an answer
UNBROKEN = 130  # columns if the output is not a terminal


def show(content: Iterable[records.Record]) -> None:
    """Print records."""
    # A model's text may contain characters that the terminal's encoding lacks.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    width = None if sys.stdout.isatty() else UNBROKEN
    console = Console(highlight=False, markup=False, emoji=False, width=width)
    for record in content:
        for rendered in lines(record):
            # Where nothing is wrapped, text with a margin or in a table would be cut at the last column.
            console.print(rendered, soft_wrap=width is not None and isinstance(rendered, Line | str))


def line(text: records.Text, style: str = "") -> Line:
    """Return a text on one line, with its roles as styles."""
    if isinstance(text, tuple):
        return Line.assemble(*(line(piece, style) for piece in text))
    if isinstance(text, records.Span):
        return line(text.text, STYLES[text.tone] if text.role == "word" else ROLES[text.role])
    ends = " " * text[:1].isspace(), " " * text[1:][-1:].isspace()
    printed = printable(" ".join(text.split())).replace("→", "->")  # not every terminal has the arrow
    return Line(f"{ends[0]}{printed}{ends[1]}", style)


def lines(record: records.Record) -> Iterable[RenderableType]:
    """Return what is printed of one record; pictures and the like are the pages' alone."""
    match record:
        case records.Heading():
            return "", line(record.text, "bold")
        case records.Note():
            return (line(record.text, STYLES[record.tone] or ROLES[record.role]),)
        case records.Facts():
            grid = Grid.grid(padding=(0, 2))
            for name, text in record.rows:
                grid.add_row(line(name, "dim"), line(text))
            return (grid,)
        case records.Items():
            return [line(("- ", *(text if isinstance(text, tuple) else (text,)))) for text in record.texts]
        case records.Table():
            return (_table(record),)
        case records.Code():
            return (Line(printable(record.text), no_wrap=True, overflow="ignore"),)  # whole, to be pasted
        case records.Sample():
            title = line((f"{records.plain(record.title)}: ", _short(record.prompt)), "bold")
            printed: list[RenderableType] = ["", title]
            for answer in record.answers:
                printed.append(Padding(line(answer.label, "dim"), (0, 0, 0, 2), expand=False))
                printed.append(Padding(line(_short(answer.text) or "(nothing)"), (0, 0, 0, 4), expand=False))
            return printed
        case records.Fold():
            return [line(record.summary), *(rendered for inner in record.records for rendered in lines(inner))]
        case _:
            return ()


def _table(record: records.Table) -> Grid:
    grid = Grid(box=None, header_style="dim")
    for column in record.heads:
        grid.add_column(line(column.name), justify="right" if column.number else "left", overflow="fold")
    for number, row in enumerate(record.rows):
        cells = [row] if isinstance(row, str) else row
        grid.add_row(*map(line, cells), style="bold" if isinstance(row, str) or number in record.ours else "")
    return grid


def _short(text: str) -> str:
    joined = " ".join(text.split())
    return joined if len(joined) <= LONGEST else f"{joined[:LONGEST]} ..."
