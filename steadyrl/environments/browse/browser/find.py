"""Where Chromium is, and whether it may run without its sandbox."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from steadyrl.core import plugins
from steadyrl.core.errors import ConfigError
from steadyrl.environments.browse.browser.settings import BrowserSettings

log = logging.getLogger(__name__)

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def find_chromium(settings: BrowserSettings) -> str:
    """Return the path of the system's Chromium.

    Raises:
        ConfigError: There is none, with how to install it.
    """
    if settings.executable:
        if not os.access(settings.executable, os.X_OK) or not Path(settings.executable).is_file():
            raise ConfigError(f"browser.executable is '{settings.executable}', which is no program that can be run")
        return settings.executable
    for program in PROGRAMS:
        if path := shutil.which(program):
            return path
    raise ConfigError(
        "Chromium is not installed; install it (Debian: apt-get install chromium), name its program in "
        "browser.executable, or take engine = 'inprocess'"
    )


def playwright_api() -> Any:
    """Return Playwright's asynchronous interface.

    Raises:
        MissingExtraError: Playwright is not installed, with the extra that brings it.
    """
    plugins.require("playwright")
    return plugins.require("playwright.async_api")


def runs_without_sandbox(settings: BrowserSettings) -> bool:
    """Return whether Chromium's own sandbox has to be left out, and say so in the log where it is."""
    root = sys.platform != "win32" and os.geteuid() == 0
    if root:
        log.warning("Chromium runs without its sandbox, for it refuses to have one when run as root")
    elif settings.without_sandbox:
        log.warning("Chromium runs without its sandbox, as browser.without_sandbox says")
    return root or settings.without_sandbox
