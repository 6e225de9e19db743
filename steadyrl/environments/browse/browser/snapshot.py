"""A page as lines of text with numbered elements: what a policy sees of it, whatever shows the page.

A real browser and the site run in-process both end in a ``Snapshot``; everything after it (numbers, the part of the
page that is shown, the text) is the same code for both.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from steadyrl.environments.browse.browser.actions import Back, Click, Select, Type

LONGEST_NAME = 60  # characters of a name or a value, of which the rest is cut, and of one line of a longer text


@dataclass(frozen=True)
class Element:
    """Something that can be acted on."""

    kind: str
    """"link", "button", "textbox", "checkbox", "radio", "select" or "item" (anything else that can be clicked)."""
    name: str
    """What a reader would call it."""
    value: str = ""
    """What stands in a textbox or is chosen of a list; "on" for a checked box; else ""."""
    options: tuple[str, ...] = ()
    """The texts of a list's options."""


Piece = str | Element
Line = tuple[Piece, ...]


@dataclass(frozen=True)
class Snapshot:
    """What a page shows."""

    lines: tuple[Line, ...]
    """From top to bottom; elements are numbered from 0 in this order."""
    fresh: bool = True
    """True if the page was loaded since the last snapshot."""

    def elements(self) -> list[Element]:
        """Return the elements in the order of their numbers."""
        return [piece for line in self.lines for piece in line if isinstance(piece, Element)]


class Tab(Protocol):
    """A page that can be looked at and acted on. Every method may raise EpisodeError if the page broke."""

    def look(self) -> Snapshot:
        """Return what the page shows now."""

    def act(self, action: Click | Type | Select | Back) -> str:
        """Act on the page as last looked at; return why that is impossible, "" where it was done."""

    def close(self) -> None:
        """Leave the page for good."""


@dataclass(frozen=True)
class Window:
    """The lines of a page that fit into an observation, beginning with the one of number ``first``."""

    lines: tuple[str, ...]
    numbers: frozenset[int]
    has_before: bool
    has_after: bool

    def text(self) -> str:
        """Return the window with a word on what lies outside."""
        header = ("more above",) if self.has_before else ()
        footer = ("more below",) if self.has_after else ()
        return "\n".join([*header, *self.lines, *footer])


def windows(snapshot: Snapshot, characters: int) -> list[Window]:
    """Cut a page into windows of at most so many characters, at least one line each; one at least."""
    cuts: list[list[tuple[str, list[int]]]] = [[]]
    size, number = 0, 0
    for line in snapshot.lines:
        for text, numbers in _text_lines(line, number):
            number += len(numbers)
            if cuts[-1] and size + len(text) > characters:
                cuts.append([])
                size = 0
            cuts[-1].append((text, numbers))
            size += len(text) + 1
    return [
        Window(
            tuple(text for text, _ in cut),
            frozenset(n for _, numbers in cut for n in numbers),
            has_before=i > 0,
            has_after=i + 1 < len(cuts),
        )
        for i, cut in enumerate(cuts)
    ]


def element_text(number: int, element: Element) -> str:
    """Return an element as a policy sees it, such as ``[3] textbox name = red``."""
    text = f"[{number}] {element.kind}"
    if element.name:
        text += f" {shorten(element.name)}"
    if element.value:
        text += f" = {shorten(element.value)}"
    if element.options:
        text += " of " + " / ".join(shorten(option) for option in element.options)
    return text


def shorten(text: str) -> str:
    """Return a text on one line, single-spaced, cut after LONGEST_NAME characters."""
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 3].rstrip() + "..."


def _text_lines(line: Sequence[Piece], number: int) -> list[tuple[str, list[int]]]:
    """Return a line of a page as lines of text, each with the numbers of its elements; a long text takes several."""
    text_lines: list[tuple[list[str], list[int]]] = [([], [])]
    for piece in line:
        if isinstance(piece, Element):
            text_lines[-1][0].append(element_text(number, piece))
            text_lines[-1][1].append(number)
            number += 1
            continue
        first, *remaining = textwrap.wrap(piece, LONGEST_NAME) or [""]
        text_lines[-1][0].append(first)
        text_lines += [([wrapped], []) for wrapped in remaining]
    return [(" | ".join(texts), numbers) for texts, numbers in text_lines]
