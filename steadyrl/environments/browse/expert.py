"""The scripted expert: it reads the page as the policy does, and knows the plan of the quest."""

from __future__ import annotations

from dataclasses import dataclass

from steadyrl.environments.browse.browser.snapshot import Element, Snapshot, Window
from steadyrl.environments.browse.quest import Quest, Step
from steadyrl.environments.browse.view import way_to


@dataclass(frozen=True)
class Place:
    """A step's element on the page: the number of its line and its own."""

    line: int
    number: int
    element: Element


def advise(quest: Quest, snapshot: Snapshot, window: Window, astray: bool = False) -> str:
    """Return the action that the expert would take, from what the page shows.

    It looks for the last due click of its plan whose element is on the page, after setting whatever the plan has set
    just before. Where there is none it turns the page, goes back, or stops.

    Args:
        quest: Whose plan it follows.
        snapshot: The page.
        window: What is in view of it.
        astray: Whether there is a page to go back to.
    """
    before: list[Step] = []
    chosen: tuple[list[Step], Step] | None = None
    for step in quest.plan:
        if not step.when(quest.world):
            continue
        if step.verb in ("type", "select", "tick"):
            before.append(step)
            continue
        if _is_here(step, snapshot):
            chosen = (before, step)
        before = []
    if chosen is None:
        return _turn_page(snapshot, window, astray)
    for step in (*chosen[0], chosen[1]):
        if step.verb == "stop":
            return f'stop "{step.name}"'
        place = _find(step, snapshot)
        if place is not None and not _is_set(step, place.element):
            return _say(step, place, window)
    return _turn_page(snapshot, window, astray)


def _say(step: Step, place: Place, window: Window) -> str:
    if way := way_to(place.number, window):
        return way
    if step.verb in ("type", "select"):
        return f'{step.verb} {place.number} " {step.text} "'
    return f"click {place.number}"


def _turn_page(snapshot: Snapshot, window: Window, astray: bool) -> str:
    place = _find(Step("click", "link", "next"), snapshot)
    if place is None:
        return "back" if astray else 'stop ""'
    return _say(Step("click", "link", "next"), place, window)


def _is_here(step: Step, snapshot: Snapshot) -> bool:
    if step.verb == "stop":
        return any(piece == step.beside for line in snapshot.lines for piece in line)
    return _find(step, snapshot) is not None


def _is_set(step: Step, element: Element) -> bool:
    if step.verb == "tick":
        return element.value == "on"
    return step.verb in ("type", "select") and element.value == step.text


def _find(step: Step, snapshot: Snapshot) -> Place | None:
    number = 0
    for at, line in enumerate(snapshot.lines):
        near = not step.beside or step.beside in {piece.name if isinstance(piece, Element) else piece for piece in line}
        for piece in line:
            if isinstance(piece, Element):
                if near and (piece.kind, piece.name) == (step.kind, step.name):
                    return Place(at, number, piece)
                number += 1
    return None
