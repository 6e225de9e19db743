"""Numbers and foreign text as they appear on the page: nothing that a model wrote can become markup.

Text from a run may hold anything: tags, backticks, pipes, line breaks, control characters, halves of surrogate pairs.
"""

from __future__ import annotations

import html
import re
from typing import Any

from markupsafe import Markup

from steadyrl.show.page.records import Note, Text

LONGEST_TEXT = 1500  # characters of one answer; the evaluations keep the rest

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# An underscore inside a word starts no emphasis, and kl_ref_k1 stays readable without backslashes.
CODE = re.compile(r"(?<![`\\])(`[^`\\|&<>]+`)(?!`)")
_MARKDOWN = re.compile(r"[\\`*|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|(?<=\])[(:]")


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


def shorten(value: Any, limit: int = LONGEST_TEXT) -> str:
    """Return a text that is cut where it is too long for a page, with how much is missing; nothing gives ""."""
    text = str(value or "")
    return text if len(text) <= limit else f"{text[:limit]} … ({len(text) - limit} more characters)"


def paragraphs(note: Note) -> list[Text]:
    """Return the paragraphs of a note, between which its text has an empty line."""
    return list(re.split(r"\n\s*\n", note.text.strip())) if isinstance(note.text, str) else [note.text]


def markdown(value: Any) -> Any:
    """Escape a value for one line or table cell of Markdown; finished markup is not changed."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    line = " ".join(clean(value).split())
    pieces = CODE.split(line)  # text and code in turn; what stands in a span of code is no markup
    return "".join(
        piece if number % 2 else html.escape(_MARKDOWN.sub(r"\\\g<0>", piece), quote=False)
        for number, piece in enumerate(pieces)
    )


def fence(text: str) -> Markup:
    """Put a text into a Markdown code block whose fence is longer than any run of backticks in it."""
    cleaned = clean(text)
    longest = max((len(run) for run in re.findall("`+", cleaned)), default=0)
    marks = "`" * max(3, longest + 1)
    return Markup(f"{marks}text\n{cleaned}\n{marks}")


def anchor(heading: str) -> str:
    """Return the anchor that pages of Markdown give to a heading."""
    return re.sub(r"[^a-z0-9_ -]", "", heading.lower()).replace(" ", "-")
