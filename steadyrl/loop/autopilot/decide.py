"""What the autopilot does after a step: a pure function of what was measured and found.

``rate`` decides about the learning rate and the KL coefficient after every step, this module about findings, and
``advise`` about both in mode "advise".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from steadyrl.core.config import dump
from steadyrl.core.types import Finding
from steadyrl.doctor.live import LiveDoctor
from steadyrl.doctor.readers.spelling import flat_settings
from steadyrl.loop.autopilot.action import Action, Context, action_line
from steadyrl.loop.autopilot.advise import advise
from steadyrl.loop.autopilot.band import observe
from steadyrl.loop.autopilot.knobs import KL_COEF, Adjustment, adjust, choose, read_knob, set_knob
from steadyrl.loop.autopilot.rate import hold_kl_ref, hold_rate, may_roll_back, take_step_back
from steadyrl.loop.checkpoint import LastMove, PilotState


def decide(
    pilot: PilotState, record: Mapping[str, Any], findings: Sequence[Finding] | None, context: Context
) -> Action:
    """Return what to do after a step.

    Args:
        pilot: The autopilot's state.
        record: The step's line of metrics.
        findings: What the doctor found at this step, causes before consequences; None where it did not look.
        context: What else the decision rests on.
    """
    mode = context.config.autopilot.mode
    if mode == "off":
        return Action(pilot)
    if mode == "advise":
        return advise(pilot, record, findings or (), context)
    back = take_step_back(pilot, record, context)
    if back is not None:
        return back
    action = hold_kl_ref(hold_rate(observe(pilot, record, findings), record, context), record, context)
    return _remember_coefficient(action if findings is None else _answer_findings(action, findings, context))


def _remember_coefficient(action: Action) -> Action:
    """Keep the KL coefficient that the last line about it ends with, whatever changed it: the next one begins there."""
    coefs = [line["after"] for line in action.lines if line["knob"] == KL_COEF]
    return replace(action, pilot=replace(action.pilot, reported_coef=coefs[-1])) if coefs else action


def _answer_findings(action: Action, findings: Sequence[Finding], context: Context) -> Action:
    """Judge the last move if its cooldown is over, or make a move if none is being judged."""
    pilot, last = action.pilot, action.pilot.last_move
    if last is not None and context.step - last.step < context.config.autopilot.cooldown:
        return action
    if pilot.findings_since is not None:
        findings = _findings_since(pilot.findings_since, pilot, context)
    if last is not None:
        return _judge(action, last, findings, context)
    numbers = {**context.numbers, **action.numbers}
    adjustment = choose(context.config, pilot, numbers, findings, context.rows)
    return action if adjustment is None else _move(action, adjustment, context)


def _findings_since(step: int, pilot: PilotState, context: Context) -> tuple[Finding, ...]:
    """Return what the doctor finds in the steps since the last move; earlier steps led to that move."""
    doctor = LiveDoctor(flat_settings(dump(adjust(context.config, pilot))))
    doctor.remember(row for row in context.rows if row["step"] >= step)
    doctor.look(context.step)
    return doctor.findings


def _move(action: Action, adjustment: Adjustment, context: Context) -> Action:
    """Make a move; for a critical finding, go back to the newest checkpoint from before its onset."""
    finding, pilot, back_to = adjustment.finding, action.pilot, None
    line = action_line(
        context, "move", adjustment.knob, adjustment.before, adjustment.after, finding.message, finding.evidence
    )
    line |= {"check": finding.check, "cause": finding.cause}
    before = [step for step in context.checkpoints if step <= (finding.since_step or 0)]
    numbers = action.numbers
    if finding.severity == "critical" and before and may_roll_back(pilot):
        back_to, numbers = before[-1], {}  # the checkpoint holds the algorithm's numbers of its step
        line["back_to"] = back_to
        pilot = replace(pilot, rollbacks=pilot.rollbacks + 1)
    pilot, changed = set_knob(pilot, context.numbers, adjustment.knob, adjustment.after)
    step = context.step if back_to is None else back_to
    move = LastMove(step, finding.check, finding.cause, adjustment.move, adjustment.knob, adjustment.before)
    pilot = replace(pilot, last_move=move, findings_since=step)
    return Action(pilot, {**numbers, **changed}, (*action.lines, line), back_to, skips_problems=back_to is not None)


def _judge(action: Action, last: LastMove, findings: Sequence[Finding], context: Context) -> Action:
    """Keep the last move if its finding no longer holds; else undo it, and remember that it did not help."""
    pilot = replace(action.pilot, last_move=None)
    now = read_knob(context.config, pilot, {**context.numbers, **action.numbers}, last.knob)
    same = [finding for finding in findings if (finding.check, finding.cause) == (last.check, last.cause)]
    about = {"check": last.check, "cause": last.cause}
    if not same:
        why = f"{last.check} has not been found since step {last.step}"
        line = action_line(context, "kept", last.knob, now, now, why, []) | about
        return replace(action, pilot=pilot, lines=(*action.lines, line))
    why = f"{last.check} is still found since step {last.step}"
    line = action_line(context, "undo", last.knob, now, last.before, why, same[0].evidence) | about
    pilot, changed = set_knob(pilot, context.numbers, last.knob, last.before)
    failed = (*pilot.failed_moves, (last.check, last.cause, last.move))
    pilot = replace(pilot, failed_moves=failed, findings_since=context.step)
    return Action(pilot, {**action.numbers, **changed}, (*action.lines, line))
