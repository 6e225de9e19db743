"""What a policy sees of a tab, turn by turn: a window onto the page's text, and only what changed where little did."""

from __future__ import annotations

from steadyrl.environments.browse.browser.actions import Action, Click, Scroll, Select, Stop, Type
from steadyrl.environments.browse.browser.snapshot import Snapshot, Tab, Window, windows

CUE = "action:"  # every observation ends with it, as the pages that the base model has read
_FEW = 2  # lines; so many that changed are shown without the others
_ERROR = "error: "


class View:
    """A tab through a window of limited size."""

    def __init__(self, tab: Tab, characters: int):
        self._tab, self._characters = tab, characters
        self._at = 0
        self._shown: tuple[int, list[str]] = (0, [])
        self.snapshot = Snapshot(())
        self.window = Window((), frozenset(), has_before=False, has_after=False)

    def first(self) -> str:
        """Return the first observation of a page."""
        self._look()
        return self._full_text()

    def take(self, action: Action) -> tuple[str, bool]:
        """Act, and return what is seen then, and whether the action was possible."""
        if isinstance(action, Stop):
            return "", True
        if isinstance(action, Scroll):
            step = 1 if action.direction == "down" else -1
            if not (self.window.has_after if step > 0 else self.window.has_before):
                return error(f"there is nothing more to scroll {action.direction} to"), False
            self._at += step
            self._look()
            return self._full_text(), True
        if isinstance(action, Click | Type | Select) and action.number not in self.window.numbers:
            return error(f"there is no element {action.number} in view"), False
        if why := self._tab.act(action):
            return self._refused(why), False
        return self._changes(), True

    def _look(self) -> None:
        self.snapshot = self._tab.look()
        if self.snapshot.fresh:
            self._at = 0
        cuts = windows(self.snapshot, self._characters)
        self._at = min(self._at, len(cuts) - 1)
        self.window = cuts[self._at]

    def _changes(self) -> str:
        """Look again; return the lines that changed, or the window where the page or more than a little of it did."""
        at, before = self._shown
        self._look()
        now = self.window.text().split("\n")
        changed = [line for line, old in zip(now, before, strict=False) if line != old]
        if self.snapshot.fresh or self._at != at or len(now) != len(before) or len(changed) > _FEW:
            return self._full_text()
        self._shown = self._at, now
        return "\n".join([*(changed or ["nothing changed"]), CUE])

    def _refused(self, why: str) -> str:
        """Say why; a page that has changed by itself meanwhile is shown again, since its numbers may be others now."""
        _, before = self._shown
        self._look()
        return error(why) if self.window.text().split("\n") == before else f"{_ERROR}{why}\n{self._full_text()}"

    def _full_text(self) -> str:
        text = self.window.text()
        self._shown = self._at, text.split("\n")
        return f"{text}\n{CUE}"


def way_to(number: int, window: Window) -> str:
    """Return the action that brings an element's line closer, or "" where the element is in view."""
    if number in window.numbers:
        return ""
    return "scroll down" if not window.numbers or number > max(window.numbers) else "scroll up"


def error(why: str) -> str:
    """Return the observation after an action that cannot be taken."""
    return f"{_ERROR}{why}\n{CUE}"
