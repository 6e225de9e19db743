"""What a run's settings rule out before it begins: a rate that is never reached, targets that cannot be met.

A run may be meant so, as a trial of two steps is, and what is found here is a warning that stops nothing.
"""

from __future__ import annotations

import numpy as np

from steadyrl.core.config import Config, dump
from steadyrl.doctor.check import Found, Passed, Result, Unknown
from steadyrl.doctor.checks.kl_control import LEAST_TARGET, target_in
from steadyrl.doctor.checks.plan import LEAST, rate_not_reached
from steadyrl.doctor.names.identify import identify
from steadyrl.doctor.readers.spelling import flat_settings
from steadyrl.doctor.series import RawLog, Run
from steadyrl.loop.autopilot.band import narrowed_band
from steadyrl.loop.checkpoint import PilotState
from steadyrl.loop.preflight.trial import Trial, check, gold_rollouts

ROOM = 3.0  # steps at the lower end of the autopilot's band that a target for the whole run should leave


@check("schedule")
def schedule(trial: Trial) -> Result:
    config = trial.session.config
    update, steps = config.update, config.run.steps
    for finding in rate_not_reached(_planned(config)):
        if finding.state == "found" and steps < LEAST:
            return Passed(f"{finding.message}; so few steps are a trial")
        if finding.state == "found":
            change = dict(override.split("=") for override in finding.overrides)
            return Found("warm_up", "warning", message=finding.message, change=change)
    if update.schedule != "constant" and 0 < update.schedule_steps <= update.warmup_steps:
        return Found(
            "never_falls",
            "warning",
            message=f"update.schedule = '{update.schedule}' falls over {update.schedule_steps} steps, and the warm-up "
            f"takes {update.warmup_steps}: the rate stays where the warm-up brought it",
            change={"update.schedule_steps": steps},
        )
    rates = [update.rate(step, steps) for step in (0, min(update.warmup_steps, steps - 1), steps - 1)]
    first, full, last = (f"{rate:.3g}" for rate in rates)
    return Passed(
        f"the learning rate goes from {first} at the first step to {full}, and is {last} at the last of {steps}"
    )


@check("targets")
def targets(trial: Trial) -> list[Result]:
    results = [_reward(trial), _kl_ref(trial), _kl_control(trial)]
    return results if any(results) else [Passed("none is set")]


def _planned(config: Config) -> Run:
    """Return the run as the doctor sees it before its first step."""
    return identify(RawLog("the plan", "steadyrl", {}, flat_settings(dump(config))))


def _reward(trial: Trial) -> Result:
    target = trial.session.config.run.target
    if target is None:
        return None
    groups = [[r.reward for r in group.rollouts if r.reward is not None] for group in trial.groups]
    best = float(np.mean([max(rewards) for rewards in groups if rewards])) if any(groups) else -np.inf
    golds = [rollout.reward for _, rollout in gold_rollouts(trial) if rollout.reward is not None]
    message = f"run.target is {target:g}; the best completion of each problem earns {best:.4g} now"
    if not golds:
        message += ", and good answers are not known"
        return Passed(message) if target <= best else Unknown(message)
    gold = float(np.mean(golds))
    message += f", and good answers {gold:.4g} on average"
    if target <= max(best, gold):
        return Passed(message)
    change = {"run.target": float(f"{max(best, gold):.2g}")}
    return Found("reward", "warning", message=f"{message}: nothing that is known earns as much", change=change)


def _kl_ref(trial: Trial) -> Result:
    config, entropy, mask = trial.session.config, trial.scores.entropy, trial.batch.completion_mask
    target = config.autopilot.kl_ref_target
    if not target or config.autopilot.mode == "off":
        return None
    length = float(mask.sum() / len(mask))
    first_step = {"completion/length": length, "entropy": None if entropy is None else float(entropy[mask].mean())}
    step = narrowed_band(PilotState(), first_step, config).low * length
    message = (
        f"autopilot.kl_ref_target is {target:g} nats/sequence, and one step at the lower end of the autopilot's band "
        f"moves the policy by {step:.3g}"
    )
    if target >= step:
        return Passed(message)
    change = {"autopilot.kl_ref_target": float(f"{ROOM * step:.2g}")}
    return Found("kl_ref", "warning", message=f"{message}: a single step leaves the target", change=change)


def _kl_control(trial: Trial) -> Result:
    """Judge the target of an algorithm's own controller of the coefficient, where it has one."""
    target = target_in(_planned(trial.session.config))
    if target is None:
        return None
    message = f"algorithm.args.kl_target is {target[0]:g} {target[1]}"
    if target[0] >= LEAST_TARGET:
        return Passed(f"{message}, which leaves room to learn")
    return Found("kl", "warning", message=f"{message}, below {LEAST_TARGET:g}: too near to the start to learn much")
