"""Which trainer_state.json of Hugging Face's Trainer counts: it writes one with every checkpoint."""

from __future__ import annotations

import re
from pathlib import Path

from steadyrl.doctor.readers.document import MAX_BYTES
from steadyrl.doctor.readers.lines import parse_json

NAME = "trainer_state.json"


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


def _number(name: str) -> re.Match[str] | None:
    return re.fullmatch(r"checkpoint-(\d{1,15})", name)


def _global_step(path: Path) -> float:
    state = parse_json(path.read_bytes()) if path.stat().st_size <= MAX_BYTES else None
    step = state.get("global_step") if isinstance(state, dict) else None
    return step if isinstance(step, int | float) else -1
