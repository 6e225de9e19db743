"""Experts for pages of MiniWoB++: they read the goal and the page as the policy does, and nothing else.

They give demonstrations, and they show that a page can be solved with the actions that there are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from steadyrl.environments.browse.browser.snapshot import Element, Line, Snapshot

# The goal, the page and the number of turns so far to the next action.
Expert = Callable[[str, Snapshot, int], str]

GIVE_UP = 'stop ""'


def number_of(snapshot: Snapshot, name: str, *kinds: str) -> int | None:
    """Return the number of the first element of a name and of one of the kinds (any for none)."""
    for number, element in enumerate(snapshot.elements()):
        if element.name == name and (not kinds or element.kind in kinds):
            return number
    return None


def texts(lines: Iterable[Line]) -> list[str]:
    """Return what lines hold beside elements."""
    return [piece for line in lines for piece in line if isinstance(piece, str)]


def of_kind(snapshot: Snapshot, kind: str) -> list[tuple[int, Element]]:
    """Return the elements of a kind with their numbers."""
    return [(number, e) for number, e in enumerate(snapshot.elements()) if e.kind == kind]


def click(number: int | None) -> str:
    """Return a click on an element, or the end of the episode where there is none."""
    return GIVE_UP if number is None else f"click {number}"


def submit(snapshot: Snapshot, *names: str) -> str:
    """Return a click on the button of one of the names, or else on "Submit"."""
    numbers = (number_of(snapshot, name, "button") for name in (*names, "Submit"))
    return click(next((number for number in numbers if number is not None), None))


def quoted(goal: str) -> list[str]:
    """Return what stands in quotes in a goal."""
    return re.findall(r'"([^"]*)"', goal)


def first_quoted(goal: str) -> str:
    """Return what stands first in quotes in a goal, or ""."""
    return next(iter(quoted(goal)), "")


def fill(snapshot: Snapshot, texts: list[str], *buttons: str) -> str:
    """Write one text after the other into the textboxes, then submit."""
    for (number, box), text in zip(of_kind(snapshot, "textbox"), texts, strict=False):
        if box.value != text:
            return f'type {number} "{text}"'
    return submit(snapshot, *buttons)


def _click_one(goal: str, snapshot: Snapshot, turn: int) -> str:
    return click(number_of(snapshot, "ONE"))


def _click_quoted(goal: str, snapshot: Snapshot, turn: int) -> str:
    return click(number_of(snapshot, first_quoted(goal)))


def _enter_text(goal: str, snapshot: Snapshot, turn: int) -> str:
    return fill(snapshot, quoted(goal))


def _click_sequence(goal: str, snapshot: Snapshot, turn: int) -> str:
    names = re.findall(r"button ([A-Z]+)", goal)
    return click(number_of(snapshot, names[turn]) if turn < len(names) else None)


def _check(goal: str, snapshot: Snapshot, turn: int) -> str:
    match = re.fullmatch(r"Select (.*) and click Submit\.", goal)
    names = match[1].split(", ") if match else []
    for number, element in enumerate(snapshot.elements()):
        if element.kind in ("checkbox", "radio") and (element.name in names) != (element.value == "on"):
            return f"click {number}"
    return submit(snapshot)


def _collapsible(goal: str, snapshot: Snapshot, turn: int) -> str:
    submit = number_of(snapshot, "Submit", "button")
    return click(submit if turn else next((n for n, e in of_kind(snapshot, "item")), None))


def _login(goal: str, snapshot: Snapshot, turn: int) -> str:
    cancel = number_of(snapshot, "Cancel", "button")  # of a popup that asks whether to leave
    return fill(snapshot, quoted(goal), "Login", "OK") if cancel is None else click(cancel)


def _focus(goal: str, snapshot: Snapshot, turn: int) -> str:
    match = re.search(r"the (\d)", goal)
    boxes = of_kind(snapshot, "textbox")
    index = int(match[1]) - 1 if match else 0
    return click(boxes[index][0] if index < len(boxes) else None)


def _choose(goal: str, snapshot: Snapshot, turn: int) -> str:
    match = re.match(r"Select (.*) from the list", goal)
    for number, box in of_kind(snapshot, "select"):
        if match and box.value != match[1]:
            return f'select {number} "{match[1]}"'
    return submit(snapshot)


def _read_table(goal: str, snapshot: Snapshot, turn: int) -> str:
    match = re.match(r"Enter the value of (.*) into the text field", goal)
    rows = {line[0]: line[1] for line in snapshot.lines if len(line) == 2}
    return fill(snapshot, [str(rows.get(match[1], ""))] if match else [])


def _arithmetic(goal: str, snapshot: Snapshot, turn: int) -> str:
    match = re.match(r"(\d+) ([-+x]) (\d+) =", " ".join(texts(snapshot.lines)))
    if not match:
        return GIVE_UP
    a, b = int(match[1]), int(match[3])
    return fill(snapshot, [str({"+": a + b, "-": a - b, "x": a * b}[match[2]])])


def _find_word(goal: str, snapshot: Snapshot, turn: int) -> str:
    match = re.search(r"the (\d+)(?:st|nd|rd|th) word", goal)
    words = " ".join(texts(snapshot.lines)).split()
    index = int(match[1]) - 1 if match else len(words)
    return fill(snapshot, [words[index].strip(",.")] if index < len(words) else [])


def _greatest(goal: str, snapshot: Snapshot, turn: int) -> str:
    cards = [(int(e.name), number) for number, e in of_kind(snapshot, "item") if re.fullmatch(r"-?\d+", e.name)]
    return submit(snapshot) if turn or not cards else click(max(cards)[1])


def _generate(goal: str, snapshot: Snapshot, turn: int) -> str:
    text = next(iter(texts(snapshot.lines)), "")
    bound = re.search(r"(less|greater) than (-?\d+)", goal)
    if re.fullmatch(r"-?\d+", text):
        number = int(text)
        fits = number % 2 == ("odd" in goal)
        if bound:
            fits = number < int(bound[2]) if bound[1] == "less" else number > int(bound[2])
        if fits:
            return submit(snapshot)
    return click(number_of(snapshot, "Generate"))


# The number guessed last, and whether the right one is higher, to the next guess: four guesses at most.
_GUESSES = {(5, False): 2, (2, False): 1, (1, False): 0, (2, True): 3, (3, True): 4, (5, True): 7, (7, False): 6}
_GUESSES |= {(7, True): 8, (8, True): 9}


def _guess(goal: str, snapshot: Snapshot, turn: int) -> str:
    hint = re.search(r"(higher|lower) than (\d)", " ".join(texts(snapshot.lines)))
    return fill(snapshot, [str(_GUESSES.get((int(hint[2]), hint[1] == "higher"), 5) if hint else 5)])


def _parity(goal: str, snapshot: Snapshot, turn: int) -> str:
    numbers = [int(text) for text in texts(snapshot.lines) if re.fullmatch(r"-?\d+", text)]
    return click(2 * turn + (numbers[turn] % 2 == 0)) if turn < len(numbers) else submit(snapshot)


def _algebra(goal: str, snapshot: Snapshot, turn: int) -> str:
    match = re.match(r"(-?\d+|x) ([-+]) (-?\d+|x) = (-?\d+)", " ".join(texts(snapshot.lines[:1])))
    if not match:
        return GIVE_UP
    a, sign, b, total = match.groups()
    if a == "x":
        x = int(total) - int(b) if sign == "+" else int(total) + int(b)
    else:
        x = int(total) - int(a) if sign == "+" else int(a) - int(total)
    return fill(snapshot, [str(x)])


def _labelled(goal: str, snapshot: Snapshot, turn: int) -> str:
    """Fill a form whose labels stand before their fields, from a table on the page."""
    rows = {line[0]: line[1] for line in snapshot.lines if len(line) == 2}
    labels = [line[0].rstrip(":") for line in snapshot.lines if isinstance(line[0], str) and line[0].endswith(":")]
    return fill(snapshot, [str(rows.get(label, "")) for label in labels])


def _movie(goal: str, snapshot: Snapshot, turn: int) -> str:
    match = re.match(r"Search for (.*) movies directed by (.*) from year (\d+)\.", goal)
    if not match:
        return GIVE_UP
    genre, director, year = match.groups()
    fields = {"genre": genre, "director": director, "year": year, "date": year}
    labels = [text.lower() for text in texts(snapshot.lines) if text != "Movie Search"]
    values = [next((text for word, text in fields.items() if word in label), "") for label in labels]
    if all(box.value == text for (_, box), text in zip(of_kind(snapshot, "textbox"), values, strict=False)):
        return click(len(snapshot.elements()) - 1)
    return fill(snapshot, values)


def _enter_time(goal: str, snapshot: Snapshot, turn: int) -> str:
    time, half = goal.split()[1:3]
    return submit(snapshot) if turn else f'type 0 "{time.replace(":", ""):0>4}{half}"'


def _spin(goal: str, snapshot: Snapshot, turn: int) -> str:
    target, current = int(goal.split()[1]), int(of_kind(snapshot, "textbox")[0][1].value)
    return submit(snapshot) if target == current else click(1 if target > current else 2)


_NAMED_COLORS = (
    "black 000000 white FFFFFF aqua 00FFFF blue 0000FF gray 808080 red FF0000 green 008000 lime 00FF00 "
    "maroon 800000 navy 000080 olive 808000 pink FFC0CB purple 800080 silver C0C0C0 teal 008080 yellow FFFF00 "
    "magenta FF00FF gold FFD700 orange FFA500"
).split()
_COLORS = dict(zip(_NAMED_COLORS[::2], _NAMED_COLORS[1::2], strict=True))


def _pie(goal: str, snapshot: Snapshot, turn: int) -> str:
    label, spread = number_of(snapshot, first_quoted(goal)), number_of(snapshot, "+")
    if spread is not None or label is None:
        return click(spread)
    return click(label - (turn + 1) % 2)  # the label or the slice below it: one of them is pressed


def _two_parts(goal: str, snapshot: Snapshot, turn: int) -> str:
    match = re.match(r'Check the (\d)\w+ radio button and enter the number "(.*)" into the (\d)\w+ textbox', goal)
    if not match:
        return GIVE_UP
    box = of_kind(snapshot, "textbox")[int(match[3]) - 1][0]
    steps = [click(of_kind(snapshot, "radio")[int(match[1]) - 1][0]), f'type {box} "{match[2]}"']
    return steps[turn] if turn < 2 else submit(snapshot)


def _dropdown(goal: str, snapshot: Snapshot, turn: int) -> str:
    match = re.match(r"Choose (.*) from the dropdown", goal)
    number = of_kind(snapshot, "select")[0][0]
    if turn == 0 and match:
        return f'select {number} "{match[1]}"'
    return click(number_of(snapshot, first_quoted(goal), "button"))


PLAIN: dict[str, Expert] = {
    "click-test": lambda goal, snapshot, turn: click(number_of(snapshot, "Click Me!")),
    "click-test-2": _click_one,
    "click-button": _click_quoted,
    "click-link": _click_quoted,
    "click-dialog": lambda goal, snapshot, turn: click(number_of(snapshot, "Close", "button")),
    "click-dialog-2": lambda goal, snapshot, turn: click(
        number_of(snapshot, "Close" if first_quoted(goal) == "x" else first_quoted(goal), "button")
    ),
    "click-button-sequence": _click_sequence,
    "click-checkboxes": _check,
    "click-option": _check,
    "click-tab": lambda goal, snapshot, turn: click(
        number_of(snapshot, goal.removeprefix("Click on ").rstrip("."), "link")
    ),
    "click-collapsible-nodelay": _collapsible,
    "focus-text": _focus,
    "focus-text-2": _focus,
    "enter-text": _enter_text,
    "enter-password": lambda goal, snapshot, turn: fill(snapshot, quoted(goal) * 2),
    "login-user": _login,
    "choose-list": _choose,
    "read-table": _read_table,
    "simple-arithmetic": _arithmetic,
    "find-word": _find_word,
    # The numbers are hidden after the first click, and stay in their order.
    "ascending-numbers": lambda goal, snapshot, turn: click(0),
    "click-checkboxes-large": _check,
    "click-checkboxes-transfer": _check,
    "click-collapsible": _collapsible,
    "click-pie": _pie,
    "click-pie-nodelay": _pie,
    "click-test-transfer": _click_one,
    "enter-date": lambda goal, snapshot, turn: submit(snapshot) if turn else f'type 0 "{goal.split()[1]}"',
    "enter-text-2": lambda goal, snapshot, turn: fill(
        snapshot, [first_quoted(goal).upper() if "upper case" in goal else first_quoted(goal).lower()]
    ),
    "enter-text-dynamic": _enter_text,
    "enter-time": _enter_time,
    "find-greatest": _greatest,
    "form-sequence-2": _two_parts,
    "form-sequence-3": _dropdown,
    "generate-number": _generate,
    "grid-coordinate": lambda goal, snapshot, turn: click(
        number_of(snapshot, goal.removeprefix("Click on the grid coordinate ").rstrip("."))
    ),
    "guess-number": _guess,
    "login-user-popup": _login,
    "multi-layouts": _movie,
    "multi-orderings": _movie,
    "odd-or-even": _parity,
    "read-table-2": _labelled,
    "simple-algebra": _algebra,
    "text-transform": lambda goal, snapshot, turn: fill(snapshot, ["".join(texts(snapshot.lines[:1]))]),
    "unicode-test": _click_quoted,
    "use-colorwheel": lambda goal, snapshot, turn: fill(snapshot, [_COLORS.get(goal.split()[1], "")]),
    "use-spinner": _spin,
}
