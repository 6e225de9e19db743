"""What the policy wrote, as trainers leave it: one file of JSON lines per step, read one at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steadyrl.doctor.readers.lines import Lines, parse_objects
from steadyrl.doctor.readers.spelling import number, spelled
from steadyrl.doctor.series import Written

MAX_TEXT = 1 << 16  # characters of a completion that are kept
# By the trainer's key: our own, verl's and common ones.
STEPS = ("step", "global_step", "iteration")
TITLE = re.compile(r"[─-] Step (\d{1,15}) [─-]")
FRAME = "─".encode()[:2]  # how every character that draws a frame begins in UTF-8
EDGES = ("┃", "│", "├", "└", "┏", "┡")
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


@dataclass(frozen=True)
class InRows:
    """Completions in the rows of a file of JSON lines, beside their step; each loop over it reads them anew."""

    path: Path

    def __iter__(self) -> Iterator[Written]:
        for chunk in Lines(self.path):
            for row in parse_objects(chunk)[0]:
                step = next((row[key] for key in STEPS if type(row.get(key)) is int), 0)
                if written := written_of(row, step):
                    yield written


@dataclass(frozen=True)
class PrintedTables:
    """Completions in the tables that TRL prints with ``log_completions``; each loop over it reads them anew.

    "Step 12" stands in the frame above a table. Long texts are broken over lines, which are joined again.
    """

    path: Path

    def __iter__(self) -> Iterator[Written]:
        step, names, cells = 0, list[str](), list[str]()
        for chunk in Lines(self.path):
            framed = [raw for raw in chunk if FRAME in raw]
            for line in (raw.decode("utf-8", errors="replace") for raw in framed):
                if titled := TITLE.search(line):
                    step, names = int(titled[1]), []
                text = line.strip()
                text = text[1:-1].strip() if text[:1] == text[-1:] == "│" and text[1:].lstrip()[:1] in EDGES else text
                if text[:1] == "┃":
                    names = _joined(names, text[1:-1].split("┃"))
                elif text[:1] == "│" and names:
                    cells = _joined(cells, text[1:-1].split("│"))
                elif text[:1] in ("├", "└") and cells:
                    if written := _of_cells(step, names, cells):
                        yield written
                    cells = []


def _joined(held: list[str], cells: list[str]) -> list[str]:
    """Return cells with those of a further line of the same row; a line of another shape is left out."""
    stripped = [cell.strip() for cell in cells]
    if not held:
        return stripped
    if len(held) != len(stripped):
        return held
    return [f"{above}\n{below}".strip()[:MAX_TEXT] for above, below in zip(held, stripped, strict=True)]


def _of_cells(step: int, names: list[str], cells: list[str]) -> Written | None:
    """Return a row of a table; its reward is the sum over the reward functions, which stand in columns of their own."""
    if len(cells) != len(names) or names[:2] != ["Prompt", "Completion"]:
        return None
    rewards = [spelled(cell) for name, cell in zip(names[2:], cells[2:], strict=True) if name != "Advantage"]
    known = [reward for reward in rewards if reward is not None]
    return Written(step, cells[0], cells[1], sum(known) if known else None)


def beside(folder: Path) -> tuple[Path, ...]:
    """Return the files of completions in the folders of a log's folder: verl dumps those of its steps so."""
    found = [step_files(inner) for inner in sorted(folder.iterdir()) if inner.is_dir()]
    held = (files for files in found if files and holds_texts(files[0]))
    return next(held, ())


def holds_texts(path: Path) -> bool:
    """Return whether the first row of a file of JSON lines holds a completion."""
    rows, _ = parse_objects(next((chunk for chunk in Lines(path) if chunk), [])[:1])
    return any(map(holds_text, rows))


def step_files(folder: Path) -> tuple[Path, ...]:
    """Return the files of a folder whose name is a step, such as "000012.jsonl"."""
    files = (path for path in folder.glob("*.jsonl") if path.is_file())  # and no link that leads nowhere
    return tuple(path for path in files if path.stem.isdecimal() and len(path.stem) <= 15)


def step_of(path: Path) -> int:
    """Return the step that a file's name says."""
    return int(path.stem)


def written_of(row: dict[str, Any], step: int) -> Written | None:
    """Return the completion that a row holds, or None if it holds none."""
    if not holds_text(row):
        return None
    texts = [next((row[key] for key in keys if isinstance(row.get(key), str)), "") for keys in (PROMPTS, COMPLETIONS)]
    reward = next((number(row[key], null=None) for key in REWARDS if key in row), None)
    return Written(step, texts[0][:MAX_TEXT], texts[1][:MAX_TEXT], reward)


def holds_text(row: dict[str, Any]) -> bool:
    """Return whether a row holds a completion."""
    return any(isinstance(row.get(key), str) for key in COMPLETIONS)
