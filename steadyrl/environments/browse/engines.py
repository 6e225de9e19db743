"""The two ways to show the site: in Chromium, served on loopback, and in-process."""

from __future__ import annotations

from functools import partial

from steadyrl.environments.browse.browser.chromium import Chromium
from steadyrl.environments.browse.browser.settings import BrowserSettings
from steadyrl.environments.browse.browser.snapshot import Tab
from steadyrl.environments.browse.inprocess import InProcessTab
from steadyrl.environments.browse.quest import Quest
from steadyrl.environments.browse.server import SiteServer


def show_in_process(quest: Quest) -> Tab:
    """Return a tab on a quest's first page, without a browser."""
    return InProcessTab(quest.world, quest.start)


class SiteInBrowser:
    """Serves quests and shows them in Chromium."""

    def __init__(self, settings: BrowserSettings):
        """Find Chromium and start the server; browsers start with the first episode.

        Raises:
            ConfigError: Chromium is not installed.
            MissingExtraError: Playwright is not installed.
        """
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
