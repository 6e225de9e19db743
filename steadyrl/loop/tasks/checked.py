"""A task that is checked, with the known answers to its problems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.core import plugins
from steadyrl.core.config import Config
from steadyrl.core.protocols import Interactive, Task
from steadyrl.core.sections import RewardSettings
from steadyrl.core.types import Problem, Rollout
from steadyrl.doctor.check import Registry
from steadyrl.loop.rewards.combine import Term, make_terms, planned_updates, score_texts
from steadyrl.loop.tasks.attempts import always, score_attempts, scripted

_PROBLEMS = 200  # of each split, spread evenly
_PLAYED = 20  # episodes
RECORDS = Registry.read(Path(__file__).with_name("checks.toml"))
check = RECORDS.check


@dataclass(frozen=True)
class CheckedTask:
    """What is checked."""

    config: Config
    """Names the task and its rewards."""
    task: Any
    """The task; of a user, so that its abilities are asked of it."""
    terms: Sequence[Term]
    train: Sequence[Problem]
    """All problems to train on."""
    heldout: Sequence[Problem]
    """All problems that judge."""

    @cached_property
    def problems(self) -> list[Problem]:
        """At most 200 problems of each split."""
        return [*_spread(self.train), *_spread(self.heldout)]

    @cached_property
    def played(self) -> list[Problem]:
        """The problems whose episodes are played by rules."""
        return self.problems[:: -(-len(self.problems) // _PLAYED)]

    @cached_property
    def scripted(self) -> list[Rollout]:
        """What the scripted policy came to."""
        return score_attempts(self.task, [(p, scripted(self.task, p)) for p in self.played], self.terms)

    @cached_property
    def empty(self) -> list[Rollout]:
        """What empty answers to the problems came to."""
        return self.answered([(problem, "") for problem in self.problems])

    def answered(self, answers: Sequence[tuple[Problem, str]]) -> list[Rollout]:
        """Score texts. A multi-turn problem gets its text in every turn."""
        if isinstance(self.task, Interactive):
            return score_attempts(self.task, [(problem, always(text)) for problem, text in answers], self.terms)
        return score_texts(answers, self.terms)

    def golden(self, problems: Sequence[Problem]) -> list[tuple[Problem, Rollout]]:
        """Return the problems for which the task knows a good answer, with the rollout of that answer."""
        if isinstance(self.task, Interactive):
            attempts = [(problem, lambda episode, turn: episode.expert()) for problem in problems]
            rollouts = score_attempts(self.task, attempts, self.terms)
            return [(p, r) for p, r in zip(problems, rollouts, strict=True) if r.turns or r.unscored]
        answers = [(p, text) for p in problems if (text := self.task.gold(p)) is not None]
        return [(p, r) for (p, _), r in zip(answers, score_texts(answers, self.terms), strict=True)]

    def scores(self, rollouts: Sequence[Rollout]) -> list[float | None]:
        """Return the task's metric of rollouts, or their rewards where it has none."""
        return [rollout.parts.get(self.task.metric) if self.task.metric else rollout.reward for rollout in rollouts]


def open_to_check(config: Config) -> tuple[Task, list[Term]]:
    """Return a newly built task and its rewards without an AI judge, which costs much and says nothing about the task.

    `steadyrl judge` checks judges. If the judge is the only reward, it is used here too.
    """
    task = plugins.open_task(config.task.name, config.task.args, config.run.seed)
    cheap = {n: s for n, s in config.rewards.items() if not (isinstance(s, RewardSettings) and s.costly)}
    return task, make_terms(cheap or config.rewards, task, planned_updates(config))


def offers(abilities: type) -> Callable[[CheckedTask], bool]:
    """Return whether a task has the abilities of a protocol of ``protocols``."""
    return lambda checked: isinstance(checked.task, abilities)


def _spread(problems: Sequence[Problem]) -> list[Problem]:
    if len(problems) <= _PROBLEMS:
        return list(problems)
    return [problems[i] for i in np.linspace(0, len(problems) - 1, _PROBLEMS).astype(int)]
