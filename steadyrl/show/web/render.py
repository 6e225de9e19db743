"""Fills in the pages. Every value is escaped and cleaned, so nothing that a model or a file says can become markup."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader
from starlette.responses import HTMLResponse

from steadyrl.core.counting.count import duration
from steadyrl.show.page import html, markup, records, templates
from steadyrl.show.report.rows import moment


@cache
def _environment() -> Environment:
    loader = ChoiceLoader([PackageLoader("steadyrl.show.web"), PackageLoader("steadyrl.show.page")])
    environment = templates.environment(loader, markup.clean, autoescape=True)
    environment.filters |= {"compact": compact, "ago": ago, "moment": moment}
    environment.filters |= {"duration": duration, "records": html.write}
    environment.globals |= {"findings": html.findings, "word": lambda text: html.inline(records.word(text))}
    return environment


def page(template: str, view: Mapping[str, Any], status: int = 200) -> HTMLResponse:
    """Return a page made of a template of this folder."""
    text = _environment().get_template(template).render(view)
    return HTMLResponse(text.encode("utf-8", "replace"), status_code=status)


def compact(value: float | None) -> str:
    """Return a number with about three digits, as short as a table needs it."""
    if value is None:
        return "–"
    if value == int(value) and abs(value) < 10_000:
        return f"{int(value)}"
    return markup.number(value)


def ago(moment_s: float | None) -> str:
    """Return how long ago a time was, in its largest unit."""
    if moment_s is None:
        return "–"
    passed = time.time() - moment_s
    for name, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if passed >= size:
            return f"{int(passed // size)} {name} ago"
    return "just now" if passed < 10 else f"{int(passed)} s ago"


def whole_number(text: str | None, default: int) -> int:
    """Return the number that a part of an address holds; the default where it holds none, or one too long to mean."""
    return int(text) if text is not None and text.isdecimal() and len(text) <= 12 else default
