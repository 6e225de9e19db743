"""Numbers and foreign text as they appear on the page: nothing that a model wrote can become markup.

Text from a run may hold anything: tags, backticks, pipes, line breaks, control characters, halves of surrogate pairs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from jinja2 import BaseLoader, Environment, StrictUndefined
from markupsafe import Markup

# Of the pictures' text, axes, grid and ground: the page's own, which differ in the dark.
PAGE_COLOURS = {"#222222": "ink", "#6e6e6e": "soft", "#e4e4e4": "line", "#ffffff": "page"}
LONGEST_TEXT = 1500  # characters of one answer; the evaluations keep the rest

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# An underscore inside a word starts no emphasis, and kl_ref_k1 stays readable without backslashes.
CODE = re.compile(r"(?<![`\\])(`[^`\\|&<>]+`)(?!`)")
_MARKDOWN = re.compile(r"[\\`*|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|(?<=\])[(:]")


def environment(loader: BaseLoader, finalize: Callable[[Any], Any], autoescape: bool) -> Environment:
    """Return what fills in templates, those of the report and those of ``steadyrl web`` alike.

    Args:
        loader: Finds them.
        finalize: Makes every value that a template prints safe for its kind of page, so that none can be forgotten:
            ``markdown`` or ``clean``.
        autoescape: Whether the pages are HTML.
    """
    jinja_environment = Environment(
        loader=loader,
        autoescape=autoescape,
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters = (number, signed, interval, fence, anchor, paragraphs, html_paragraphs)
    jinja_environment.filters |= {function.__name__: function for function in filters}
    return jinja_environment


def number(value: float | None) -> str:
    """Return a number with about three significant digits, or a dash for None."""
    if value is None:
        return "–"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 0.001 or size == 0:
        return f"{value + 0.0:.3f}"  # no "-0.000"
    return f"{value:.1e}"


def signed(value: float | None) -> str:
    """Return a number with its sign, for differences."""
    return f"+{number(value)}" if value is not None and value >= 0 else number(value)


def p_value(p: float) -> str:
    """Return a p-value in the usual form."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def interval(bounds: list[float] | None) -> str:
    """Return [low, high], or a dash for None."""
    return "–" if bounds is None else f"[{number(bounds[0])}, {number(bounds[1])}]"


def clean(value: Any) -> Any:
    """Replace characters that no page can show. Numbers and finished markup are not changed."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return _CONTROL.sub("\ufffd", value.replace("\r\n", "\n").replace("\r", "\n"))


def shorten(text: str) -> str:
    """Cut a text that is too long for a page, and say by how much."""
    excess = len(text) - LONGEST_TEXT
    return text if excess <= 0 else f"{text[:LONGEST_TEXT]} … ({excess} more characters)"


def markdown(value: Any) -> Any:
    """Escape a value for one line or table cell of Markdown; finished markup is not changed."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    line = " ".join(clean(value).split())
    pieces = CODE.split(line)  # text and code in turn; what stands in a span of code is no markup
    return "".join(piece if number % 2 else _escaped(piece) for number, piece in enumerate(pieces))


def _escaped(text: str) -> str:
    escaped = _MARKDOWN.sub(r"\\\g<0>", text)
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def fence(text: str) -> Markup:
    """Put a text into a Markdown code block whose fence is longer than any run of backticks in it."""
    cleaned = clean(text)
    longest = max((len(run) for run in re.findall("`+", cleaned)), default=0)
    marks = "`" * max(3, longest + 1)
    return Markup(f"{marks}text\n{cleaned}\n{marks}")


def anchor(heading: str) -> str:
    """Return the anchor that pages of Markdown give to a heading."""
    return re.sub(r"[^a-z0-9_ -]", "", heading.lower()).replace(" ", "-")


def paragraphs(text: str) -> Markup:
    """Return a user's own text for a page of Markdown: each paragraph escaped, on one line."""
    return Markup("\n\n".join(str(markdown(part)) for part in _parts(text)))


def html_paragraphs(text: str) -> Markup:
    """Return a user's own text for an HTML page: each paragraph escaped, in an element of its own."""
    return Markup("\n").join(Markup("<p>{}</p>").format(clean(part)) for part in _parts(text))


def _parts(text: str) -> list[str]:
    return [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]


def inline_svg(svg: str, name: str) -> Markup:
    """Make a drawn SVG part of an HTML page: no prolog, no name spaces, unique ids, as wide and as dark as the page."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r' xmlns(:xlink)?="[^"]*"', "", body)
    body = re.sub(r' width="[^"]*" height="[^"]*"', "", body, count=1)
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", body)
    for colour, variable in PAGE_COLOURS.items():
        body = body.replace(f": {colour}", f": var(--{variable}, {colour})")
    return Markup(body)
