"""Experts for pages of MiniWoB++ on which something has to be found first: behind tabs, in mails, on later pages."""

from __future__ import annotations

import re
from collections.abc import Iterator

from steadyrl.environments.browse.browser.snapshot import Element, Line, Snapshot
from steadyrl.environments.browse.miniwob_experts import (
    GIVE_UP,
    Expert,
    click,
    fill,
    first_quoted,
    number_of,
    of_kind,
    quoted,
    submit,
    texts,
)


def _numbered_lines(snapshot: Snapshot) -> Iterator[tuple[Line, int]]:
    """Yield every line with the number of its first element, whether it has one or not."""
    number = 0
    for line in snapshot.lines:
        yield line, number
        number += sum(isinstance(piece, Element) for piece in line)


def _find_link(goal: str, snapshot: Snapshot, turn: int) -> str:
    """Open one tab or section after the other until the link is shown."""
    link = number_of(snapshot, first_quoted(goal), "item", "link")
    if link is not None:
        return click(link)
    covers = [n for n, e in enumerate(snapshot.elements()) if re.fullmatch(r"(Tab #|Section #)?\d", e.name)]
    return click(covers[turn]) if turn < len(covers) else GIVE_UP


def _tree(goal: str, snapshot: Snapshot, turn: int) -> str:
    node = number_of(snapshot, first_quoted(goal), "item")
    closed = (n for n, e in enumerate(snapshot.elements()) if "expandable-hitarea" in e.name)
    return click(node if node is not None else next(closed, None))


def _mail(goal: str, snapshot: Snapshot, turn: int) -> str:
    sender, *_ = re.findall(r"email by (\w+)", goal)
    recipient = re.search(r"forward that email to (\w+)\.", goal)
    text, icon = first_quoted(goal), re.search(r"click the (\w+) icon", goal)
    rows = [(n, e.name) for n, e in enumerate(snapshot.elements()) if e.name.startswith(f"{sender} ")]
    if rows:
        return click(rows[0][0] + {"trash": 1, "star": 2}.get(icon[1] if icon else "", 0))
    boxes = of_kind(snapshot, "textbox")
    if not boxes:
        return click(number_of(snapshot, "Forward" if recipient else "Reply"))
    number, box = boxes[0]
    value = recipient[1] if recipient else text
    if box.value != value:
        return f'type {number} "{value}"'
    return click(next((n for n, e in enumerate(snapshot.elements()) if "send" in e.name.lower()), None))


def _buttons(goal: str, snapshot: Snapshot) -> Iterator[tuple[str, int]]:
    """Yield what can be pressed in the posts of the goal's user, in small letters, with the numbers."""
    user, in_user_post = re.findall(r"@\w+", goal)[0], False
    for line, number in _numbered_lines(snapshot):
        if words := texts([line]):
            in_user_post = user in words or (in_user_post and not any(word.startswith("@") for word in words))
        if in_user_post:
            elements = (piece for piece in line if isinstance(piece, Element))
            yield from ((element.name.lower(), number + offset) for offset, element in enumerate(elements))


def _post(goal: str, snapshot: Snapshot, turn: int) -> str:
    button, more_button = first_quoted(goal).lower(), None
    for name, number in _buttons(goal, snapshot):
        if name.startswith(button):
            return click(number)
        more_button = number if name == "more" else more_button
    return click(more_button)


def _posts(goal: str, snapshot: Snapshot, turn: int) -> str:
    """Press one button of all posts of a user, or of so many, then submit."""
    button, count = first_quoted(goal).lower(), re.search(r"on (\d+) posts?", goal)
    numbers = [number for name, number in _buttons(goal, snapshot) if name.split(" ")[0] == button]
    numbers = numbers[: int(count[1])] if count else numbers
    return click(numbers[turn]) if turn < len(numbers) else submit(snapshot)


def _contact(goal: str, snapshot: Snapshot, turn: int) -> str:
    match = re.match(r"Find (.*) in the contact book and click on their (.*)\.", goal)
    if not match:
        return GIVE_UP
    if not any(line[0] == f"heading {match[1]}" for line in snapshot.lines):
        return click(number_of(snapshot, ">", "link"))
    label = {"phone number": "Phone:"}.get(match[2], f"{match[2].capitalize()}:")
    return click(next((number for line, number in _numbered_lines(snapshot) if line[0] == label), None))


def _results(goal: str, snapshot: Snapshot, turn: int) -> str:
    match = re.search(r"the (\d+)(?:st|nd|rd|th) search result", goal)
    if turn < 2 or not match:
        return fill(snapshot, [first_quoted(goal)], "Search")
    pages, index = divmod(int(match[1]) - 1, 3)  # three results a page
    links = [n for n, e in of_kind(snapshot, "link") if e.name not in ("<", ">") and not e.name.isdigit()]
    return click(number_of(snapshot, ">", "link")) if turn < 2 + pages else click(links[index])


_MONTHS = "January February March April May June July August September October November December".split()


def _date(goal: str, snapshot: Snapshot, turn: int) -> str:
    month, day, year = map(int, re.findall(r"(\d+)/(\d+)/(\d+)", goal)[0])
    box, element = of_kind(snapshot, "textbox")[-1]
    if element.value:
        return submit(snapshot)
    return _calendar(snapshot, month, day, year) or click(box)


def _calendar(snapshot: Snapshot, month: int, day: int, year: int) -> str:
    """Return the next action in an open calendar, or "" where none is open."""
    for line in snapshot.lines:
        words = texts([line])
        if len(words) == 2 and words[0] in _MONTHS:
            current_month = 12 * int(words[1]) + _MONTHS.index(words[0]) + 1
            if current_month == 12 * year + month:
                return click(number_of(snapshot, str(day), "link"))
            return click(number_of(snapshot, "Prev" if current_month > 12 * year + month else "Next"))
    return ""


def _autocomplete(goal: str, snapshot: Snapshot, turn: int) -> str:
    start, *ends = quoted(goal)
    number, box = of_kind(snapshot, "textbox")[0]
    if box.value.startswith(start) and box.value.endswith(ends[0] if ends else "") and len(box.value) > len(start):
        return submit(snapshot)
    if not box.value:
        return f'type {number} "{start}"'
    for item_number, element in of_kind(snapshot, "item"):
        if element.name.startswith(start) and element.name.endswith(ends[0] if ends else ""):
            return click(item_number)
    return click(number)  # the list takes a moment


def _flight(goal: str, snapshot: Snapshot, turn: int) -> str:
    match = re.search(r"the (\w+) one-way flight from: (.*) to: (.*) on (\d+)/(\d+)/(\d+)", goal)
    if not match:
        return GIVE_UP
    _, *ends, month, day, year = match.groups()
    if any(element.name.startswith("Book") for element in snapshot.elements()):
        return ticket(goal, snapshot, turn)
    boxes = of_kind(snapshot, "textbox")
    for (number, box), end in zip(boxes, ends, strict=False):
        if re.search(r"\([A-Z]{3}\)$", box.value):
            continue
        for item_number, element in of_kind(snapshot, "item"):
            if box.value and end in element.name and re.search(r"\([A-Z]{3}\)$", element.name):
                return click(item_number)
        if box.value == end:
            return click(number)  # the list takes a moment
        return f'type {number} "{end}"'
    number, box = boxes[2]
    if box.value:
        return click(number_of(snapshot, "Search", "button"))
    return _calendar(snapshot, int(month), int(day), int(year)) or click(number)


def ticket(goal: str, snapshot: Snapshot, turn: int) -> str:
    """Book what costs or takes most or least; the time stands before the button."""
    offers, minutes = [], 0
    for line, number in _numbered_lines(snapshot):
        if time := re.fullmatch(r"(\d+)h(?: (\d+)m)?", " ".join(texts([line]))):
            minutes = 60 * int(time[1]) + int(time[2] or 0)
        for offset, element in enumerate(piece for piece in line if isinstance(piece, Element)):
            if price := re.search(r"\$(\d+)", element.name):
                offers.append((int(price[1]), minutes, number + offset))
    if not offers:
        return GIVE_UP
    by_time = "short" in goal or "long" in goal
    is_maximum = "expensive" in goal or "longest" in goal
    return click((max if is_maximum else min)(offers, key=lambda offer: offer[by_time])[2])


_PAGES = (
    (_flight, "book-flight book-flight-nodelay"),
    (ticket, "buy-ticket"),
    (_date, "choose-date choose-date-easy choose-date-medium choose-date-nodelay"),
    (_find_link, "click-collapsible-2 click-collapsible-2-nodelay"),
    (_find_link, "click-tab-2 click-tab-2-easy click-tab-2-hard click-tab-2-medium"),
    (_mail, "email-inbox email-inbox-delete email-inbox-forward email-inbox-important"),
    (_mail, "email-inbox-noscroll email-inbox-reply email-inbox-star-reply"),
    (_tree, "navigate-tree"),
    (_contact, "phone-book"),
    (_results, "search-engine"),
    (_post, "social-media"),
    (_posts, "social-media-all social-media-some"),
    (_autocomplete, "use-autocomplete use-autocomplete-nodelay"),
)
JOURNEYS: dict[str, Expert] = {page: expert for expert, pages in _PAGES for page in pages.split()}
