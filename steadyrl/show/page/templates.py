"""Fills in templates: those of model cards, and the frames of the pages of ``steadyrl web``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jinja2 import BaseLoader, Environment, StrictUndefined

from steadyrl.show.page.markup import fence, interval, number, signed


def environment(loader: BaseLoader, finalize: Callable[[Any], Any], autoescape: bool) -> Environment:
    """Return what fills in templates.

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
    filters = (number, signed, interval, fence)
    jinja_environment.filters |= {function.__name__: function for function in filters}
    return jinja_environment
