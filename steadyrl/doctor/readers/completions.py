"""What the policy wrote, as trainers leave it: one file of JSON lines per step, read one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steadyrl.doctor.readers.lines import Lines, parse_objects
from steadyrl.doctor.readers.spelling import number
from steadyrl.doctor.series import Written

MAX_TEXT = 1 << 16  # characters of a completion that are kept
# By the trainer's key: our own, verl's and common ones.
PROMPTS, COMPLETIONS, REWARDS = ("prompt", "input"), ("completion", "output", "response"), ("reward", "score")


@dataclass(frozen=True)
class StepFiles:
    """Completions in files of JSON lines, named by their step; each loop over it reads them anew."""

    files: Sequence[Path]

    def __iter__(self) -> Iterator[Written]:
        for path in sorted(self.files, key=step_of):
            for chunk in Lines(path):
                for row in parse_objects(chunk)[0]:
                    if written := written_of(row, step_of(path)):
                        yield written


def step_files(folder: Path) -> tuple[Path, ...]:
    """Return the files of a folder whose name is a step, such as "000012.jsonl"."""
    return tuple(path for path in folder.glob("*.jsonl") if path.stem.isdecimal() and len(path.stem) <= 15)


def step_of(path: Path) -> int:
    """Return the step that a file's name says."""
    return int(path.stem)


def written_of(row: dict[str, Any], step: int) -> Written | None:
    """Return the completion that a row holds, or None if it holds none."""
    texts = [next((row[key] for key in keys if isinstance(row.get(key), str)), "") for keys in (PROMPTS, COMPLETIONS)]
    if not any(isinstance(row.get(key), str) for key in COMPLETIONS):
        return None
    reward = next((number(row[key], null=None) for key in REWARDS if key in row), None)
    return Written(step, texts[0][:MAX_TEXT], texts[1][:MAX_TEXT], reward)
