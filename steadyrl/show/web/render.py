"""Fills in the pages. Every value is escaped and cleaned, so nothing that a model or a file says can become markup."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader
from starlette.responses import HTMLResponse

from steadyrl.core.counting.count import duration
from steadyrl.show.page import html, markup, records, templates


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


def moment(moment_s: float | None) -> str:
    """Return a time as a date and a clock, in UTC."""
    if moment_s is None or not 0 <= moment_s < 1e11:
        return "–"
    return datetime.fromtimestamp(moment_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
