"""Our own shop and help desk as a suite of problems."""

from __future__ import annotations

from functools import partial

import numpy as np

from steadyrl.core.errors import ConfigError
from steadyrl.core.protocols import Episode
from steadyrl.core.types import Problem
from steadyrl.environments.browse.browser.chromium import Chromium
from steadyrl.environments.browse.browser.settings import BrowserSettings
from steadyrl.environments.browse.browser.snapshot import Tab
from steadyrl.environments.browse.episode import SiteEpisode
from steadyrl.environments.browse.families import FAMILIES, make_quest
from steadyrl.environments.browse.inprocess import InProcessTab
from steadyrl.environments.browse.quest import Quest
from steadyrl.environments.browse.server import SiteServer
from steadyrl.environments.browse.settings import BrowseSettings
from steadyrl.environments.browse.suite import EDIT_SEEDS, is_held_out

_BARREN = 400  # seeds in a row without a new problem, after which a small family is taken to have no more


class SiteSuite:
    """See Suite. A problem is its family, level and seed; whether it is held out follows from all there is in it."""

    def __init__(self, settings: BrowseSettings):
        """Check the families; find Chromium where the site is shown in it.

        Raises:
            ConfigError: A family is unknown, or Chromium is not installed.
            MissingExtraError: Playwright is not installed.
        """
        if unknown := set(settings.kinds) - set(FAMILIES):
            raise ConfigError(f"task.args.kinds: no family is called '{min(unknown)}'; known are {', '.join(FAMILIES)}")
        self._settings = settings
        self._browser = SiteInBrowser(settings.browser) if settings.engine == "browser" else None

    def problems(self, kind: str, held_out: bool, count: int) -> list[Problem]:
        """See Suite."""
        return [p for level in self._settings.levels for p in self._of_level(kind, level, held_out, count)]

    def mutate(self, problem: Problem, generator: np.random.Generator) -> Problem:
        """See Suite: of the same family, a level up or down or of the same one, and never a held-out problem."""
        levels = sorted(self._settings.levels)
        kind, level = problem.columns["kind"], problem.columns["level"]
        index = levels.index(level) + int(generator.integers(-1, 2))
        level = levels[min(max(index, 0), len(levels) - 1)]
        while True:
            seed = int(generator.integers(*EDIT_SEEDS))
            quest = make_quest(kind, level, seed)
            if not is_held_out(_content(quest)):
                return self._problem(quest, kind, level, seed)

    def ask(self, text: str) -> Problem:
        """See Suite: a shop of four products, whatever is asked for."""
        columns = {"kind": "buy", "level": 4, "seed": 0, "difficulty": 4}
        return Problem("asked", self._settings.prompt.replace("{goal}", text), columns)

    def episode(self, problem: Problem, seed: int) -> Episode:
        """See Suite."""
        quest = make_quest(*(problem.columns[name] for name in ("kind", "level", "seed")))
        show = self._browser.show if self._browser else show_in_process
        return SiteEpisode(quest, show, self._settings.observation_characters, self._settings.slips, seed)

    def close(self) -> None:
        """See Suite."""
        if self._browser:
            self._browser.close()

    def _of_level(self, kind: str, level: int, held_out: bool, count: int) -> list[Problem]:
        """Return problems of different content, by rising seeds."""
        by_content: dict[str, Problem] = {}
        seed = newest = 0
        while len(by_content) < count and seed - newest < _BARREN:
            quest = make_quest(kind, level, seed)
            content = _content(quest)
            if is_held_out(content) == held_out and content not in by_content:
                by_content[content] = self._problem(quest, kind, level, seed)
                newest = seed
            seed += 1
        return list(by_content.values())

    def _problem(self, quest: Quest, kind: str, level: int, seed: int) -> Problem:
        columns = {"kind": kind, "level": level, "seed": seed, "difficulty": level}
        return Problem(f"{kind}-{level}-{seed}", self._settings.prompt.replace("{goal}", quest.goal), columns)


def _content(quest: Quest) -> str:
    # With the site as dataclasses write it: a field with another name would move problems between the splits.
    return f"{quest.goal}\n{quest.start}\n{quest.world}"


def show_in_process(quest: Quest) -> Tab:
    """Return a tab on a quest's first page, without a browser."""
    return InProcessTab(quest.world, quest.start)


class SiteInBrowser:
    """Serves quests and shows them in Chromium."""

    def __init__(self, settings: BrowserSettings):
        """Find Chromium and start the server; browsers start with the first episode. Errors as of ``Chromium``."""
        self._server = SiteServer()
        self._chromium = Chromium(settings, self._server.origin)

    def show(self, quest: Quest) -> Tab:
        """Return a tab on a quest's first page; the state of its site is served until the tab is closed."""
        session, address = self._server.admit(quest.world, quest.start)
        return self._chromium.open(address, partial(self._server.dismiss, session))

    def close(self) -> None:
        """End browsers and server."""
        self._chromium.close()
        self._server.close()
