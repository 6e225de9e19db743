"""Advice: what the autopilot would do. It is for mode "advise", which changes nothing in the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from steadyrl.core.types import Finding
from steadyrl.loop.autopilot.action import KL_STEP, Action, Context, Line, action_line
from steadyrl.loop.autopilot.band import healthy_band, narrowed_band
from steadyrl.loop.autopilot.controller import LEAP, LEAST_SHARE, search_factor
from steadyrl.loop.autopilot.knobs import choose
from steadyrl.loop.autopilot.rate import kl_sentence, rate_line
from steadyrl.loop.checkpoint import PilotState

OUTSIDE = 5  # steps in a row outside the band before advice is given


def advise(pilot: PilotState, record: Mapping[str, Any], findings: Sequence[Finding], context: Context) -> Action:
    """Return an action that only gives advice; see ``decide.decide``. The same advice is given once per run."""
    pilot, advice = _advise_rate(pilot, record, context)
    lines = [advice] if advice else []
    adjustment = choose(context.config, pilot, context.numbers, findings, context.rows)
    if adjustment is not None:
        finding = adjustment.finding
        line = action_line(
            context, "move", adjustment.knob, adjustment.before, adjustment.after, finding.message, finding.evidence
        )
        lines.append(line | {"check": finding.check, "cause": finding.cause})
    return Action(pilot, lines=tuple({**line, "done": False} for line in lines if not _is_said(line, context.actions)))


def _advise_rate(pilot: PilotState, record: Mapping[str, Any], context: Context) -> tuple[PilotState, Line | None]:
    """Say what the rate should be: at once for a step that would be taken back, else after five outside the band."""
    measured = record.get(KL_STEP)
    if pilot.first_entropy is None:
        pilot = replace(pilot, first_entropy=record.get("entropy"))
    if measured is None:
        return pilot, None
    share = record["learning_rate"] / context.config.update.learning_rate
    band = narrowed_band(pilot, record, context.config).at(share, rate_multiplier=1.0)
    leaps = not measured <= LEAP * healthy_band(pilot, record, context.config).high  # NaN too
    factor = search_factor(measured, band) if leaps or share >= LEAST_SHARE else 1.0
    side = (factor > 1.0) - (factor < 1.0)
    outside = pilot.steps_outside + side if side * pilot.steps_outside > 0 else side
    pilot = replace(pilot, steps_outside=outside)
    if leaps:
        why = "the step moved the policy too far and would be taken back"
    elif abs(outside) >= OUTSIDE:
        why = f"KL of a step {'below' if side > 0 else 'above'} its band"
    else:
        return pilot, None
    # A collapsed policy no longer moves, nor does one whose rewards are all equal: a higher rate would not help.
    lowered = any(line["kind"] == "rate" and line["after"] < line["before"] for line in context.actions)
    if side > 0 and (lowered or not record.get("reward/std")):
        return pilot, None
    return pilot, rate_line(pilot, context, "rate", 1.0, factor, why, [kl_sentence(record, band)])


def _is_said(line: Line, actions: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether this advice was given before; on a finding it is compared by cause, for its text has numbers."""
    keys = ("kind", "knob", "check", "cause") if "check" in line else ("kind", "knob", "why")
    return any([line[key] for key in keys] == [action.get(key) for key in keys] for action in actions)
