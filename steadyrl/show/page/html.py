"""Writes records as HTML. All text is escaped here, so nothing that a model or a file says can become markup."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import singledispatch
from pathlib import Path

from markupsafe import Markup, escape

from steadyrl.core.types import Finding
from steadyrl.doctor.causes import Placed
from steadyrl.show.page.markup import CODE, clean
from steadyrl.show.page.records import (
    Code,
    Column,
    Curves,
    Facts,
    Findings,
    Fold,
    Heading,
    Items,
    Note,
    Picture,
    Record,
    Sample,
    Span,
    Table,
    Text,
    word,
)

DEEPEST = 3  # that a consequence is moved in
HERE, ASSETS = Path(__file__).parent, Path(__file__).parent.parent / "web" / "static"
# Of the pictures' text, axes, grid and ground: the page's own, which differ in the dark.
PAGE_COLOURS = {"#222222": "ink", "#6e6e6e": "soft", "#e4e4e4": "line", "#ffffff": "page"}
PAGE = Markup("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body class="alone">
<main>
{content}
</main>
</body>
</html>
""")


def page(title: str, records: Iterable[Record]) -> str:
    """Return a whole page that loads nothing, with its styles and, for curves, its scripts inside."""
    shown = list(records)
    files = [HERE / "page.css"]
    if any(isinstance(record, Curves) for record in shown):
        files += [ASSETS / "uplot.min.css", HERE / "curves.css"]
    style = Markup("\n".join(file.read_text("utf-8") for file in files))
    return PAGE.format(title=clean(title), style=style, content=write(shown))


def write(records: Iterable[Record]) -> Markup:
    """Return records as a part of a page."""
    return Markup("\n").join(map(html, records))


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


@singledispatch
def html(record: Record) -> Markup:
    """Return one record."""
    raise TypeError(f"no writer for {type(record).__name__}")


@html.register
def _(record: Heading) -> Markup:
    anchor = Markup(' id="{}"').format(record.anchor) if record.anchor else ""
    return Markup("<h{0}{1}>{2}</h{0}>").format(record.level, anchor, inline(record.text))


@html.register
def _(record: Note) -> Markup:
    tone = "" if record.tone == "none" else f" is-{record.tone}"
    role = Markup(f' class="{record.role}{tone}"') if record.role else ""
    parts = re.split(r"\n\s*\n", record.text.strip()) if isinstance(record.text, str) else [record.text]
    return Markup("\n").join(Markup("<p{}>{}</p>").format(role, inline(part)) for part in parts)


@html.register
def _(record: Facts) -> Markup:
    rows = (Markup("<dt>{}</dt><dd>{}</dd>").format(inline(name), inline(text)) for name, text in record.rows)
    return Markup('<dl class="named">\n{}\n</dl>').format(Markup("\n").join(rows))


@html.register
def _(record: Items) -> Markup:
    return _listed(inline(text) for text in record.texts)


@html.register
def _(record: Table) -> Markup:
    heads = record.heads
    head = Markup("").join(Markup("<th{}>{}</th>").format(_number(column), inline(column.name)) for column in heads)
    rows = Markup("\n").join(_row(row, heads, number in record.ours) for number, row in enumerate(record.rows))
    return Markup(
        '<div class="scroll" tabindex="0" role="region" aria-label="{}"><table class="stack">\n'
        "<thead><tr>{}</tr></thead>\n<tbody>\n{}\n</tbody></table></div>"
    ).format(", ".join(column.name for column in heads if column.name), head, rows)


def _row(row: Iterable[Text] | str, heads: list[Column], ours: bool) -> Markup:
    if isinstance(row, str):
        head = Markup('<tr class="group"><th colspan="{}" scope="rowgroup">{}</th></tr>')
        return head.format(len(heads), inline(row))
    cells = [
        Markup("<td{}{}>{}</td>").format(
            _number(column), Markup(' data-label="{}"').format(clean(column.name)) if place else "", inline(cell)
        )
        for place, (column, cell) in enumerate(zip(heads, row, strict=True))
    ]
    return Markup("<tr{}>{}</tr>").format(Markup(' class="ours"') if ours else "", Markup("").join(cells))


def _number(column: Column) -> Markup:
    return Markup(' class="n"' if column.number else "")


@html.register
def _(record: Code) -> Markup:
    return Markup("<pre>{}</pre>").format(clean(record.text))


@html.register
def _(record: Picture) -> Markup:
    name = record.file.rpartition(".")[0]
    shown = [inline_svg(svg, f"{name}{number or ''}") for number, svg in enumerate(record.panels)]
    shown = shown or [Markup('<img src="{}" alt="{}">').format(record.file, clean(record.label))]
    panels = Markup("").join(
        Markup('<div class="picture" role="img" aria-label="{}">{}</div>').format(clean(record.label), panel)
        for panel in shown
    )
    caption = Markup("\n<figcaption>{}</figcaption>").format(inline(record.caption)) if record.caption else ""
    return Markup('<figure class="{}">\n<div class="panels">{}</div>{}\n</figure>').format(
        "single" if len(shown) == 1 else "several", panels, caption
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


@html.register
def _(record: Findings) -> Markup:
    return findings(record.placed)


def findings(placed: Iterable[Placed], steps: bool = False) -> Markup:
    """Return findings as a tree that unfolds; what harms is open.

    Args:
        placed: Each with its depth.
        steps: Whether the page has curves: the step at which a finding begins is then a button that shows it.
    """
    return Markup('<ul class="findings">\n{}\n</ul>').format(
        Markup("\n").join(
            Markup('<li class="depth-{}">{}</li>').format(min(entry.depth, DEEPEST), _finding(entry.finding, steps))
            for entry in placed
        )
    )


def _finding(finding: Finding, steps: bool) -> Markup:
    since = ""
    if finding.since_step is not None:
        button = '<button type="button" class="step" data-step="{0}">since step {0}</button>'
        since = Markup(button if steps else '<span class="soft">since step {}</span>').format(finding.since_step)
    summary = Markup('<summary>{} <strong>{}</strong> {} <span class="message">{}</span></summary>').format(
        inline(word(finding.severity)), clean(finding.check), since, inline(finding.message)
    )
    because = f"Cause: {finding.cause.replace('_', ' ')}" if finding.cause else ""
    follows = f"{'; c' if because else 'C'}aused by {finding.follows}" if finding.follows else ""
    details = [
        Markup("<p>{}</p>").format(inline(finding.message)),
        *([Markup('<p class="soft">{}.</p>').format(inline(because + follows))] if because + follows else []),
        *([_listed(map(inline, finding.evidence))] if finding.evidence else []),
        *([Markup("<p><strong>What to do:</strong> {}</p>").format(inline(finding.remedy))] if finding.remedy else []),
        *([html(Code(" ".join(finding.overrides)))] if finding.overrides else []),
        *([Markup('<p class="soft">Source: {}</p>').format(inline(finding.source))] if finding.source else []),
    ]
    return Markup('<details class="finding is-{}" data-name="{}"{}>\n{}\n{}\n</details>').format(
        word(finding.severity).tone,
        clean(f"{finding.check}/{finding.cause}"),
        Markup(" open") if finding.harms and not steps else "",
        summary,
        Markup("\n").join(details),
    )


def _listed(texts: Iterable[Markup]) -> Markup:
    return Markup("<ul>\n{}\n</ul>").format(Markup("\n").join(Markup("<li>{}</li>").format(text) for text in texts))


@html.register
def _(record: Sample) -> Markup:
    answers = [
        Markup('<div><span class="soft">{}</span>\n<pre>{}</pre>{}</div>').format(
            inline(answer.label),
            clean(answer.text),
            Markup('\n<p class="soft">{}</p>').format(inline(answer.remark)) if answer.remark else "",
        )
        for answer in record.answers
    ]
    return Markup(
        '<section class="sample">\n<h3>{}</h3>\n<pre>{}</pre>\n<div class="pair">\n{}\n</div>\n</section>'
    ).format(inline(record.title), clean(record.prompt), Markup("\n").join(answers))


@html.register
def _(record: Curves) -> Markup:
    scripts = Markup("\n".join(file.read_text("utf-8") for file in (ASSETS / "uplot.min.js", HERE / "curves.js")))
    data = Markup(record.data.replace("<", "\\u003c"))  # it cannot end its script
    return Markup(
        '<div id="curves"></div>\n<script type="application/json" id="curves-data">{}</script>\n<script>{}</script>'
    ).format(data, scripts)


@html.register
def _(record: Fold) -> Markup:
    return Markup('<details data-name="{0}"><summary>{0}</summary>\n{1}\n</details>').format(
        clean(record.summary), write(record.records)
    )
