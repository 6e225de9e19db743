"""What a curriculum remembers of earlier rollouts: numbers by problem id, and problems that it made itself.

A checkpoint holds all of it, so that a resumed run chooses as the unbroken one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from steadyrl.core.types import Group, Problem

_SEEN: TypeAdapter[dict[str, dict[str, float]]] = TypeAdapter(dict[str, dict[str, float]])
_EDITED: TypeAdapter[list[Problem]] = TypeAdapter(list[Problem])
MAX_REMEMBERED = 20_000  # problems remembered, about 3 MB of a checkpoint; those not drawn for longest are forgotten


@dataclass(frozen=True)
class Memory:
    """What a curriculum knows."""

    seen: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Numbers by problem id (or by arm), see ``record_outcomes``."""
    made: Mapping[str, Problem] = field(default_factory=dict)
    """Problems that the curriculum made by editing, by id."""

    def plain(self) -> dict[str, Any]:
        """Return plain data for JSON; ``recall(memory.plain()) == memory``."""
        edited = [
            {"id": p.id, "prompt": p.prompt, "columns": dict(p.columns), "messages": list(p.messages)}
            for p in self.made.values()
        ]
        return {"seen": {name: dict(numbers) for name, numbers in self.seen.items()}, "made": edited}


def recall(data: Mapping[str, Any]) -> Memory:
    """Return the memory that ``plain`` wrote; an empty memory for empty data."""
    edited = [Problem(**{**record, "messages": tuple(record.get("messages", ()))}) for record in data.get("made", ())]
    return Memory(data.get("seen", {}), {problem.id: problem for problem in edited})


def checked(data: dict[str, Any]) -> dict[str, Any]:
    """Return data that ``recall`` understands as it is.

    Raises:
        ValueError: ``plain`` cannot have written it.
    """
    _EDITED.validate_python(data.get("made", []))
    for name, numbers in _SEEN.validate_python(data.get("seen", {})).items():
        if missing := {"rollouts", "last"} - numbers.keys():
            raise ValueError(f"what is remembered of '{name}' lacks {', '.join(sorted(missing))}")
    return data


@dataclass(frozen=True)
class Known:
    """What is remembered of N problems (or arms), as arrays [N]; 0 where nothing is."""

    drawn: np.ndarray
    """bool, drawn before and remembered."""
    rollouts: np.ndarray
    """Scored rollouts behind the numbers, old ones counting for less."""
    mean: np.ndarray
    square: np.ndarray
    """Of the reward and of its square."""
    deviation: np.ndarray
    """Mean distance of a reward from the mean of its group: the size of the advantages."""
    best: np.ndarray
    """Highest reward ever."""
    stale: np.ndarray
    """Steps since the last draw; since the start for those never drawn."""


def record_outcomes(
    memory: Memory,
    groups: Sequence[Group],
    step: int,
    decay: float,
    name: Callable[[Problem], str] = lambda problem: problem.id,
) -> Memory:
    """Return the memory with the rewards of a step's groups; earlier rollouts count by the factor ``decay``.

    Groups of equal rewards count like the others: they show that a problem is always or never solved. A problem
    without any scored rollout is remembered as drawn, and nothing else is known of it.

    Args:
        memory: The memory before; it does not change.
        groups: The scored groups; unscored rollouts are skipped.
        step: Steps that were finished before.
        decay: In [0, 1).
        name: Returns the name under which a problem's numbers are kept.
    """
    rewards: dict[str, list[np.ndarray]] = {}
    for group in groups:
        rewards.setdefault(name(group.problem), []).append(np.array(group.rewards, np.float64))
    records = dict(memory.seen)
    for key, group_rewards in rewards.items():
        records[key] = _with_rewards(records.get(key), group_rewards, step, decay)
    if len(records) > MAX_REMEMBERED:
        latest = set(sorted(records, key=lambda key: -records[key]["last"])[:MAX_REMEMBERED])
        records = {key: numbers for key, numbers in records.items() if key in latest}
    return replace(memory, seen=records)


def _with_rewards(
    before: Mapping[str, float] | None, group_rewards: Sequence[np.ndarray], step: int, decay: float
) -> dict[str, float]:
    rewards = np.concatenate(group_rewards)
    if not rewards.size:
        return {**(before or {"rollouts": 0.0}), "last": float(step)}
    distances = np.concatenate([np.abs(x - x.mean()) for x in group_rewards if x.size])
    samples = {"mean": rewards, "square": rewards**2, "deviation": distances}
    old_weight = decay * before["rollouts"] if before else 0.0
    total = old_weight + rewards.size
    updated = {"rollouts": total, "last": float(step), "best": float(rewards.max())}
    if before and "best" in before:
        updated["best"] = max(updated["best"], before["best"])
    for key, values in samples.items():
        updated[key] = float((old_weight * (before or {}).get(key, 0.0) + values.sum()) / total)
    return updated


def look_up(names: Sequence[str], memory: Memory, step: int) -> Known:
    """Return what is remembered under these names, in their order."""
    records = [memory.seen.get(name) for name in names]

    def column(key: str) -> np.ndarray:
        return np.array([numbers.get(key, 0.0) if numbers else 0.0 for numbers in records])

    return Known(
        drawn=np.array([numbers is not None for numbers in records], bool),
        rollouts=column("rollouts"),
        mean=column("mean"),
        square=column("square"),
        deviation=column("deviation"),
        best=column("best"),
        stale=np.array([step - numbers["last"] if numbers else step + 1.0 for numbers in records]),
    )
