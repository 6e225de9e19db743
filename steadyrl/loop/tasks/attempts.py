"""Episodes that a rule plays instead of a policy, for checks and comparisons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from steadyrl.core.errors import EpisodeError
from steadyrl.core.plugins import require_members
from steadyrl.core.protocols import Episode, Interactive
from steadyrl.core.types import Group, Problem, Rollout
from steadyrl.loop.rewards.combine import Term, score_groups, written

# Maps the episode and the number of the turn to the text of the turn; None ends the episode.
Say = Callable[[Episode, int], "str | None"]


def attempt(task: Interactive, problem: Problem, say: Say) -> Rollout:
    """Play one episode. If its environment breaks, the rollout says why it has no reward."""
    episode = task.episode(problem, seed=0)
    require_members("the task's episode", episode, Episode)
    turns: list[str] = []
    broken: str | None = None
    outcome: Mapping[str, Any] = {}
    try:
        episode.open()
        while len(turns) < task.max_turns and (text := say(episode, len(turns))) is not None:
            turns.append(text)
            if episode.step(text).done:
                break
    except EpisodeError as error:
        broken = str(error)
    finally:
        try:
            outcome = episode.close()
        except EpisodeError as error:
            broken = broken or str(error)
    rollout = written(problem, "\n".join(turns))
    return replace(rollout, unscored=broken, turns=tuple(turns), outcome=outcome)


def score_attempts(task: Interactive, attempts: Sequence[tuple[Problem, Say]], terms: Sequence[Term]) -> list[Rollout]:
    """Play episodes one after the other and score them, in order."""
    groups = [Group(problem, (attempt(task, problem, say),)) for problem, say in attempts]
    return [group.rollouts[0] for group in score_groups(groups, terms)]
