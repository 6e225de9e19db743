"""An attempt at a problem in a tab, and one at a problem of the site, in Chromium or in-process."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from steadyrl.core.protocols import Turn
from steadyrl.environments.browse.browser.actions import Action, Stop, parse
from steadyrl.environments.browse.browser.snapshot import Tab
from steadyrl.environments.browse.expert import advise
from steadyrl.environments.browse.quest import Quest
from steadyrl.environments.browse.view import View, error


class TabEpisode(ABC):
    """What the episodes of both suites do alike; see Episode."""

    def __init__(self, characters: int):
        """Prepare an attempt whose observations have at most so many characters."""
        self._characters = characters
        self._tab: Tab | None = None
        self._view: View | None = None
        self._turns = self._invalid = 0

    def step(self, text: str) -> Turn:
        """See Episode."""
        assert self._view is not None, "an episode is opened before its first step"
        self._turns += 1
        action = parse(text)
        if isinstance(action, str):
            self._invalid += 1
            return Turn(error(action), False)
        observation, possible = self._view.take(action)
        self._invalid += not possible
        return Turn("", True) if self._ends(action, self._view) else Turn(observation, False)

    def close(self) -> Mapping[str, Any]:
        """See Episode."""
        if self._tab is not None:
            self._tab.close()
        return {**self._scores(), "turns": self._turns, "invalid": self._invalid}

    def _first_view(self, tab: Tab) -> str:
        self._tab, self._view = tab, View(tab, self._characters)
        return self._view.first()

    @abstractmethod
    def _ends(self, action: Action, view: View) -> bool:
        """Return whether the episode is over after an action, possible or not."""

    @abstractmethod
    def _scores(self) -> dict[str, float]:
        """Return success, raw and progress."""


class SiteEpisode(TabEpisode):
    """See Episode."""

    def __init__(self, quest: Quest, show: Callable[[Quest], Tab], characters: int, slips: float = 0.0, seed: int = 0):
        """Prepare an attempt.

        Args:
            quest: On a site of its own.
            show: Opens the quest's start in a tab.
            characters: Of an observation.
            slips: Share of the expert's turns in which it presses any element in view.
            seed: Of these slips.
        """
        super().__init__(characters)
        self._quest, self._show, self._slips = quest, show, slips
        self._generator = random.Random(seed)
        self._pages = 0
        self._start = 0.0

    def open(self) -> str:
        """See Episode."""
        observation = self._first_view(self._show(self._quest))
        self._start = self._quest.potential()  # the first page may have earned some of it
        return observation

    def expert(self) -> str | None:
        """See Episode."""
        assert self._view is not None, "an episode is opened before its expert is asked"
        numbers = sorted(self._view.window.numbers)
        if numbers and self._generator.random() < self._slips:
            return f"click {self._generator.choice(numbers)}"
        return advise(self._quest, self._view.snapshot, self._view.window, can_go_back=self._pages > 0)

    def _ends(self, action: Action, view: View) -> bool:
        if isinstance(action, Stop):
            self._quest.world.answer = action.answer
            return True
        self._pages += view.snapshot.fresh
        return self._quest.over(self._quest.world)

    def _scores(self) -> dict[str, float]:
        solved = float(self._quest.solved(self._quest.world))
        return {"success": solved, "raw": solved, "progress": self._quest.potential() - self._start}
