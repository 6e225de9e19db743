"""How the browser is found and started, and how long anything in it may take."""

from __future__ import annotations

from pydantic import Field

from steadyrl.core.sections import PathText, Section


class BrowserSettings(Section):
    """Settings of the browser."""

    executable: PathText = Field("")
    """Path of Chromium's program. Empty searches PATH for chromium and similar names."""
    without_sandbox: bool = Field(False)
    """Run Chromium without its sandbox, which root and some containers need."""
    launch_timeout_s: float = Field(30.0, gt=0, le=600, description="Maximum seconds for the browser to start.")
    page_timeout_s: float = Field(10.0, gt=0, le=600)
    """Maximum seconds for a page to load or to react to an action."""
