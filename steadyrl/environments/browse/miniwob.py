"""MiniWoB++ as published: its pages, its seeds, its own reward, in Chromium.

Source: the package miniwob (Farama Foundation, MIT), of which only the folder html/ is used. What would give the
answer away is not shown: the reward display is hidden, and the fields that its Python side parses out of the goal are
never read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from steadyrl.core.errors import MissingExtraError
from steadyrl.core.protocols import Episode
from steadyrl.core.types import Problem
from steadyrl.environments.browse.browser.actions import Action, Click, Scroll, Select, Stop, Type, parse
from steadyrl.environments.browse.browser.chromium import Chromium, PageTab
from steadyrl.environments.browse.browser.loopback import Loopback, SiteRequest
from steadyrl.environments.browse.episode import TabEpisode
from steadyrl.environments.browse.miniwob_kinds import EXPERTS, require_playable
from steadyrl.environments.browse.settings import BrowseSettings
from steadyrl.environments.browse.suite import EDIT_SEEDS, is_held_out
from steadyrl.environments.browse.view import View, scroll_toward

KINDS = tuple(EXPERTS)  # what is taken where no kinds are named: pages that an expert of ours solves
_HIDDEN = "#query, #reward-display, #sync-task-cover, #click-canvas"  # the goal is told by itself; the rest gives away
# The published limit of 10 s is a person's; a model's seconds are not the page's business. The reward read is the raw
# one, which time does not shrink. 2e9 ms are the most that a timer takes. Where a page tells its goal with the fields
# parsed out of it, only the words are passed on.
_BEGIN = """async seed => {
  if (document.readyState !== 'complete') await new Promise(done => window.addEventListener('load', done));
  Math.seedrandom(seed);
  core.EPISODE_MAX_TIME = 2e9;
  if (window.jQuery) jQuery.fx.off = true;
  core.startEpisodeReal();
  const goal = core.getUtterance();
  return typeof goal === 'string' ? goal : goal.utterance;
}"""
_STATE = "() => [WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL]"


class MiniwobSuite:
    """See Suite. A problem is a page and a seed; its goal is on the page, so that its prompt is empty."""

    def __init__(self, settings: BrowseSettings):
        """Find the pages and Chromium.

        Raises:
            ConfigError: There is no such page, it cannot be played, or Chromium is not installed.
            MissingExtraError: The package miniwob or Playwright is not installed.
        """
        folder = _pages()
        for kind in settings.kinds:
            require_playable(kind)
        self._settings = settings
        self._server = Loopback(partial(_Request, directory=str(folder)))
        self._chromium = Chromium(settings.browser, self._server.origin, _HIDDEN)

    def problems(self, kind: str, held_out: bool, count: int) -> list[Problem]:
        """See Suite."""
        problems: list[Problem] = []
        seed = 0
        while len(problems) < count:
            if is_held_out(f"{kind} {seed}") == held_out:
                problems.append(_problem(kind, seed))
            seed += 1
        return problems

    def mutate(self, problem: Problem, generator: np.random.Generator) -> Problem:
        """See Suite: the same page with another seed; these pages have no levels."""
        kind = problem.columns["kind"]
        while True:
            seed = int(generator.integers(*EDIT_SEEDS))
            if not is_held_out(f"{kind} {seed}"):
                return _problem(kind, seed)

    def ask(self, text: str) -> Problem:
        """See Suite: a page as it is; its goal cannot be changed."""
        return _problem((self._settings.kinds or KINDS)[0], 0)

    def episode(self, problem: Problem, seed: int) -> Episode:
        """See Suite."""
        return MiniwobEpisode(self._show, problem.columns["kind"], problem.columns["seed"], self._settings)

    def close(self) -> None:
        """See Suite."""
        self._chromium.close()
        self._server.close()

    def _show(self, kind: str) -> PageTab:
        return self._chromium.open(f"{self._server.origin}/miniwob/{kind}.html", lambda: None)


class MiniwobEpisode(TabEpisode):
    """See Episode."""

    def __init__(self, show: Callable[[str], PageTab], kind: str, seed: int, settings: BrowseSettings):
        """Prepare an attempt.

        Args:
            show: Opens the page of a kind in a tab.
            kind: Name of the page.
            seed: Of its problem.
            settings: For the size of observations and the prompt.
        """
        super().__init__(settings.observation_characters)
        self._show, self._kind, self._seed, self._prompt = show, kind, seed, settings.prompt
        self._page: PageTab | None = None
        self._goal = ""
        self._raw = 0.0
        self._scrolls = 0

    def open(self) -> str:
        """See Episode; the goal stands before the page."""
        self._tab = self._page = self._show(self._kind)
        self._goal = self._page.evaluate(_BEGIN, str(self._seed))
        return f"{self._prompt.replace('{goal}', self._goal)}\n{self._first_view(self._page)}"

    def expert(self) -> str | None:
        """See Episode."""
        assert self._view is not None, "an episode is opened before its expert is asked"
        advise = EXPERTS.get(self._kind)
        if advise is None:
            return None
        action = advise(self._goal, self._view.snapshot, self._turns - self._scrolls)
        match parse(action):
            case Click(number) | Type(number, _) | Select(number, _):
                return scroll_toward(number, self._view.window) or action
        return action

    def _ends(self, action: Action, view: View) -> bool:
        if isinstance(action, Stop):
            return True
        assert self._page is not None, "it was opened with the view"
        self._scrolls += isinstance(action, Scroll)
        done, raw = self._page.evaluate(_STATE)
        self._raw = float(raw) if done else 0.0
        return bool(done)

    def _scores(self) -> dict[str, float]:
        # Some pages pay for a part of what they ask; a success is what they pay in full.
        return {"success": float(self._raw >= 1.0), "raw": self._raw, "progress": max(0.0, self._raw)}


class _Request(SiteRequest, SimpleHTTPRequestHandler):
    """Serves the files of a folder."""


def _problem(kind: str, seed: int) -> Problem:
    return Problem(f"{kind}-{seed}", "", {"kind": kind, "seed": seed})


def _pages() -> Path:
    spec = find_spec("miniwob")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(
            "the package 'miniwob' is not installed but needed here; install it with: pip install --no-deps miniwob "
            "(its pages are all that is used), or with all it brings: pip install 'steadyrl[miniwob]'"
        )
    return Path(spec.submodule_search_locations[0]) / "html"
