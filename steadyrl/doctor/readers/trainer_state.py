"""The trainer_state.json of Hugging Face's Trainer, which TRL's trainers write with every checkpoint."""

from __future__ import annotations

import re
from pathlib import Path

from steadyrl.doctor.readers.lines import parse_json
from steadyrl.doctor.readers.rows import Rows
from steadyrl.doctor.series import RawLog
from steadyrl.errors import RunError

NAME = "trainer_state.json"
MAX_BYTES = 256 << 20  # the whole file is parsed at once, at about ten times its size


def find(folder: Path) -> Path | None:
    """Return the state with the most steps in a Trainer's output folder, or None if there is none."""
    numbered = [(int(name[1]), path) for path in folder.glob("checkpoint-*") if (name := _number(path.name))]
    states = [path / NAME for _, path in sorted(numbered, reverse=True) if (path / NAME).is_file()]
    final = folder / NAME
    if not final.is_file():
        return states[0] if states else None
    # The one beside the checkpoints is written at the end; a resumed run may have gone on since.
    return max([final, *states[:1]], key=_global_step)


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder is one of those that ``find`` looks into."""
    return _number(folder.name) is not None and (folder / NAME).is_file()


def read(path: Path) -> RawLog:
    """Read a state, or a file that holds only its list of rows.

    Raises:
        RunError: It is too large, or damaged.
    """
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise RunError(
            f"'{path}' has {size >> 20} MiB; a JSON file of metrics may have {MAX_BYTES >> 20}: use JSON lines"
        )
    state = parse_json(path.read_bytes())
    history = state.get("log_history") if isinstance(state, dict) else state
    if not isinstance(history, list):
        raise RunError(f"'{path}' is torn or has no list 'log_history'; take the state of an earlier checkpoint")
    rows = Rows()
    good = [row for row in history if isinstance(row, dict)]
    rows.add(good)
    settings = {}
    if isinstance(state, dict):
        settings = {key: value for key, value in state.items() if isinstance(value, str | int | float)}
    notes = [f"entries left out, for they are no rows: {len(history) - len(good)}"] if len(history) > len(good) else []
    return rows.log(str(path), "trainer_state" if isinstance(state, dict) else "jsonl", settings, notes)


def _number(name: str) -> re.Match[str] | None:
    return re.fullmatch(r"checkpoint-(\d{1,15})", name)


def _global_step(path: Path) -> float:
    state = parse_json(path.read_bytes()) if path.stat().st_size <= MAX_BYTES else None
    step = state.get("global_step") if isinstance(state, dict) else None
    return step if isinstance(step, int | float) else -1
