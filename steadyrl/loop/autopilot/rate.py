"""Decisions about the learning rate and the KL coefficient: pure functions, made after every step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from steadyrl.core.config import Config
from steadyrl.core.errors import DivergedError
from steadyrl.loop.autopilot.action import KL_STEP, ROLLBACKS_AT_MOST, Action, Context, Line, action_line
from steadyrl.loop.autopilot.band import (
    LEAP,
    LEAST_SHARE,
    Band,
    clearly_rising,
    coefficient_after,
    entropy_share,
    healthy_band,
    hold_factor,
    length_share,
    narrowed_band,
    scale_after,
    search_factor,
)
from steadyrl.loop.autopilot.knobs import KL_COEF, configured, read_knob, set_knob
from steadyrl.loop.checkpoint import PilotState

SEARCH_STEPS, INSIDE = 20, 3  # the search for a rate ends after 20 steps, or after 3 in a row inside the band
TAKEN_BACK_AT_MOST = 6  # steps during the search; each time the rate is divided by up to 10
SCHEDULED = 0.5  # share of the rate from which on the schedule decides, and the rate is kept in its band alone
WORTH_SAYING = 1.5  # factor since the last line about the rate; smaller changes are in the metrics only
COEF_WORTH_SAYING = 2.0  # likewise since the last line about the KL coefficient


def take_step_back(pilot: PilotState, record: Mapping[str, Any], context: Context) -> Action | None:
    """Decide to go back to before a step that left the policy it started from; None where the step is kept."""
    kl = record.get(KL_STEP)
    if kl is None:
        return None
    _, band = _share_and_band(pilot, record, context.config)
    # The search expects such steps; after it only one is taken back that leaves little of the policy.
    limit = LEAP * (band if pilot.found_scale is None else healthy_band(pilot, record, context.config)).high
    if kl <= limit:  # NaN is a leap
        return None
    evidence = [
        f"step {context.step - 1} moved the policy by {kl:.3g} nats/token, more than {limit:.3g}, which is "
        f"{LEAP:g} times the upper end of its band"
    ]
    before = [step for step in context.checkpoints if step < context.step]
    return _back_and_slower(pilot, context, before, kl, band, "KL of a step", evidence)


def after_divergence(pilot: PilotState, error: DivergedError, context: Context) -> Action | None:
    """Decide to go back to the last checkpoint after a gradient that is not finite; None where that cannot be done."""
    evidence = [str(error).partition(";")[0]]
    band = Band(*context.config.autopilot.kl_band)  # an infinite KL is above any
    return _back_and_slower(pilot, context, context.checkpoints, math.inf, band, "a gradient is not finite", evidence)


def hold_rate(pilot: PilotState, record: Mapping[str, Any], context: Context) -> Action:
    """Move the learning rate so that the KL of the next step lies in its band."""
    kl = record.get(KL_STEP)
    if kl is None:
        return Action(pilot)
    share, band = _share_and_band(pilot, record, context.config)
    searching = pilot.found_scale is None
    rising, target = clearly_rising(context.rewards), context.config.autopilot.kl_ref_target
    if rising and target:
        rising = False  # longer steps would leave the target for the KL to the reference
    if searching:
        factor = search_factor(kl, band)
    elif share < SCHEDULED:  # to the nearer end of the band, and unchanged inside it
        factor = hold_factor(kl, band, min(max(kl, band.low), band.high))
    else:
        aim = None if rising is None else band.low if target else band.aim(rising)
        factor = hold_factor(kl, band, aim)
    # If all rewards are equal, a small step says nothing about the rate, and a larger step would not help. A policy
    # that has lost its entropy moves little whatever the rate.
    no_rise = factor > 1.0 and (not record.get("reward/std") or pilot.held_by is not None)
    if no_rise or share < LEAST_SHARE:
        factor = 1.0
    after = scale_after(pilot.scale, factor, pilot.found_scale, bool(rising))
    inside = pilot.steps_inside + 1 if band.low <= kl <= band.high else 0
    search_over = searching and (inside >= INSIDE or context.step >= SEARCH_STEPS)
    updated = replace(pilot, scale=after, steps_inside=inside, found_scale=after if search_over else pilot.found_scale)
    before = pilot.reported_scale
    if abs(math.log(after / before)) < math.log(WORTH_SAYING):
        return Action(updated)
    reason = "KL of a step, and the reward clearly rises" if rising and not searching else "KL of a step"
    evidence = [kl_sentence(record, band), *_band_sentences(pilot, context.config)]
    line = rate_line(updated, context, "rate", before, after, reason, evidence)
    return Action(replace(updated, reported_scale=after), lines=(line,))


def hold_kl_ref(action: Action, record: Mapping[str, Any], context: Context) -> Action:
    """Move the KL coefficient towards the target for the KL to the reference, where there is one."""
    config, target = context.config, context.config.autopilot.kl_ref_target
    kl_ref = record.get("kl_ref_exact_seq", record.get("kl_ref_k1_seq"))
    if not target or kl_ref is None:
        return action
    coef, start = read_knob(config, action.pilot, context.numbers, KL_COEF), configured(config, KL_COEF)
    assert coef is not None and start is not None, "the config was refused without a coefficient"
    after = coefficient_after(coef, kl_ref, target, start)
    pilot, numbers = set_knob(action.pilot, context.numbers, KL_COEF, after)
    lines = action.lines
    before = start if pilot.reported_coef is None else pilot.reported_coef
    if abs(math.log(after / before)) >= math.log(COEF_WORTH_SAYING):
        evidence = [f"KL to the reference is {kl_ref:.3g} nats/sequence, its target {target:g}"]
        lines += (action_line(context.step, "kl_coef", KL_COEF, before, after, "KL to the reference", evidence),)
    return Action(pilot, numbers, lines)


def may_roll_back(pilot: PilotState) -> bool:
    """Return whether the run may go back once more; steps of the search that are taken back do not count."""
    return pilot.rollbacks < ROLLBACKS_AT_MOST


def _share_and_band(pilot: PilotState, record: Mapping[str, Any], config: Config) -> tuple[float, Band]:
    """Return the share of the rate that warm-up and schedule left at a step, (0, 1], and the band of such a step."""
    share: float = record["learning_rate"] / (config.update.learning_rate * pilot.scale * pilot.rate_multiplier)
    return share, narrowed_band(pilot, record, config).at_rate_share(share, pilot.rate_multiplier)


def rate_line(
    pilot: PilotState, context: Context, kind: str, before: float, after: float, reason: str, evidence: Sequence[str]
) -> Line:
    """Return a line of actions.jsonl about a change of scale, with the learning rates that hold after the warm-up."""
    full = context.config.update.learning_rate * pilot.rate_multiplier
    return action_line(context.step, kind, "update.learning_rate", full * before, full * after, reason, evidence)


def kl_sentence(record: Mapping[str, Any], band: Band) -> str:
    """Return the measured KL of a step as a sentence of evidence."""
    return (
        f"the step moved the policy by {record[KL_STEP]:.3g} nats/token at a learning rate of "
        f"{record['learning_rate']:.3g}; the band is {band.low:.3g} to {band.high:.3g}"
    )


def _band_sentences(pilot: PilotState, config: Config) -> list[str]:
    entropy, cosine, steps = pilot.first_entropy or 0.0, pilot.agreement or 0.0, config.run.steps
    shares = (
        (entropy_share(pilot.first_entropy), f"the policy began with an entropy of {entropy:.2g} nats/token"),
        (length_share(steps), f"the noise of {steps} steps adds up"),
        (pilot.narrowing, f"gradients pointed back against those before them (mean cosine now {cosine:.2f})"),
    )
    in_effect = [(share, reason) for share, reason in shares if share != 1.0]
    return [
        f"the band is {share:.2g} times {'that' if i else 'the configured one'}, because {reason}"
        for i, (share, reason) in enumerate(in_effect)
    ]


def _back_and_slower(
    pilot: PilotState,
    context: Context,
    checkpoints: Sequence[int],
    kl: float,
    band: Band,
    reason: str,
    evidence: Sequence[str],
) -> Action | None:
    searching = pilot.found_scale is None and pilot.steps_taken_back < TAKEN_BACK_AT_MOST
    if not checkpoints or not (searching or may_roll_back(pilot)):
        return None
    factor = search_factor(kl, band) if searching else hold_factor(kl, band)
    after = scale_after(pilot.scale, factor, None)
    line = rate_line(pilot, context, "rollback", pilot.scale, after, reason, evidence)
    slower = replace(
        pilot,
        scale=after,
        reported_scale=after,
        steps_taken_back=pilot.steps_taken_back + searching,
        rollbacks=pilot.rollbacks + (not searching),
    )
    return Action(slower, lines=({**line, "back_to": checkpoints[-1]},), back_to=checkpoints[-1])
