"""The records of a decision: what it rests on, and the action that follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from steadyrl.core.config import Config
from steadyrl.loop.checkpoint import PilotState

KL_STEP = "kl_step_k3"
ROLLBACKS_AT_MOST = 2  # per run: a third would mean that the autopilot does not know what is wrong

Line = dict[str, Any]


@dataclass(frozen=True)
class Context:
    """What a decision rests on, beside the autopilot's own state, the step's metrics and the findings."""

    config: Config
    """As configured."""
    step: int
    """Steps that are finished."""
    numbers: Mapping[str, float]
    """The algorithm's numbers."""
    checkpoints: Sequence[int] = ()
    """Steps of the complete checkpoints, oldest first."""
    rewards: Sequence[float] = ()
    """Mean rewards of the last steps, the newest last."""
    rows: Sequence[Mapping[str, Any]] = ()
    """Lines of metrics of the steps so far; needed where the doctor looked."""
    actions: Sequence[Mapping[str, Any]] = ()
    """Lines of actions.jsonl so far; needed for advice."""


@dataclass(frozen=True)
class Action:
    """What to do after a step."""

    pilot: PilotState
    """The autopilot's state from now on."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """The algorithm's numbers that change, with their new values."""
    lines: tuple[Line, ...] = ()
    """To be written to actions.jsonl."""
    back_to: int | None = None
    """The checkpoint to go back to; None goes on. Its state gets ``pilot`` and ``numbers``."""
    skips_problems: bool = False
    """True if the problems drawn since that checkpoint are not drawn again."""


def action_line(
    steps: int, kind: str, knob: str, before: float | None, after: float | None, reason: str, evidence: Sequence[str]
) -> Line:
    """Return a line of actions.jsonl about what was done after so many steps."""
    return {
        "step": steps - 1,
        "kind": kind,
        "knob": knob,
        "before": before,
        "after": after,
        "why": reason,
        "evidence": list(evidence),
        "done": True,
    }
