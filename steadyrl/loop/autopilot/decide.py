"""What the autopilot does after a step: a pure function of what was measured and found.

``rate`` decides about the learning rate and the KL coefficient after every step, this module about findings. In mode
"advise" it says about both what it would do, which changes nothing in the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from steadyrl.core.config import dump
from steadyrl.core.types import Finding
from steadyrl.doctor.live import LiveDoctor
from steadyrl.loop.autopilot.action import KL_STEP, Action, Context, Line, action_line
from steadyrl.loop.autopilot.band import LEAP, LEAST_SHARE, healthy_band, narrowed_band, observe, search_factor
from steadyrl.loop.autopilot.knobs import KL_COEF, Adjustment, adjust, choose, read_knob, set_knob
from steadyrl.loop.autopilot.rate import hold_kl_ref, hold_rate, kl_sentence, may_roll_back, rate_line, take_step_back
from steadyrl.loop.checkpoint import LastMove, PilotState

OUTSIDE = 5  # steps in a row outside the band before advice is given


def decide(
    pilot: PilotState, record: Mapping[str, Any], findings: Sequence[Finding] | None, context: Context
) -> Action:
    """Return what to do after a step.

    ``findings``, causes before consequences, are None where the doctor did not look.
    """
    mode = context.config.autopilot.mode
    if mode == "off":
        return Action(pilot)
    if mode == "advise":
        return advise(pilot, record, findings or (), context)
    # Before anything is observed: a step that is taken back must leave no trace in the autopilot's state.
    rollback = take_step_back(pilot, record, context)
    if rollback is not None:
        return rollback
    action = hold_kl_ref(hold_rate(observe(pilot, record, findings), record, context), record, context)
    if findings is not None:
        action = _answer_findings(action, findings, context)
    # Whatever changed the KL coefficient, the next line about it begins where the last one ends.
    coefs = [line["after"] for line in action.lines if line["knob"] == KL_COEF]
    return replace(action, pilot=replace(action.pilot, reported_coef=coefs[-1])) if coefs else action


def _answer_findings(action: Action, findings: Sequence[Finding], context: Context) -> Action:
    """Judge the last move if its cooldown is over, or make a move if none is being judged."""
    pilot, last = action.pilot, action.pilot.last_move
    if last is not None and context.step - last.step < context.config.autopilot.cooldown:
        return action
    first_step = pilot.findings_since
    if first_step is not None:  # earlier steps led to the last move
        doctor = LiveDoctor(dump(adjust(context.config, pilot)), format="steadyrl")
        doctor.remember(row for row in context.rows if row["step"] >= first_step)
        doctor.look(context.step)
        findings = doctor.findings
    if last is not None:
        return _judge(action, last, findings, context)
    numbers = {**context.numbers, **action.numbers}
    adjustment = choose(context.config, pilot, numbers, findings, context.rows)
    return action if adjustment is None else _move(action, adjustment, context)


def _move(action: Action, adjustment: Adjustment, context: Context) -> Action:
    """Make a move; for a critical finding, go back to the newest checkpoint from before its onset."""
    finding, pilot, back_to = adjustment.finding, action.pilot, None
    line = _move_line(adjustment, context)
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


def _move_line(adjustment: Adjustment, context: Context) -> Line:
    finding, before, after = adjustment.finding, adjustment.before, adjustment.after
    line = action_line(context.step, "move", adjustment.knob, before, after, finding.message, finding.evidence)
    return line | {"check": finding.check, "cause": finding.cause}


def _judge(action: Action, last: LastMove, findings: Sequence[Finding], context: Context) -> Action:
    """Keep the last move if its finding no longer holds; else undo it, and remember that it did not help."""
    pilot = replace(action.pilot, last_move=None)
    now = read_knob(context.config, pilot, {**context.numbers, **action.numbers}, last.knob)
    persisting = [finding for finding in findings if (finding.check, finding.cause) == (last.check, last.cause)]
    cause_fields = {"check": last.check, "cause": last.cause}
    if not persisting:
        reason = f"{last.check} has not been found since step {last.step}"
        line = action_line(context.step, "kept", last.knob, now, now, reason, []) | cause_fields
        return replace(action, pilot=pilot, lines=(*action.lines, line))
    reason = f"{last.check} is still found since step {last.step}"
    line = action_line(context.step, "undo", last.knob, now, last.before, reason, persisting[0].evidence) | cause_fields
    pilot, changed = set_knob(pilot, context.numbers, last.knob, last.before)
    failed = (*pilot.failed_moves, (last.check, last.cause, last.move))
    pilot = replace(pilot, failed_moves=failed, findings_since=context.step)
    return Action(pilot, {**action.numbers, **changed}, (*action.lines, line))


def advise(pilot: PilotState, record: Mapping[str, Any], findings: Sequence[Finding], context: Context) -> Action:
    """Return an action that only gives advice; see ``decide.decide``. The same advice is given once per run."""
    pilot, advice = _advise_rate(pilot, record, context)
    lines = [advice] if advice else []
    adjustment = choose(context.config, pilot, context.numbers, findings, context.rows)
    lines += [] if adjustment is None else [_move_line(adjustment, context)]
    new_lines = []
    for line in lines:
        # On a finding it is compared by cause, for its text has numbers.
        keys = ("kind", "knob", "check", "cause") if "check" in line else ("kind", "knob", "why")
        if not any(all(line[key] == action.get(key) for key in keys) for action in context.actions):
            new_lines.append({**line, "done": False})
    return Action(pilot, lines=tuple(new_lines))


def _advise_rate(pilot: PilotState, record: Mapping[str, Any], context: Context) -> tuple[PilotState, Line | None]:
    """Say what the rate should be: at once for a step that would be taken back, else after five outside the band."""
    kl = record.get(KL_STEP)
    if pilot.first_entropy is None:
        pilot = replace(pilot, first_entropy=record.get("entropy"))
    if kl is None:
        return pilot, None
    share = record["learning_rate"] / context.config.update.learning_rate
    band = narrowed_band(pilot, record, context.config).at_rate_share(share, rate_multiplier=1.0)
    leaps = not kl <= LEAP * healthy_band(pilot, record, context.config).high  # NaN too
    factor = search_factor(kl, band) if leaps or share >= LEAST_SHARE else 1.0
    side = (factor > 1.0) - (factor < 1.0)
    outside = pilot.steps_outside + side if side * pilot.steps_outside > 0 else side
    pilot = replace(pilot, steps_outside=outside)
    if leaps:
        reason = "the step moved the policy too far and would be taken back"
    elif abs(outside) >= OUTSIDE:
        reason = f"KL of a step {'below' if side > 0 else 'above'} its band"
    else:
        return pilot, None
    # A collapsed policy no longer moves, nor does one whose rewards are all equal: a higher rate would not help.
    lowered = any(line["kind"] == "rate" and line["after"] < line["before"] for line in context.actions)
    if side > 0 and (lowered or not record.get("reward/std")):
        return pilot, None
    return pilot, rate_line(pilot, context, "rate", 1.0, factor, reason, [kl_sentence(record, band)])
