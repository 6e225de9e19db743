"""An attempt at a problem of the site, in Chromium or in-process."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from steadyrl.core.protocols import Turn
from steadyrl.environments.browse.browser.actions import Stop, parse
from steadyrl.environments.browse.browser.snapshot import Tab
from steadyrl.environments.browse.expert import advise
from steadyrl.environments.browse.quest import Quest
from steadyrl.environments.browse.view import View, error


class SiteEpisode:
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
        self._quest, self._show, self._characters, self._slips = quest, show, characters, slips
        self._generator = random.Random(seed)
        self._pages = 0
        self._tab: Tab | None = None
        self._view: View | None = None
        self._start = 0.0
        self._turns = self._invalid = 0

    def open(self) -> str:
        """See Episode."""
        self._tab = self._show(self._quest)
        self._view = View(self._tab, self._characters)
        observation = self._view.first()
        self._start = self._quest.potential()
        return observation

    def step(self, text: str) -> Turn:
        """See Episode."""
        assert self._view is not None, "an episode is opened before its first step"
        self._turns += 1
        action = parse(text)
        if isinstance(action, str):
            self._invalid += 1
            return Turn(error(action), False)
        if isinstance(action, Stop):
            self._quest.world.answer = action.answer
            return Turn("", True)
        observation, possible = self._view.take(action)
        self._invalid += not possible
        self._pages += self._view.snapshot.fresh
        return Turn("", True) if self._quest.over(self._quest.world) else Turn(observation, False)

    def expert(self) -> str | None:
        """See Episode."""
        assert self._view is not None, "an episode is opened before its expert is asked"
        numbers = sorted(self._view.window.numbers)
        if numbers and self._generator.random() < self._slips:
            return f"click {self._generator.choice(numbers)}"
        return advise(self._quest, self._view.snapshot, self._view.window, astray=self._pages > 0)

    def close(self) -> Mapping[str, Any]:
        """See Episode."""
        if self._tab is not None:
            self._tab.close()
        solved = bool(self._quest.solved(self._quest.world))
        return {
            "success": float(solved),
            "raw": float(solved),
            "progress": self._quest.potential() - self._start,
            "turns": self._turns,
            "invalid": self._invalid,
        }
