"""Writes records as HTML. All text is escaped here, so nothing that a model or a file says can become markup."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from steadyrl.doctor.causes import Placed
from steadyrl.show.page.markup import CODE, clean, paragraphs
from steadyrl.show.page.records import Curves, Picture, Record, Span, Text, word

if TYPE_CHECKING:
    from jinja2 import Environment

DEEPEST = 3  # that a consequence is moved in
HERE, ASSETS = Path(__file__).parent, Path(__file__).parent.parent / "web" / "static"
# Of the pictures' text, axes, grid and ground: the page's own, which differ in the dark.
PAGE_COLOURS = {"#222222": "ink", "#6e6e6e": "soft", "#e4e4e4": "line", "#ffffff": "page"}


def page(title: str, records: Iterable[Record]) -> str:
    """Return a whole page that loads nothing, with its styles and, for curves, its scripts inside."""
    records = list(records)  # they are gone through twice
    files = [HERE / "page.css"]
    if any(isinstance(record, Curves) for record in records):
        files += [ASSETS / "uplot.min.css", HERE / "curves.css"]
    template = _environment().get_template("page.html.j2")
    return template.render(title=title, style=_embedded(files), content=write(records))


def write(records: Iterable[Record]) -> Markup:
    """Return records as a part of a page."""
    return _macro("write", list(records))


def findings(placed: Iterable[Placed], steps: bool = False) -> Markup:
    """Return findings as a tree that unfolds; what harms is open.

    Args:
        placed: Each with its depth.
        steps: Whether the page has curves: the step at which a finding begins is then a button that shows it.
    """
    return _macro("findings", list(placed), steps)


def inline(text: Text) -> Markup:
    """Return a text with its roles; what stands between backticks is code."""
    if isinstance(text, tuple):
        return Markup("").join(map(inline, text))
    if isinstance(text, Span):
        inner = escape(clean(text.text)) if text.role == "code" else inline(text.text)
        if text.href:
            inner = Markup('<a href="{}">{}</a>').format(text.href, inner)
        tag, attribute = {
            "strong": ("strong", ""), "code": ("code", ""), "soft": ("span", Markup(' class="soft"')),
            "word": ("span", Markup(f' class="word is-{text.tone}"')), "": ("", ""),
        }[text.role]  # fmt: skip
        return Markup("<{0}{1}>{2}</{0}>").format(tag, attribute, inner) if tag else inner
    pieces = CODE.split(clean(text))  # text and code in turn
    return Markup("").join(
        Markup("<code>{}</code>").format(piece[1:-1]) if number % 2 else escape(piece)
        for number, piece in enumerate(pieces)
    )


def unique_svg(svg: str, name: str) -> str:
    """Make a drawn SVG part of a page or picture: no prolog, no name spaces, unique ids, as wide as there is room."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r' xmlns(:xlink)?="[^"]*"', "", body)
    body = re.sub(r' width="[^"]*" height="[^"]*"', "", body, count=1)
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", body)


def inline_svg(svg: str, name: str) -> Markup:
    """Make a drawn SVG part of an HTML page, as dark as the page."""
    body = unique_svg(svg, name)
    for colour, variable in PAGE_COLOURS.items():
        body = body.replace(f": {colour}", f": var(--{variable}, {colour})")
    return Markup(body)


def _panels(record: Picture) -> list[Markup]:
    """Return the panels of a picture; without any the file is shown."""
    name = record.file.rpartition(".")[0]
    panels = [inline_svg(svg, f"{name}{number or ''}") for number, svg in enumerate(record.panels)]
    return panels or [Markup('<img src="{}" alt="{}">').format(record.file, clean(record.label))]


def _embedded(files: Iterable[Path]) -> Markup:
    return Markup("\n".join(file.read_text("utf-8") for file in files))


def _macro(name: str, *arguments: object) -> Markup:
    macro = getattr(_environment().get_template("records.html.j2").module, name)
    return Markup(macro(*arguments))


@cache
def _environment() -> Environment:
    from jinja2 import PackageLoader  # the doctor prints a small log in less time than Jinja takes to load

    from steadyrl.show.page import templates

    environment = templates.environment(PackageLoader("steadyrl.show.page"), clean, autoescape=True)
    environment.filters |= {"inline": inline, "panels": _panels, "paragraphs": paragraphs}
    # The data of curves cannot end their script.
    environment.filters["data"] = lambda record: Markup(record.data.replace("<", "\\u003c"))
    environment.globals |= {
        "word": word,
        "deepest": DEEPEST,
        "kind_of": lambda record: type(record).__name__,
        "pairs": lambda heads, row: zip(heads, row, strict=True),
        "curves_script": lambda: _embedded(ASSETS / f"{name}.js" for name in ("uplot.min", "save", "charts")),
    }
    return environment
