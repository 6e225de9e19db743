"""Settings of the browse task."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from steadyrl.core.sections import Section
from steadyrl.environments.browse.browser.settings import BrowserSettings
from steadyrl.environments.browse.families import LEVELS


class BrowseSettings(Section):
    """Settings of the browse task."""

    suite: Literal["site", "miniwob"] = Field("site")
    """'site' is our own shop and help desk. 'miniwob' is the pages of the package miniwob."""
    engine: Literal["inprocess", "browser"] = Field("inprocess")
    """'inprocess' runs the site without a browser, 'browser' in Chromium. miniwob always uses Chromium."""
    kinds: list[str] = Field(default_factory=list)
    """Families of the site, or names of miniwob's pages. [] takes all that have an expert."""
    levels: list[int] = Field(default_factory=lambda: list(LEVELS))
    """Levels of the site's families, 1 to 4."""
    train_count: int = Field(60, ge=1, le=100_000)
    """Maximum number of training problems per kind and level."""
    heldout_count: int = Field(5, ge=0, le=10_000)
    """Maximum number of held-out problems per kind and level."""
    prompt: str = Field("goal: {goal}")
    """Text before the first page. {goal} is replaced by the goal. It must describe the actions to a model that has
    never seen them."""
    slips: float = Field(0.0, ge=0, le=0.9)
    """Share of turns in which the site's expert presses a random element. A policy that imitates it keeps enough
    entropy to learn from rewards."""
    max_turns: int = Field(10, ge=1, le=100, description="Maximum number of actions per episode.")
    workers: int = Field(4, ge=1, le=64)
    """Number of browsers that run at the same time. Without a browser one thread is enough."""
    observation_characters: int = Field(600, ge=40, le=100_000)
    """Maximum characters of a page in one observation (a token is about 4). Scrolling shows the rest."""
    browser: BrowserSettings = Field(default_factory=BrowserSettings, description="How Chromium is run.")

    @field_validator("levels")
    @classmethod
    def _known_levels(cls, levels: list[int]) -> list[int]:
        if not levels or not set(levels) <= set(LEVELS):
            raise ValueError(f"expected some of {', '.join(map(str, LEVELS))}")
        return levels

    @field_validator("prompt")
    @classmethod
    def _has_goal(cls, prompt: str) -> str:
        if "{goal}" not in prompt:
            raise ValueError("expected the text {goal} somewhere, where the goal is put in")
        return prompt

    @field_validator("kinds", "levels")
    @classmethod
    def _each_once(cls, values: list[Any], info: ValidationInfo) -> list[Any]:
        if len(set(values)) < len(values):
            raise ValueError(f"expected every {str(info.field_name)[:-1]} once")
        return values
