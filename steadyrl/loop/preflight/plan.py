"""What a run's settings rule out before it begins: a rate that is never reached, targets that cannot be met.

A run may be meant so, as a trial of two steps is, and what is found here is said and stops nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from steadyrl.core.config import Config, dump
from steadyrl.core.types import Finding
from steadyrl.doctor.checks.kl_control import LEAST_TARGET, target_in
from steadyrl.doctor.checks.plan import LEAST, rate_not_reached
from steadyrl.doctor.names.identify import identify
from steadyrl.doctor.readers.spelling import flat_settings
from steadyrl.doctor.series import RawLog, Run
from steadyrl.loop.autopilot.band import narrowed_band
from steadyrl.loop.checkpoint import PilotState
from steadyrl.loop.preflight.trial import Trial, gold_rollouts
from steadyrl.loop.train import Session

USUAL_TARGET = 6  # nats per sequence, of Ziegler et al. and TRL
ROOM = 3.0  # steps at the lower end of the autopilot's band that a target for the whole run should leave


def schedule(session: Session) -> Finding:
    """Judge whether warm-up and schedule ever come to the rate that is set."""
    name, update, steps = "schedule", session.config.update, session.config.run.steps
    for finding in rate_not_reached(_planned(session.config)):
        if finding.state == "found" and steps < LEAST:
            return Finding(name, state="ok", message=f"{finding.message}; so few steps are a trial")
        if finding.state == "found":
            return replace(finding, check=name, severity="warning")
    if update.schedule != "constant" and 0 < update.schedule_steps <= update.warmup_steps:
        return Finding(
            name,
            "warning",
            cause="never_falls",
            message=f"update.schedule = '{update.schedule}' falls over {update.schedule_steps} steps, and the warm-up "
            f"takes {update.warmup_steps}: the rate stays where the warm-up brought it",
            remedy="let the schedule fall over the whole run",
            overrides=(f"update.schedule_steps={steps}",),
        )
    rates = [update.rate(step, steps) for step in (0, min(update.warmup_steps, steps - 1), steps - 1)]
    first, full, last = (f"{rate:.3g}" for rate in rates)
    message = f"the learning rate goes from {first} at the first step to {full}, and is {last} at the last of {steps}"
    return Finding(name, state="ok", message=message)


def targets(trial: Trial) -> Finding:
    """Judge whether the targets that are set can be met: for the reward, and for the KL to the reference."""
    name, config = "targets", trial.session.config
    kl_target = target_in(_planned(config))
    if config.run.target is None and not config.autopilot.kl_ref_target and kl_target is None:
        return Finding(name, state="ok", message="none is set")
    verdicts = [*_reward(trial, name), *_kl_ref(trial, name)]
    if kl_target is not None and kl_target[0] < LEAST_TARGET:
        verdicts.append(
            Finding(
                name,
                "warning",
                cause="kl",
                message=f"algorithm.args.kl_target is {kl_target[0]:g} {kl_target[1]}, below {LEAST_TARGET:g}: so near "
                "to where it began a policy can learn next to nothing, and the coefficient rises until it does not",
                remedy=f"give the target per completion, not per token; {USUAL_TARGET} is usual",
                overrides=(f"algorithm.args.kl_target={USUAL_TARGET}",),
            )
        )
    worst = sorted(verdicts, key=lambda verdict: ("found", "unknown", "ok").index(verdict.state))
    if not worst:
        return Finding(name, state="ok", message="the KL's target leaves room to learn")
    same = [verdict for verdict in worst if verdict.state == worst[0].state]
    return replace(
        same[0],
        message="; ".join(verdict.message for verdict in same),
        remedy="; ".join(verdict.remedy for verdict in same if verdict.remedy),
        overrides=tuple(override for verdict in same for override in verdict.overrides),
    )


def _planned(config: Config) -> Run:
    """Return the run as the doctor sees it before its first step."""
    return identify(RawLog("the plan", "steadyrl", {}, flat_settings(dump(config))))


def _reward(trial: Trial, name: str) -> Iterator[Finding]:
    target = trial.session.config.run.target
    if target is None:
        return
    groups = [[r.reward for r in group.rollouts if r.reward is not None] for group in trial.groups]
    best = float(np.mean([max(rewards) for rewards in groups if rewards])) if any(groups) else -np.inf
    golds = [rollout.reward for _, rollout in gold_rollouts(trial) if rollout.reward is not None]
    gold = float(np.mean(golds)) if golds else None
    message = f"run.target is {target:g}; the best completion of each problem earns {best:.4g} now"
    message += ", and good answers are not known" if gold is None else f", and good answers {gold:.4g} on average"
    if target <= max(best, best if gold is None else gold):
        yield Finding(name, state="ok", message=message)
    elif gold is None:
        yield Finding(name, state="unknown", message=message)
    else:
        yield Finding(
            name,
            "warning",
            cause="reward",
            message=f"{message}: nothing that is known earns as much",
            remedy="set a target that some answers earn",
            overrides=(f"run.target={max(best, gold):.2g}",),
        )


def _kl_ref(trial: Trial, name: str) -> Iterator[Finding]:
    config, entropy, mask = trial.session.config, trial.scores.entropy, trial.batch.completion_mask
    target = config.autopilot.kl_ref_target
    if not target or config.autopilot.mode == "off":
        return
    length = float(mask.sum() / len(mask))
    first_step = {"completion/length": length, "entropy": None if entropy is None else float(entropy[mask].mean())}
    step = narrowed_band(PilotState(), first_step, config).low * length
    message = (
        f"autopilot.kl_ref_target is {target:g} nats/sequence, and one step at the lower end of the autopilot's band "
        f"moves the policy by {step:.3g}"
    )
    if target >= step:
        yield Finding(name, state="ok", message=message)
        return
    yield Finding(
        name,
        "warning",
        cause="kl_ref",
        message=f"{message}: a single step leaves the target for the whole run",
        remedy="set a higher target, or a lower autopilot.kl_band",
        overrides=(f"autopilot.kl_ref_target={ROOM * step:.2g}",),
    )
