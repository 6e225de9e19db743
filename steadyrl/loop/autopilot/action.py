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
    """What a decision rests on, beside the autopilot's own state, the step's metrics and the findings.

    Attributes:
        config: As configured.
        step: Steps that are finished.
        numbers: The algorithm's numbers.
        checkpoints: Steps of the complete checkpoints, oldest first.
        rewards: Mean rewards of the last steps, the newest last.
        rows: Lines of metrics of the steps so far; needed where the doctor looked.
        actions: Lines of actions.jsonl so far; needed for advice.
    """

    config: Config
    step: int
    numbers: Mapping[str, float]
    checkpoints: Sequence[int] = ()
    rewards: Sequence[float] = ()
    rows: Sequence[Mapping[str, Any]] = ()
    actions: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Action:
    """What to do after a step.

    Attributes:
        pilot: The autopilot's state from now on.
        numbers: The algorithm's numbers that change, with their new values.
        lines: To be written to actions.jsonl.
        back_to: The checkpoint to go back to; None goes on. Its state gets ``pilot`` and ``numbers``.
        skips_problems: True if the problems drawn since that checkpoint are not drawn again.
    """

    pilot: PilotState
    numbers: Mapping[str, float] = field(default_factory=dict)
    lines: tuple[Line, ...] = ()
    back_to: int | None = None
    skips_problems: bool = False


def action_line(
    context: Context, kind: str, knob: str, before: float | None, after: float | None, why: str, evidence: Sequence[str]
) -> Line:
    """Return a line of actions.jsonl."""
    return {
        "step": context.step - 1,
        "kind": kind,
        "knob": knob,
        "before": before,
        "after": after,
        "why": why,
        "evidence": list(evidence),
        "done": True,
    }
