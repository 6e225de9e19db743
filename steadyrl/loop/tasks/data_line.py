"""What is trained on and what judges: counts, where the problems come from, and which prompts stand twice."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from steadyrl.core.protocols import Interactive, Sourced, Task
from steadyrl.core.types import Problem
from steadyrl.core.words import counted

Counts = Mapping[str, Mapping[str, Any]]


def data_counts(task: Task, train: Sequence[Problem], heldout: Sequence[Problem]) -> dict[str, dict[str, Any]]:
    """Return what run.json says of the problems of each split, beside their digest."""
    sources = task.sources if isinstance(task, Sourced) else {}
    prompts = {_prompt_of(task, problem) for problem in train}
    counts: dict[str, dict[str, Any]] = {
        "train": {"problems": len(train), "prompts": len(prompts)},
        "heldout": {"problems": len(heldout)},
    }
    for split, source in sources.items():
        counts[split]["source"] = source
    trained_on_too = sum(_prompt_of(task, problem) in prompts for problem in heldout)
    counts["heldout"] |= {"of": len(task.problems("heldout")), "trained_on_too": trained_on_too}
    return counts


def _prompt_of(task: Task, problem: Problem) -> str:
    """Return what copies of a problem share. What an episode meets is not in its prompt: there it is the id."""
    if isinstance(task, Interactive):
        return problem.id
    return json.dumps(problem.messages) if problem.messages else problem.prompt


def data_line(data: Counts) -> str:
    """Return one line of what ``data_counts`` counted, as run.json holds it; "" where it holds nothing of the kind."""
    train, heldout = data.get("train", {}), data.get("heldout", {})
    if not all(isinstance(split, Mapping) and type(split.get("problems")) is int for split in (train, heldout)):
        return ""
    prompts = train.get("prompts", train["problems"])
    copies = f" with {counted(prompts, 'different prompt')}" if prompts < train["problems"] else ""
    count, total = heldout["problems"], heldout.get("of") or heldout["problems"]
    part = f"{count} of " if total != count else ""
    judges = f"{part}{counted(total, 'held-out problem')}{_from(heldout)}" if count else "none"
    line = f"trains on {counted(train['problems'], 'problem')}{copies}{_from(train)}, judged by {judges}"
    overlap = heldout.get("trained_on_too", 0)
    return f"{line}; {overlap} of the held-out prompts are trained on too" if overlap else line


def _from(split: Mapping[str, Any]) -> str:
    return f" ({split['source']})" if split.get("source") else ""
