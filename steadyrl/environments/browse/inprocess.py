"""The site without a browser: pages are followed, forms filled and sent in-process, as a browser would."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

from steadyrl.environments.browse.browser.actions import Back, Click, Select, Type
from steadyrl.environments.browse.browser.snapshot import Snapshot
from steadyrl.environments.browse.pages import (
    Box,
    Button,
    Choice,
    Field,
    Form,
    Link,
    Page,
    address,
    controls,
    initial_value,
    page_lines,
)
from steadyrl.environments.browse.site import change, show
from steadyrl.environments.browse.world import World


class InProcessTab:
    """See Tab."""

    def __init__(self, world: World, start: str):
        self._world = world
        self._history = [start]
        self._page: Page = ()
        self._values: list[str] = []
        self._fresh = True
        self._load()

    def look(self) -> Snapshot:
        """See Tab."""
        fresh, self._fresh = self._fresh, False
        return Snapshot(page_lines(self._page, self._values), fresh)

    def act(self, action: Click | Type | Select | Back) -> str:
        """See Tab."""
        if isinstance(action, Back):
            if len(self._history) == 1:
                return "there is no page before"
            self._history.pop()
            self._load()
            return ""
        cell, form = controls(self._page)[action.number]
        match action:
            case Click(number):
                return self._click(number, cell, form)
            case Type(number, text):
                if not isinstance(cell, Field):
                    return f"element {number} takes no text"
                self._values[number] = text
            case Select(number, option):
                if not isinstance(cell, Choice):
                    return f"element {number} is no list"
                if option not in cell.options:
                    return f"element {number} has no such option"
                self._values[number] = option
        return ""

    def close(self) -> None:
        """See Tab."""

    def _click(self, number: int, cell: object, form: Form | None) -> str:
        match cell:
            case Link(path=path):
                self._go(path)
            case Button() if form is not None:
                self._send(form)
            case Box():
                self._values[number] = "" if self._values[number] else "on"
            case Choice():
                return f"element {number} is a list; use select"
        return ""

    def _send(self, form: Form) -> None:
        fields = {}
        for (cell, owner), value in zip(controls(self._page), self._values, strict=True):
            # A box that is not ticked is not sent, as in a browser.
            if owner is form and isinstance(cell, Field | Choice | Box) and (value or not isinstance(cell, Box)):
                fields[cell.name] = value
        if form.asks:
            self._go(address(form.action, fields))
        else:
            self._history.append(change(self._world, form.action, fields))
            self._load()

    def _go(self, path: str) -> None:
        # A link to the page that is shown replaces it in the history, as in a browser; what a form changed does not.
        if path != self._history[-1]:
            self._history.append(path)
        self._load()

    def _load(self) -> None:
        path, fields = split_address(self._history[-1])
        self._page = show(self._world, path, fields)
        self._values = [initial_value(cell) for cell, _ in controls(self._page)]
        self._fresh = True


def split_address(target: str) -> tuple[str, Mapping[str, str]]:
    """Return the path of an address and the fields of its question."""
    url = urlsplit(target)
    return url.path, dict(parse_qsl(url.query, keep_blank_values=True))
