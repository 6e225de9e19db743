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
        self._window_index = 0
        self._last_text: tuple[int, list[str]] = (0, [])
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
            self._window_index += step
            self._look()
            return self._full_text(), True
        if isinstance(action, Click | Type | Select) and action.number not in self.window.numbers:
            return error(f"there is no element {action.number} in view"), False
        if reason := self._tab.act(action):
            return self._refusal(reason), False
        return self._changes(), True

    def _look(self) -> None:
        self.snapshot = self._tab.look()
        if self.snapshot.fresh:
            self._window_index = 0
        page_windows = windows(self.snapshot, self._characters)
        self._window_index = min(self._window_index, len(page_windows) - 1)
        self.window = page_windows[self._window_index]

    def _changes(self) -> str:
        """Look again; return the lines that changed, or the window where the page or more than a little of it did."""
        last_index, last_lines = self._last_text
        self._look()
        lines = self.window.text().split("\n")
        changed = [line for line, last_line in zip(lines, last_lines, strict=False) if line != last_line]
        same_window = (self._window_index, len(lines)) == (last_index, len(last_lines)) and not self.snapshot.fresh
        if not same_window or len(changed) > _FEW:
            return self._full_text()
        self._last_text = self._window_index, lines
        return "\n".join([*(changed or ["nothing changed"]), CUE])

    def _refusal(self, reason: str) -> str:
        # A page that has changed by itself meanwhile is shown again, since its numbers may be others now.
        _, last_lines = self._last_text
        self._look()
        if self.window.text().split("\n") == last_lines:
            return error(reason)
        return f"{_ERROR}{reason}\n{self._full_text()}"

    def _full_text(self) -> str:
        text = self.window.text()
        self._last_text = self._window_index, text.split("\n")
        return f"{text}\n{CUE}"


def scroll_toward(number: int, window: Window) -> str:
    """Return the action that brings an element's line closer, or "" where the element is in view."""
    if number in window.numbers:
        return ""
    return "scroll down" if not window.numbers or number > max(window.numbers) else "scroll up"


def error(reason: str) -> str:
    """Return the observation after an action that cannot be taken."""
    return f"{_ERROR}{reason}\n{CUE}"
