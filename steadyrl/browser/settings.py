"""How the browser is found and started, and how long anything in it may take."""

from __future__ import annotations

from pydantic import Field

from steadyrl.sections import Section


class BrowserSettings(Section):
    """The real browser's settings."""

    executable: str = Field("", description="Chromium's program; '' looks for chromium and its like on PATH")
    without_sandbox: bool = Field(
        False, description="allow Chromium without its sandbox, which root and some containers need"
    )
    launch_timeout_s: float = Field(30.0, gt=0, le=600, description="seconds for the browser to start")
    page_timeout_s: float = Field(10.0, gt=0, le=600, description="seconds for a page to load or answer an action")
