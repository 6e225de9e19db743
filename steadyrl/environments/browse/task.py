"""Browsing: a goal and a page go in, actions come out, turn by turn, until the site's state says whether it worked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from steadyrl.core.protocols import Episode, RewardFn, Task
from steadyrl.core.types import Problem, Rollout, Score
from steadyrl.environments.browse.browser.actions import parse
from steadyrl.environments.browse.families import FAMILIES
from steadyrl.environments.browse.miniwob import KINDS, MiniwobSuite
from steadyrl.environments.browse.settings import BrowseSettings
from steadyrl.environments.browse.site_suite import SiteSuite
from steadyrl.environments.browse.suite import Suite

INVALID_COST = 0.1  # of an action that is none or impossible; a fifth of it in total with the weight of the examples
MOST_INVALID = 1.0  # where the cost ends: a policy that has gone wrong cannot lose more and more by staying


class BrowseTask(Task):
    """See Task, Interactive, Bounded and Editable. Rewards: success, efficiency, progress, invalid, raw."""

    Settings = BrowseSettings
    name = "browse"
    metric = "success"

    def __init__(self, settings: BrowseSettings, seed: int = 0):
        """Check the kinds; problems are made when they are asked for, browsers start with the first episode.

        Args:
            settings: See BrowseSettings.
            seed: The run's. Problems do not follow it, so that runs of several seeds are compared on the same ones.

        Raises:
            ConfigError: A kind is unknown, or Chromium is needed and not installed.
            MissingExtraError: Playwright or miniwob is needed and not installed.
        """
        self._settings = settings
        on_site = settings.suite == "site"
        self._suite: Suite = SiteSuite(settings) if on_site else MiniwobSuite(settings)
        self._kinds = settings.kinds or list(FAMILIES if on_site else KINDS)
        self.max_turns = settings.max_turns
        # Without a browser there is nothing to wait for, and threads would only wait for one another.
        in_process = on_site and settings.engine == "inprocess"
        self.workers = 1 if in_process else settings.workers
        self.max_open = None if in_process else settings.workers

    def problems(self, split: Literal["train", "heldout"]) -> Sequence[Problem]:
        """See Task."""
        held_out = split == "heldout"
        count = self._settings.heldout_count if held_out else self._settings.train_count
        return [problem for kind in self._kinds for problem in self._suite.problems(kind, held_out, count)]

    def rewards(self) -> Mapping[str, RewardFn]:
        """See Task."""
        return browse_rewards(self.max_turns)

    def ask(self, text: str) -> Problem:
        """See Task."""
        return self._suite.ask(text)

    def show(self, answer: str) -> list[str]:
        """See Task: the lines that are no actions, and why."""
        parsed = [(line, parse(line)) for line in answer.split("\n") if line.strip() or not answer.strip()]
        return [f"{line}: {reason}" for line, reason in parsed if isinstance(reason, str)] or [
            "every line is an action"
        ]

    def mutate(self, problem: Problem, generator: np.random.Generator) -> Problem:
        """See Editable."""
        return self._suite.mutate(problem, generator)

    def episode(self, problem: Problem, seed: int) -> Episode:
        """See Interactive."""
        return self._suite.episode(problem, seed)

    def close(self) -> None:
        """End browsers and servers; without it they end with the program."""
        self._suite.close()


def browse_rewards(max_turns: int) -> Mapping[str, RewardFn]:
    """Return the rewards by name: success, which outweighs all others together, efficiency, progress, invalid, raw."""
    measures: dict[str, Callable[[Mapping[str, Any]], float]] = {
        "success": lambda outcome: outcome["success"],
        # Gated: a policy that fails fast earns nothing for being fast.
        "efficiency": lambda outcome: outcome["success"] * (1.0 - outcome["turns"] / max_turns),
        # A difference of potentials, end less start: whatever is done and undone in between adds up to nothing.
        "progress": lambda outcome: outcome["progress"],
        "invalid": lambda outcome: -min(MOST_INVALID, INVALID_COST * outcome["invalid"]),
        "raw": lambda outcome: outcome["raw"],
    }
    return {name: partial(_score, measure) for name, measure in measures.items()}


def _score(measure: Callable[[Mapping[str, Any]], float], problem: Problem, rollout: Rollout) -> Score:
    if rollout.unscored is not None:
        return Score(None, unscored=rollout.unscored)
    if "success" not in rollout.outcome:
        return Score(None, unscored="no episode was played; the browse task scores episodes, not texts")
    return Score(float(measure(rollout.outcome)))
