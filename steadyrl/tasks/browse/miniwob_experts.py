"""Experts for pages of MiniWoB++: they read the goal and the page as the policy does, and nothing else.

There for demonstrations and to show that the pages are played as published; the pages without one can be played too.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from steadyrl.browser.snapshot import Element, Snapshot

# The goal, the page and the number of turns so far to the next action.
Expert = Callable[[str, Snapshot, int], str]

_GIVE_UP = 'stop ""'


def _number(snapshot: Snapshot, name: str, *kinds: str) -> int | None:
    """Return the number of the first element of a name and of one of the kinds (any for none)."""
    for number, element in enumerate(snapshot.elements()):
        if element.name == name and (not kinds or element.kind in kinds):
            return number
    return None


def _of_kind(snapshot: Snapshot, kind: str) -> list[tuple[int, Element]]:
    return [(number, e) for number, e in enumerate(snapshot.elements()) if e.kind == kind]


def _click(number: int | None) -> str:
    return _GIVE_UP if number is None else f"click {number}"


def _submit(snapshot: Snapshot, *names: str) -> str:
    found = (_number(snapshot, name, "button") for name in (*names, "Submit"))
    return _click(next((number for number in found if number is not None), None))


def _quoted(goal: str) -> list[str]:
    return re.findall(r'"([^"]*)"', goal)


def _first_quoted(goal: str) -> str:
    return next(iter(_quoted(goal)), "")


def _fill(snapshot: Snapshot, texts: list[str], *buttons: str) -> str:
    """Write one text after the other into the textboxes, then submit."""
    for (number, box), text in zip(_of_kind(snapshot, "textbox"), texts, strict=False):
        if box.value != text:
            return f'type {number} "{text}"'
    return _submit(snapshot, *buttons)


def _click_test(goal: str, snapshot: Snapshot, turn: int) -> str:
    return _click(_number(snapshot, "Click Me!"))


def _click_test_2(goal: str, snapshot: Snapshot, turn: int) -> str:
    return _click(_number(snapshot, "ONE"))


def _click_quoted(goal: str, snapshot: Snapshot, turn: int) -> str:
    return _click(_number(snapshot, _first_quoted(goal)))


def _click_dialog(goal: str, snapshot: Snapshot, turn: int) -> str:
    return _click(_number(snapshot, "Close", "button"))


def _click_dialog_2(goal: str, snapshot: Snapshot, turn: int) -> str:
    name = _first_quoted(goal)
    return _click(_number(snapshot, "Close" if name == "x" else name, "button"))


def _click_sequence(goal: str, snapshot: Snapshot, turn: int) -> str:
    names = re.findall(r"button ([A-Z]+)", goal)
    return _click(_number(snapshot, names[turn]) if turn < len(names) else None)


def _check(goal: str, snapshot: Snapshot, turn: int) -> str:
    match = re.fullmatch(r"Select (.*) and click Submit\.", goal)
    wanted = match[1].split(", ") if match else []
    for number, element in enumerate(snapshot.elements()):
        if element.kind in ("checkbox", "radio") and (element.name in wanted) != (element.value == "on"):
            return f"click {number}"
    return _submit(snapshot)


def _tab(goal: str, snapshot: Snapshot, turn: int) -> str:
    return _click(_number(snapshot, goal.removeprefix("Click on ").rstrip("."), "link"))


def _collapsible(goal: str, snapshot: Snapshot, turn: int) -> str:
    submit = _number(snapshot, "Submit", "button")
    return _click(submit if turn else next((n for n, e in _of_kind(snapshot, "item")), None))


def _enter_text(goal: str, snapshot: Snapshot, turn: int) -> str:
    return _fill(snapshot, _quoted(goal))


def _enter_password(goal: str, snapshot: Snapshot, turn: int) -> str:
    return _fill(snapshot, _quoted(goal) * 2)


def _login(goal: str, snapshot: Snapshot, turn: int) -> str:
    return _fill(snapshot, _quoted(goal), "Login")


def _focus(goal: str, snapshot: Snapshot, turn: int) -> str:
    match = re.search(r"the (\d)", goal)
    boxes = _of_kind(snapshot, "textbox")
    place = int(match[1]) - 1 if match else 0
    return _click(boxes[place][0] if place < len(boxes) else None)


def _choose(goal: str, snapshot: Snapshot, turn: int) -> str:
    match = re.match(r"Select (.*) from the list", goal)
    for number, box in _of_kind(snapshot, "select"):
        if match and box.value != match[1]:
            return f'select {number} "{match[1]}"'
    return _submit(snapshot)


def _read_table(goal: str, snapshot: Snapshot, turn: int) -> str:
    match = re.match(r"Enter the value of (.*) into the text field", goal)
    rows = {line[0]: line[1] for line in snapshot.lines if len(line) == 2}
    return _fill(snapshot, [str(rows.get(match[1], ""))] if match else [])


def _arithmetic(goal: str, snapshot: Snapshot, turn: int) -> str:
    texts = [piece for line in snapshot.lines for piece in line if isinstance(piece, str)]
    match = re.match(r"(\d+) ([-+x]) (\d+) =", " ".join(texts))
    if not match:
        return _GIVE_UP
    a, b = int(match[1]), int(match[3])
    return _fill(snapshot, [str({"+": a + b, "-": a - b, "x": a * b}[match[2]])])


def _find_word(goal: str, snapshot: Snapshot, turn: int) -> str:
    match = re.search(r"the (\d+)(?:st|nd|rd|th) word", goal)
    words = " ".join(piece for line in snapshot.lines for piece in line if isinstance(piece, str)).split()
    place = int(match[1]) - 1 if match else len(words)
    return _fill(snapshot, [words[place].strip(",.")] if place < len(words) else [])


EXPERTS: dict[str, Expert] = {
    "click-test": _click_test,
    "click-test-2": _click_test_2,
    "click-button": _click_quoted,
    "click-link": _click_quoted,
    "click-dialog": _click_dialog,
    "click-dialog-2": _click_dialog_2,
    "click-button-sequence": _click_sequence,
    "click-checkboxes": _check,
    "click-option": _check,
    "click-tab": _tab,
    "click-collapsible-nodelay": _collapsible,
    "focus-text": _focus,
    "focus-text-2": _focus,
    "enter-text": _enter_text,
    "enter-password": _enter_password,
    "login-user": _login,
    "choose-list": _choose,
    "read-table": _read_table,
    "simple-arithmetic": _arithmetic,
    "find-word": _find_word,
}
