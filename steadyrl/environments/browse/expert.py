"""The scripted expert: it reads the page as the policy does, and knows the plan of the quest."""

from __future__ import annotations

from steadyrl.environments.browse.browser.snapshot import Element, Snapshot, Window
from steadyrl.environments.browse.quest import Quest, Step
from steadyrl.environments.browse.view import scroll_toward


def advise(quest: Quest, snapshot: Snapshot, window: Window, can_go_back: bool = False) -> str:
    """Return the action that the expert would take, from what the page shows.

    It looks for the last due click of its plan whose element is on the page, after setting whatever the plan has set
    just before. Where there is none it turns the page, goes back, or stops.

    Args:
        quest: Whose plan it follows.
        snapshot: The page.
        window: What is in view of it.
        can_go_back: Whether there is a page to go back to.
    """
    settings: list[Step] = []
    due_click: tuple[list[Step], Step] | None = None
    for step in quest.plan:
        if not step.when(quest.world):
            continue
        if step.verb in ("type", "select", "tick"):
            settings.append(step)
            continue
        if _is_here(step, snapshot):
            due_click = (settings, step)
        settings = []
    if due_click is None:
        return _turn_page(snapshot, window, can_go_back)
    for step in (*due_click[0], due_click[1]):
        if step.verb == "stop":
            return f'stop "{step.name}"'
        match _find(step, snapshot):
            case number, element if not _is_set(step, element):
                return _action(step, number, window)
    return _turn_page(snapshot, window, can_go_back)


def _action(step: Step, number: int, window: Window) -> str:
    if scroll := scroll_toward(number, window):
        return scroll
    if step.verb in ("type", "select"):
        return f'{step.verb} {number} " {step.text} "'
    return f"click {number}"


def _turn_page(snapshot: Snapshot, window: Window, can_go_back: bool) -> str:
    step = Step("click", "link", "next")
    match _find(step, snapshot):
        case number, _:
            return _action(step, number, window)
    return "back" if can_go_back else 'stop ""'


def _is_here(step: Step, snapshot: Snapshot) -> bool:
    if step.verb == "stop":
        return any(piece == step.beside for line in snapshot.lines for piece in line)
    return _find(step, snapshot) is not None


def _is_set(step: Step, element: Element) -> bool:
    if step.verb == "tick":
        return element.value == "on"
    return step.verb in ("type", "select") and element.value == step.text


def _find(step: Step, snapshot: Snapshot) -> tuple[int, Element] | None:
    number = 0
    for line in snapshot.lines:
        texts = {piece.name if isinstance(piece, Element) else piece for piece in line}
        is_beside = not step.beside or step.beside in texts
        for piece in line:
            if isinstance(piece, Element):
                if is_beside and (piece.kind, piece.name) == (step.kind, step.name):
                    return number, piece
                number += 1
    return None
