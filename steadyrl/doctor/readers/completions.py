"""What the policy wrote, as trainers leave it: in JSON lines, or in printed tables; read anew by each loop over it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steadyrl.doctor.readers.lines import lines, objects, parse_objects, text_of
from steadyrl.doctor.readers.spelling import number, spelled
from steadyrl.doctor.series import Written

MAX_TEXT = 1 << 16  # characters of a completion that are kept
# By the trainer's key: our own, verl's and common ones.
STEPS = ("step", "global_step", "iteration")
PROMPTS, COMPLETIONS, REWARDS = ("prompt", "input"), ("completion", "output", "response"), ("reward", "score")
TITLE = re.compile(r"[─-] Step (\d{1,15}) [─-]")
FRAME = "─".encode()[:2]  # how every character that draws a frame begins in UTF-8
EDGES = ("┃", "│", "├", "└", "┏", "┡")


@dataclass(frozen=True)
class JsonTexts:
    """Completions in files of JSON lines; the name of a file may be the step of all its rows."""

    files: Sequence[Path]

    def __iter__(self) -> Iterator[Written]:
        for path in self.files:
            file_step = _step_of(path)
            for row in (row for chunk in objects(path) for row in chunk if holds_text(row)):
                row_step = next((row[key] for key in STEPS if type(row.get(key)) is int), 0)
                prompt, completion = (
                    next((row[key] for key in keys if isinstance(row.get(key), str)), "")
                    for keys in (PROMPTS, COMPLETIONS)
                )
                reward = next((number(row[key], null=None) for key in REWARDS if key in row), None)
                step = row_step if file_step is None else file_step
                yield Written(step, prompt[:MAX_TEXT], completion[:MAX_TEXT], reward)


@dataclass(frozen=True)
class PrintedTables:
    """Completions in the tables that TRL prints with ``log_completions``.

    "Step 12" stands in the frame above a table. Long texts are broken over lines, which are joined again.
    """

    path: Path

    def __iter__(self) -> Iterator[Written]:
        step, names, cells = 0, list[str](), list[str]()
        for line in (text_of(raw) for chunk in lines(self.path) for raw in chunk if FRAME in raw):
            if title := TITLE.search(line):
                step, names = int(title[1]), []
            text = line.strip()
            text = text[1:-1].strip() if text[:1] == text[-1:] == "│" and text[1:].lstrip()[:1] in EDGES else text
            if text[:1] == "┃":
                names = _joined(names, text[1:-1].split("┃"))
            elif text[:1] == "│" and names:
                cells = _joined(cells, text[1:-1].split("│"))
            elif text[:1] in ("├", "└") and cells:
                if len(cells) == len(names) and names[:2] == ["Prompt", "Completion"]:
                    # Reward functions stand in columns of their own, and are summed.
                    named_cells = zip(names[2:], cells[2:], strict=True)
                    scores = [spelled(cell) for name, cell in named_cells if name != "Advantage"]
                    rewards = [score for score in scores if score is not None]
                    yield Written(step, cells[0], cells[1], sum(rewards) if rewards else None)
                cells = []


def _joined(row: list[str], cells: list[str]) -> list[str]:
    """Return cells with those of a further line of the same row; a line of another shape is left out."""
    stripped = [cell.strip() for cell in cells]
    if not row:
        return stripped
    if len(row) != len(stripped):
        return row
    return [f"{above}\n{below}".strip()[:MAX_TEXT] for above, below in zip(row, stripped, strict=True)]


def beside(folder: Path) -> tuple[Path, ...]:
    """Return the files of completions in the folders of a log's folder: verl dumps those of its steps so."""
    by_folder = [step_files(inner) for inner in sorted(folder.iterdir()) if inner.is_dir()]
    return next((files for files in by_folder if files and file_holds_texts(files[0])), ())


def file_holds_texts(path: Path) -> bool:
    """Return whether the first row of a file of JSON lines holds a completion."""
    rows, _ = parse_objects(next((chunk for chunk in lines(path) if chunk), [])[:1])
    return any(map(holds_text, rows))


def step_files(folder: Path) -> tuple[Path, ...]:
    """Return the files of a folder whose name is a step, such as "000012.jsonl", in the order of the steps."""
    by_step = [(step, path) for path in folder.glob("*.jsonl") if (step := _step_of(path)) is not None]
    return tuple(path for _, path in sorted(by_step) if path.is_file())


def _step_of(path: Path) -> int | None:
    return int(path.stem) if path.stem.isdecimal() and len(path.stem) <= 15 else None


def holds_text(row: dict[str, Any]) -> bool:
    """Return whether a row holds a completion."""
    return any(isinstance(row.get(key), str) for key in COMPLETIONS)
