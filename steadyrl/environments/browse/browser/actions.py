"""What a policy may do on a page: the grammar of actions, parsed strictly."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

MOST_TYPED = 200  # characters of a quoted text


@dataclass(frozen=True)
class Click:
    """Press a link, button, checkbox or anything else with a number."""

    number: int


@dataclass(frozen=True)
class Type:
    """Replace what stands in a textbox."""

    number: int
    text: str


@dataclass(frozen=True)
class Select:
    """Choose an option of a list by its text."""

    number: int
    option: str


@dataclass(frozen=True)
class Scroll:
    """Show the lines before or after those shown now."""

    direction: Literal["down", "up"]


@dataclass(frozen=True)
class Back:
    """Return to the page before."""


@dataclass(frozen=True)
class Stop:
    """End the episode, with an answer where one is asked for."""

    answer: str


Action = Click | Type | Select | Scroll | Back | Stop

_CLICK = re.compile(r"click ([0-9]{1,3})")
_WRITE = re.compile(r'(type|select) ([0-9]{1,3}) "([^"\n]*)"')
_STOP = re.compile(r'stop "([^"\n]*)"')


def parse(text: str) -> Action | str:
    """Return the action that a text is, or one line that says why it is none.

    Space around the text and just inside the quotes is not part of it, so that a tokenizer with spaces before its words
    may write them.
    """
    text = text.strip()
    if match := _CLICK.fullmatch(text):
        return Click(int(match[1]))
    if match := _WRITE.fullmatch(text):
        text = match[3].strip()
        if reason := _untypable(text):
            return reason
        return Type(int(match[2]), text) if match[1] == "type" else Select(int(match[2]), text)
    if match := _STOP.fullmatch(text):
        return _untypable(match[1].strip()) or Stop(match[1].strip())
    match text:
        case "scroll down":
            return Scroll("down")
        case "scroll up":
            return Scroll("up")
        case "back":
            return Back()
    return "that is no action"  # short: every word of it is read again at every turn that follows


def _untypable(text: str) -> str:
    if len(text) > MOST_TYPED:
        return f"a text of {len(text)} characters; {MOST_TYPED} at most"
    return "" if text.isprintable() else "a text that no keyboard writes"
