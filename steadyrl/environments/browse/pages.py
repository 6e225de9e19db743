"""Pages of the site as data: what they are made of, as HTML for a browser and as a snapshot without one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from urllib.parse import urlencode

from steadyrl.environments.browse.browser.snapshot import Element, Line, Piece


@dataclass(frozen=True)
class Link:
    """Leads to a path of the site."""

    text: str
    path: str


@dataclass(frozen=True)
class Button:
    """Sends the form it stands in."""

    text: str


@dataclass(frozen=True)
class Field:
    """A box to write into."""

    name: str
    value: str = ""


@dataclass(frozen=True)
class Box:
    """A box to tick."""

    name: str
    on: bool = False


@dataclass(frozen=True)
class Choice:
    """A list to choose one of."""

    name: str
    options: tuple[str, ...]
    value: str


Control = Field | Box | Choice
Cell = str | Link | Button | Control


@dataclass(frozen=True)
class Heading:
    """What the page is about."""

    text: str


@dataclass(frozen=True)
class Row:
    """Things that stand on one line."""

    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Form:
    """Rows whose controls are sent together."""

    action: str
    """The path they are sent to."""
    rows: tuple[Row, ...]
    """The lines."""
    asks: bool = False
    """True where sending only shows another page (GET), False where it changes something (POST)."""


Block = Heading | Row | Form
Page = tuple[Block, ...]


def row(*cells: Cell) -> Row:
    """Return a row of cells."""
    return Row(cells)


def address(path: str, fields: Mapping[str, str]) -> str:
    """Return a path with its question: ("/items", {"q": "red"}) is /items?q=red."""
    return f"{path}?{urlencode(fields)}" if fields else path


def controls(page: Page) -> list[tuple[Link | Button | Control, Form | None]]:
    """Return everything that can be acted on, in the order of its numbers, with the form it stands in."""
    elements: list[tuple[Link | Button | Control, Form | None]] = []
    for block in page:
        form = block if isinstance(block, Form) else None
        elements += [(cell, form) for page_row in _rows(block) for cell in page_row.cells if not isinstance(cell, str)]
    return elements


def initial_value(cell: Link | Button | Control) -> str:
    """Return what a control holds when its page is loaded: text, the chosen option, "on" or "" for a box."""
    match cell:
        case Field(value=value) | Choice(value=value):
            return value
        case Box(on=on):
            return "on" if on else ""
    return ""


def page_lines(page: Page, values: Sequence[str]) -> tuple[Line, ...]:
    """Return what a page shows.

    Args:
        page: The page.
        values: What each of ``controls(page)`` holds now.
    """
    lines: list[Line] = []
    number = 0
    for block in page:
        if isinstance(block, Heading):
            lines.append((f"heading {block.text}",))
        for page_row in _rows(block):
            pieces: list[Piece] = []
            for cell in page_row.cells:
                if isinstance(cell, str):
                    pieces.append(cell)
                else:
                    pieces.append(_element(cell, values[number]))
                    number += 1
            lines.append(tuple(pieces))
    return tuple(lines)


def page_html(page: Page) -> str:
    """Return a page as HTML, which a browser shows as ``page_lines`` says."""
    lines: list[str] = []
    number = 0
    for block in page:
        if isinstance(block, Heading):
            lines.append(f"<h1>{escape(block.text)}</h1>")
        if isinstance(block, Form):
            method = "get" if block.asks else "post"
            lines.append(f'<form action="{escape(block.action)}" method="{method}" autocomplete="off">')
        for page_row in _rows(block):
            cells = []
            for cell in page_row.cells:
                cells.append(f"<span>{_cell_html(cell, number)}</span>")
                number += not isinstance(cell, str)
            lines.append(f'<div class="row">{" ".join(cells)}</div>')
        if isinstance(block, Form):
            lines.append("</form>")
    return _DOCUMENT.format(body="\n".join(lines))


def _rows(block: Block) -> tuple[Row, ...]:
    match block:
        case Row():
            return (block,)
        case Form(rows=rows):
            return rows
    return ()


def _element(cell: Link | Button | Control, value: str) -> Element:
    match cell:
        case Link(text):
            return Element("link", text)
        case Button(text):
            return Element("button", text)
        case Field(name):
            return Element("textbox", name, " ".join(value.split()))
        case Box(name):
            return Element("checkbox", name, value)
        case Choice(name, options):
            return Element("select", name, value, options)


def _cell_html(cell: Cell, number: int) -> str:
    match cell:
        case str():
            return escape(cell)
        case Link(text, path):
            return f'<a href="{escape(path)}">{escape(text)}</a>'
        case Button(text):
            return f"<button>{escape(text)}</button>"
    label = f'<label for="c{number}">{escape(cell.name)}</label>'
    attributes = f'id="c{number}" name="{escape(cell.name)}"'
    match cell:
        case Field(value=value):
            return f'{label} <input type="text" {attributes} value="{escape(value)}">'
        case Box(on=on):
            return f'<input type="checkbox" {attributes} value="on"{" checked" if on else ""}> {label}'
        case Choice(options=options, value=value):
            option_tags = "".join(
                f"<option{' selected' if option == value else ''}>{escape(option)}</option>" for option in options
            )
            return f"{label} <select {attributes}>{option_tags}</select>"


_DOCUMENT = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>The shop</title><link rel="icon" href="data:,">
<style>
body {{ font: 16px/1.5 sans-serif; max-width: 44em; margin: 2em auto; padding: 0 1em; color: #222; }}
h1 {{ font-size: 1.4em; border-bottom: 3px solid #2a6f97; padding-bottom: .3em; }}
.row {{ padding: .4em 0; border-bottom: 1px solid #e3e3e3; }}
.row span {{ display: inline-block; min-width: 9em; }}
form {{ background: #f4f7f9; padding: .2em .8em; margin: .5em 0; }}
a {{ color: #1b5a80; }}
button {{ font: inherit; padding: .1em .9em; }}
input, select {{ font: inherit; }}
label {{ color: #555; }}
</style></head>
<body>
{body}
</body></html>
"""
