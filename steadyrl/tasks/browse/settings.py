"""The browse task's own settings."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from steadyrl.browser.settings import BrowserSettings
from steadyrl.sections import Section
from steadyrl.tasks.browse.families import LEVELS


class BrowseSettings(Section):
    """The browse task's own settings."""

    suite: Literal["site", "miniwob"] = Field(
        "site", description="'site' is our own shop and help desk, 'miniwob' the pages of the package miniwob"
    )
    engine: Literal["inprocess", "browser"] = Field(
        "inprocess", description="the site without a browser or in Chromium; miniwob always takes Chromium"
    )
    kinds: list[str] = Field(
        default_factory=list, description="families of the site, or names of miniwob's pages; [] takes all we know"
    )
    levels: list[int] = Field(default_factory=lambda: list(LEVELS), description="of the site's families, 1 to 4")
    train_count: int = Field(60, ge=1, le=100_000, description="training problems per kind and level, at most")
    heldout_count: int = Field(5, ge=0, le=10_000, description="held-out problems per kind and level, at most")
    prompt: str = Field(
        "goal: {goal}",
        description="what stands before the first page; {goal} stands for the goal. A model that was never shown the "
        "actions has to be told them here",
    )
    slips: float = Field(
        0.0,
        ge=0,
        le=0.9,
        description="share of its turns in which the site's expert presses any element at all, so that who learns from "
        "its demonstrations stays unsure and can be taught by rewards",
    )
    max_turns: int = Field(10, ge=1, le=100, description="actions per episode, at most")
    workers: int = Field(4, ge=1, le=64, description="browsers at the same time; without one a single thread is enough")
    observation_characters: int = Field(
        600, ge=40, le=100_000, description="of a page shown at once, some 4 to a token; scrolling shows the rest"
    )
    browser: BrowserSettings = Field(default_factory=BrowserSettings, description="how Chromium is run")

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

    @field_validator("kinds")
    @classmethod
    def _each_once(cls, kinds: list[str]) -> list[str]:
        if len(set(kinds)) < len(kinds):
            raise ValueError("a kind is named twice")
        return kinds
