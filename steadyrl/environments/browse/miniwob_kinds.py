"""Which kinds of MiniWoB++ pages can be played, decided by looking at every one of them.

A kind can be played if the text of its pages shows what the goal asks for, and if there are actions that do it: an
expert of ours solves it, or would if it understood the words of the goal. All others are refused with the reason.
"""

from __future__ import annotations

from steadyrl.core.errors import ConfigError
from steadyrl.core.words import did_you_mean
from steadyrl.environments.browse.miniwob_experts import PLAIN, Expert
from steadyrl.environments.browse.miniwob_journeys import JOURNEYS

EXPERTS: dict[str, Expert] = {**PLAIN, **JOURNEYS}

# Kinds without an expert, and what a policy has to understand that no script of ours does.
WITHOUT_EXPERT = {
    "click-checkboxes-soft": "words of like meaning",
    "email-inbox-forward-nl": "goals in free words",
    "email-inbox-forward-nl-turk": "goals in free words",
    "email-inbox-nl-turk": "goals in free words",
    "order-food": "what is in a dish",
}

_DRAG = "it needs dragging with the mouse"
_POINT = "it asks for a point of a picture, and elements can only be pressed as a whole"
_PICTURE = "what it asks for is drawn and not written"
_CLOCK = "its outcome depends on the clock"
_POINTER = "it needs a mouse that rests on something or follows it"
_SCROLL = "it needs scrolling inside an element"

_REASONS = {
    _DRAG: "daily-calendar drag-box drag-circle drag-cube drag-items drag-items-grid drag-shapes drag-shapes-2 "
    "drag-single-shape drag-sort-numbers draw-circle draw-line form-sequence highlight-text highlight-text-2 "
    "resize-textarea text-editor use-slider use-slider-2",
    _POINT: "bisect-angle circle-center find-midpoint hot-cold right-angle",
    _PICTURE: "click-color click-menu-2 click-shades click-shape count-shape count-sides identify-shape "
    "number-checkboxes simon-says tic-tac-toe use-colorwheel-2 visual-addition",
    _CLOCK: "button-delay moving-items stock-market",
    _POINTER: "chase-circle click-menu hover-shape",
    _SCROLL: "scroll-text scroll-text-2 sign-agreement",
    "it needs the Enter key": "terminal",
    "it needs several options of one list at once": "click-scroll-list",
    "a text area and a text field look alike in the text of a page": "click-widget",
    "it asks for a space at the end of what is typed, which actions leave out": "copy-paste copy-paste-2",
}
REFUSED = {kind: reason for reason, kinds in _REASONS.items() for kind in kinds.split()}


def require_playable(kind: str) -> None:
    """Accept a kind that can be played.

    Raises:
        ConfigError: There is no such kind, with those of a similar name; or it cannot be played, with the reason.
    """
    if kind in EXPERTS or kind in WITHOUT_EXPERT:
        return
    if kind in REFUSED:
        raise ConfigError(
            f"task.args.kinds: '{kind}' of MiniWoB++ cannot be played with the actions of this task: {REFUSED[kind]}; "
            "leave it out (docs/tasks/browse.md lists the kinds that can)"
        )
    names = [*EXPERTS, *WITHOUT_EXPERT, *REFUSED]
    hint = did_you_mean(kind, names, "expected a name such as 'click-tab'", count=3)
    raise ConfigError(f"task.args.kinds: MiniWoB++ has no page '{kind}'; {hint}")
