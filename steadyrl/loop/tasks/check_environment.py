"""Plays an environment with rules in the place of a policy: one tries every tool, one loops, one is hostile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from steadyrl.core.protocols import Episode, Task, ToolUsing
from steadyrl.core.types import Finding, Message, Problem, Rollout
from steadyrl.loop.rewards.combine import Term
from steadyrl.loop.tasks.attempts import Say, score_attempts
from steadyrl.loop.tasks.tools import sample_arguments

EPISODES, SHOWN = 20, 3
_CLIP = 300  # characters of a turn or an observation in an episode that is shown


def check_environment(
    task: Any, terms: Sequence[Term], problems: Sequence[Problem], empty_at_most: float
) -> list[Finding]:
    """Return what a scripted, a looping and a hostile policy come to.

    Args:
        task: With messages and perhaps tools.
        terms: The rewards.
        problems: Which are played, at most ``EPISODES`` of them.
        empty_at_most: What a policy that does nothing may earn on average.
    """
    some = problems[:: -(-len(problems) // EPISODES)]
    rollouts = score_attempts(task, [(problem, scripted(task, problem)) for problem in some], terms)
    earned = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    most = max(empty_at_most, float(np.mean(earned)) if earned else empty_at_most)
    return [_played(task, rollouts), _looping(task, terms, some, most), _hostile(task, terms, some[0])]


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


def _played(task: Any, rollouts: Sequence[Rollout]) -> Finding:
    name = "scripted policy"
    calls = [call for rollout in rollouts for turn in rollout.calls for call in turn]
    broken = [rollout.unscored for rollout in rollouts if rollout.unscored]
    failed = [call for call in calls if call.end != "ok"]
    turns = float(np.mean([len(rollout.turns) for rollout in rollouts]))
    message = f"{len(rollouts)} episodes of {turns:.1f} turns on average, {_scores(task, rollouts)}"
    if calls:
        ends = Counter(call.end for call in calls)
        message += f"; {len(calls)} calls: {', '.join(f'{count} {end}' for end, count in ends.most_common())}"
    if failed:
        message += f"; the first: {failed[0].name}: {failed[0].result}"
    if broken:
        message += f"; {len(broken)} left unscored, the first: {broken[0]}"
    shown = [line for i, r in enumerate(rollouts[:SHOWN]) for line in _episode_lines(i + 1, r)]
    # A tool may raise for arguments out of the blue, but not for all of them.
    bad = bool(broken) or any(call.end == "timeout" for call in calls) or (bool(failed) and len(failed) == len(calls))
    return Finding(
        name, "critical" if bad else "info", message=message, evidence=tuple(shown), state="found" if bad else "ok"
    )


def _scores(task: Task, rollouts: Sequence[Rollout]) -> str:
    scores = [r.parts.get(task.metric) if task.metric else r.reward for r in rollouts]
    numbers = [score for score in scores if score is not None]
    return f"mean {task.metric or 'reward'} {np.mean(numbers):.3f}" if numbers else "none of them scored"


def _looping(task: Any, terms: Sequence[Term], problems: Sequence[Problem], most: float) -> Finding:
    """Say the same thing in every turn, a call where there are tools: that must not be worth anything."""

    def loop(problem: Problem) -> Say:
        turn = _call(task.tools[0], problem) if task.tools else "again"
        return lambda episode, number: turn

    rollouts = score_attempts(task, [(problem, loop(problem)) for problem in problems], terms)
    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    if len(rewards) < len(rollouts):
        first = next(r.unscored for r in rollouts if r.reward is None)
        return Finding("looping policy", "critical", message=f"{len(rollouts) - len(rewards)} left unscored ({first})")
    mean = float(np.mean(rewards))
    turns = float(np.mean([len(rollout.turns) for rollout in rollouts]))
    message = f"mean reward {mean:.3f} for the same turn again and again, {turns:.1f} turns; expected at most {most:g}"
    if mean <= most:
        return Finding("looping policy", state="ok", message=message)
    return Finding("looping policy", "critical", message=f"{message}: reward what a turn adds, not that there is one")


def _hostile(task: ToolUsing, terms: Sequence[Term], problem: Problem) -> Finding:
    """Make calls that cannot be made: each must come to an observation."""
    tools = [*task.tools, {"function": {"name": "no_such_tool"}}]
    wrong: list[Any] = [{}, {"x": None}, {"query": ["a"], "\ud800": 1}]
    turns = [_call(tool, problem, arguments) for tool in tools for arguments in wrong]
    turns.append({"role": "assistant", "content": "", "invalid_tool_calls": [{"text": "{", "error": "no JSON"}]})
    all_calls = [call for turn in turns[:-1] for call in turn["tool_calls"]]
    turns.append({"role": "assistant", "content": "(" * 500, "tool_calls": all_calls})
    rollouts = score_attempts(task, [(problem, _always(turn)) for turn in turns], terms)  # type: ignore[arg-type]
    unscored = [rollout.unscored for rollout in rollouts if rollout.unscored]
    message = f"{len(turns)} turns with calls that cannot be made, {len(unscored)} left unscored"
    if unscored:
        return Finding("hostile calls", "critical", message=f"{message} ({unscored[0]})")
    return Finding("hostile calls", state="ok", message=message)


def _always(turn: Message) -> Say:
    return lambda episode, number: turn


def _episode_lines(number: int, rollout: Rollout) -> list[str]:
    """Return an episode as a reader sees it, a line for every turn and observation, with the turn's reward."""
    rewards = dict(rollout.turn_rewards)
    lines = [f"episode {number}, {rollout.problem_id}: reward {rollout.reward if rollout.reward is not None else '-'}"]
    for turn, (observation, reply) in enumerate(zip_longest(rollout.seen, rollout.turns), start=1):
        if observation is not None:
            lines.append(f"    reads: {_one_line(observation)}")
        if reply is not None:
            lines.append(
                f"    says:  {_one_line(reply)}" + (f"   [reward {rewards[turn]:g}]" if turn in rewards else "")
            )
    return lines


def _one_line(text: str) -> str:
    line = " / ".join(filter(None, map(str.strip, text.splitlines())))
    return line if len(line) <= _CLIP else f"{line[:_CLIP]} ..."
