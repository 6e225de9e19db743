"""Any JSONL file of prompts as a task. The user's own reward decides what is good.

    {"prompt": "What is 17 + 25?", "id": "sum-1", "answer": 42, "gold": "42"}

``prompt`` is required. ``id`` may be absent. The id is then derived from the prompt, so a prompt keeps its id and its
side of the split when lines are added around it. ``gold`` may contain a known good answer. Every column except
``prompt`` and ``id`` reaches the rewards through ``Problem.columns``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from steadyrl.errors import DataError
from steadyrl.protocols import RewardFn
from steadyrl.sections import PathText, Section
from steadyrl.tasks.jsonl import filled_field, held_out_ids, read_objects, text_field
from steadyrl.types import Problem

# 64 bits: among ten million files of a million prompts, fewer than one has a collision.
_ID_DIGITS = 16


class PromptsTask:
    """Prompts of a file, read and checked when the task is made.

    Attributes:
        name: "prompts".
        metric: The reward part that evaluations compare; "" means the weighted total.
    """

    class Settings(Section):
        """Settings of the prompts task."""

        path: PathText = Field(
            description="JSONL file with a 'prompt' per line. An 'id' is optional, and other columns are passed to "
            "the rewards."
        )
        heldout: PathText = Field(
            "", description="A second file of the same kind for evaluations. Empty holds out a share of the first."
        )
        heldout_share: float = Field(
            0.2,
            gt=0,
            lt=1,
            description="Share of the first file's problems that are held out if there is no second file.",
        )
        metric: str = Field("", description="Reward part that evaluations compare. Empty compares the weighted total.")

    name = "prompts"

    def __init__(self, settings: Settings, seed: int = 0) -> None:
        """Read the files.

        Args:
            settings: Which files.
            seed: The run's seed. The split does not depend on it, so runs with different seeds are compared on the same
                held-out problems.

        Raises:
            DataError: A file has a defect; the error names the first one by file and line.
        """
        self.metric = settings.metric
        path = Path(settings.path)
        lines: dict[str, str] = {}
        problems = _problems(path, lines)
        if settings.heldout:
            self._train, self._heldout = problems, _problems(Path(settings.heldout), lines)
            return
        if len(problems) < 2:
            raise DataError(f"{path} has one prompt; expected two or more, or task.args.heldout = another file")
        held_out = held_out_ids([problem.id for problem in problems], settings.heldout_share)
        self._train = tuple(problem for problem in problems if problem.id not in held_out)
        self._heldout = tuple(problem for problem in problems if problem.id in held_out)

    def problems(self, split: Literal["train", "heldout"]) -> Sequence[Problem]:
        """Return the problems of a split in the order of their file."""
        return self._train if split == "train" else self._heldout

    def rewards(self) -> Mapping[str, RewardFn]:
        """Return no reward: the section [rewards] names the user's rewards by import path."""
        return {}

    def baselines(self) -> Mapping[str, Callable[[Problem], str]]:
        """Return no baseline: the task does not know what the prompts ask for."""
        return {}

    def gold(self, problem: Problem) -> str | None:
        """Return the column ``gold``, or None if a problem has none."""
        gold: str | None = problem.columns.get("gold")
        return gold

    def ask(self, text: str) -> Problem:
        """Return the text as a new problem."""
        return Problem("asked", text)

    def show(self, answer: str) -> list[str]:
        """Return nothing: the task does not know what an answer does."""
        return []


def _problems(path: Path, lines: dict[str, str]) -> tuple[Problem, ...]:
    """Read one file; ``lines`` collects the place of each id, over all files of the task."""
    problems: list[Problem] = []
    for number, record in read_objects(path):
        prompt = filled_field(record, "prompt", path, number)
        id = filled_field(record, "id", path, number) if "id" in record else _id_of(prompt)
        if id in lines:
            same = f"the id '{id}'" if "id" in record else "the same prompt"
            raise DataError(f"{path}, line {number}: {same} is on {lines[id]} too; remove one or change its 'id'")
        lines[id] = f"line {number} of {path}"
        problems.append(Problem(id, prompt, _columns(record, path, number)))
    if not problems:
        raise DataError(f"{path} has no prompt; expected one JSON object with a 'prompt' per line")
    return tuple(problems)


def _id_of(prompt: str) -> str:
    return hashlib.sha256(prompt.encode()).hexdigest()[:_ID_DIGITS]


def _columns(record: Mapping[str, Any], path: Path, number: int) -> dict[str, Any]:
    if record.get("gold") is not None:
        text_field(record, "gold", path, number)
    return {key: value for key, value in record.items() if key not in ("prompt", "id")}
