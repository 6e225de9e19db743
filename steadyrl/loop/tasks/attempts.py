"""Episodes that a rule plays instead of a policy, for checks and comparisons.

One rule tries every tool, one says one thing again and again, and one makes calls that cannot be made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from steadyrl.core.errors import EpisodeError, raised_line
from steadyrl.core.plugins import require_members
from steadyrl.core.protocols import Episode, Interactive, ToolUsing, outcome_of
from steadyrl.core.types import Group, Message, Problem, Rollout, ToolCall, message_text
from steadyrl.loop.rewards.combine import Term, score_groups, text_rollout
from steadyrl.loop.rewards.functions import RAISED
from steadyrl.loop.tasks.tools import sample_arguments

# Maps the episode and the number of the turn to the turn, a text or a message; None ends the episode.
Say = Callable[[Episode, int], "str | Message | None"]
_CLIP = 300  # characters of a turn or an observation in an episode that is shown


def attempt(task: Interactive, problem: Problem, say: Say) -> Rollout:
    """Play one episode. If its environment breaks, the rollout says why it has no reward."""
    episode = task.episode(problem, seed=0)
    require_members("the task's episode", episode, Episode)
    turns: list[str] = []
    observations: list[str] = []
    rewards: list[tuple[int, float]] = []
    calls: list[tuple[ToolCall, ...]] = []
    failure: str | None = None
    outcome: Mapping[str, Any] = {}
    try:
        observations.append(_text(episode.open()))
        while len(turns) < task.max_turns and (turn := say(episode, len(turns))) is not None:
            message = {"role": "assistant", "content": turn} if isinstance(turn, str) else turn
            turns.append(message_text(message))
            step = episode.step(message if isinstance(task, ToolUsing) else turns[-1])
            if step.reward is not None:
                rewards.append((len(turns), float(step.reward)))
            calls.append(tuple(step.calls))
            if step.done:
                break
            observations.append(_text(step.observation))
    except RAISED as error:
        failure = _reason(error)
    finally:
        try:
            outcome = outcome_of(episode)
        except RAISED as error:
            failure = failure or _reason(error)
    rollout = text_rollout(problem, "\n".join(turns))
    return replace(
        rollout,
        unscored=failure,
        turns=tuple(turns),
        seen=tuple(observations),
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


def scripted(task: Any, problem: Problem) -> Say:
    """Return a policy that says what the environment's expert says, or else calls each tool and then gives the gold."""
    script: list[Message | str | None] = [_call(tool, problem) for tool in task.tools]
    script.append(task.gold(problem) or "")
    experts: list[bool] = []

    def say(episode: Episode, turn: int) -> Message | str | None:
        advice = episode.expert()
        experts.append(advice is not None)
        if advice is not None or any(experts):
            return advice
        return script[turn] if turn < len(script) else None

    return say


def _call(tool: Mapping[str, Any], problem: Problem, arguments: Any = None) -> Message:
    words = " ".join(problem.prompt.split()[:5]) or "lists"
    function = {
        "name": tool["function"]["name"],
        "arguments": sample_arguments(tool, words) if arguments is None else arguments,
    }
    call = {"id": "call00000", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def looping(task: Any, problem: Problem) -> Say:
    """Return a policy that says the same thing in every turn, a call where there are tools."""
    return always(_call(task.tools[0], problem) if task.tools else "again")


def impossible_calls(task: Any, problem: Problem) -> list[Message]:
    """Return turns with calls that cannot be made; each must come to an observation."""
    tools = [*task.tools, {"function": {"name": "no_such_tool"}}]
    wrong: list[Any] = [{}, {"x": None}, {"query": ["a"], "\ud800": 1}]
    turns = [_call(tool, problem, arguments) for tool in tools for arguments in wrong]
    all_calls = [call for turn in turns for call in turn["tool_calls"]]
    unreadable = {"role": "assistant", "content": "", "invalid_tool_calls": [{"text": "{", "error": "no JSON"}]}
    return [*turns, unreadable, {"role": "assistant", "content": "(" * 500, "tool_calls": all_calls}]


def always(turn: Message | str) -> Say:
    """Return a policy that says one thing in every turn."""
    return lambda episode, number: turn


def episode_lines(number: int, rollout: Rollout) -> list[str]:
    """Return an episode as a reader sees it, a line for every turn and observation, with the turn's reward."""
    rewards = dict(rollout.turn_rewards)
    lines = [f"episode {number}, {rollout.problem_id}: reward {rollout.reward if rollout.reward is not None else '-'}"]
    for turn, (observation, reply) in enumerate(zip_longest(rollout.seen, rollout.turns), start=1):
        if observation is not None:
            lines.append(f"    reads: {_one_line(observation)}")
        if reply is not None:
            reward = f"   [reward {rewards[turn]:g}]" if turn in rewards else ""
            lines.append(f"    says:  {_one_line(reply)}{reward}")
    return lines


def _one_line(text: str) -> str:
    line = " / ".join(filter(None, map(str.strip, text.splitlines())))
    return line if len(line) <= _CLIP else f"{line[:_CLIP]} ..."
