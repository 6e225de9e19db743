"""Episodes that a rule plays instead of a policy, for checks and comparisons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from steadyrl.core.errors import EpisodeError, raised_line
from steadyrl.core.plugins import require_members
from steadyrl.core.protocols import Episode, Interactive, ToolUsing
from steadyrl.core.types import Group, Message, Problem, Rollout, ToolCall, message_text
from steadyrl.loop.rewards.combine import Term, score_groups, written
from steadyrl.loop.rewards.functions import RAISED

# Maps the episode and the number of the turn to the turn, a text or a message; None ends the episode.
Say = Callable[[Episode, int], "str | Message | None"]


def attempt(task: Interactive, problem: Problem, say: Say) -> Rollout:
    """Play one episode. If its environment breaks, the rollout says why it has no reward."""
    episode = task.episode(problem, seed=0)
    require_members("the task's episode", episode, Episode)
    turns: list[str] = []
    seen: list[str] = []
    rewards: list[tuple[int, float]] = []
    calls: list[tuple[ToolCall, ...]] = []
    broken: str | None = None
    outcome: Mapping[str, Any] = {}
    try:
        seen.append(_text(episode.open()))
        while len(turns) < task.max_turns and (turn := say(episode, len(turns))) is not None:
            message = {"role": "assistant", "content": turn} if isinstance(turn, str) else turn
            turns.append(message_text(message))
            answer = episode.step(message if isinstance(task, ToolUsing) else turns[-1])
            if answer.reward is not None:
                rewards.append((len(turns), float(answer.reward)))
            calls.append(tuple(answer.calls))
            if answer.done:
                break
            seen.append(_text(answer.observation))
    except RAISED as error:
        broken = _reason(error)
    finally:
        try:
            outcome = episode.close()
        except RAISED as error:
            broken = broken or _reason(error)
    rollout = written(problem, "\n".join(turns))
    return replace(
        rollout,
        unscored=broken,
        turns=tuple(turns),
        seen=tuple(seen),
        outcome=outcome,
        turn_rewards=tuple(rewards),
        calls=tuple(calls),
    )


def _text(observation: str | Sequence[Message]) -> str:
    return observation if isinstance(observation, str) else "\n".join(map(message_text, observation))


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, EpisodeError) else f"the episode raised {raised_line(error)}"


def score_attempts(task: Interactive, attempts: Sequence[tuple[Problem, Say]], terms: Sequence[Term]) -> list[Rollout]:
    """Play episodes one after the other and score them, in order."""
    groups = [Group(problem, (attempt(task, problem, say),)) for problem, say in attempts]
    return [group.rollouts[0] for group in score_groups(groups, terms)]
