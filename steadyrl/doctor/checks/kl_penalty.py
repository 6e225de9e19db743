"""Is the KL penalty applied that was set: by the logged coefficient, and by what the loss holds of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steadyrl.doctor.check import Result, Unclear, check
from steadyrl.doctor.checks.measures import setting
from steadyrl.doctor.checks.readings import number, within
from steadyrl.doctor.checks.units import TOKEN, find, together
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.signals import first_lasting
from steadyrl.types import Finding

OFF = 1e-3  # of the coefficient before: what a controller reaches in no step
LASTING = 5  # steps
SOME_KL = 1e-3  # nats per token: from there on a penalty shows in a loss that is printed with five digits
NONE_LEFT = 1e-5  # of the size of the loss: printing and rounding
MEASURED_OFF = 0.1  # of the set coefficient: estimators and updates within a step make it 0.5 to 2


@check(needs=("kl_ref",))
def kl_penalty_off(run: Run) -> Result:
    """The KL penalty stopped, or never was, although one is set.

    Symptom: the coefficient in the log falls to 0 from one step to the next and stays there; or the loss holds no
    penalty: it equals the policy's part, although the KL is not 0 and the coefficient is. Nothing holds the policy near
    its reference from there on. It need not show in KL or reward for long.

    Causes and what tells them apart:
    - penalty_switched_off: it was there before. A schedule that lowers the coefficient step by step raises nothing.
    - not_applied: a coefficient is set, and the loss never held a penalty: it is computed and not added, or for another
      algorithm.

    A coefficient that is 0 from the start was chosen (it is TRL's default for GRPO); see kl_runaway for when that
    harms.

    Remedy: set the coefficient back to what it was, and see what changed it at that step: a resume with other settings,
    a schedule, a state that was lost.

    Source: arithmetic: a penalty in the loss is the coefficient times the KL.
    """
    coef = run.get("kl_coef")
    if coef is not None and (since := _dropped(coef)) is not None:
        before = float(coef.values[np.searchsorted(coef.steps, since) - 1])
        return _finding(
            run, since, "penalty_switched_off", before, (f"the coefficient went from {number(before)} to 0",)
        )
    held = _held_in_loss(run)
    fixed = setting(run, "kl_coef")
    if held is None:
        if coef is not None or not fixed:
            return None
        why = "the coefficient is set, and neither it nor the parts of the loss are logged"
        return Unclear("kl_penalty_off", why, ("kl_coef", "loss", "loss_policy"))
    if not fixed:
        return None
    gone = np.abs(held.values) < MEASURED_OFF * fixed
    since = first_lasting(held, gone, LASTING)
    if since is None or not gone[held.steps >= since].all():
        return None
    cause = "penalty_switched_off" if (~gone[held.steps < since]).sum() >= LASTING else "not_applied"
    text = f"loss less its policy part is {number(_median(held, since))} times the KL from step {since} on"
    return _finding(run, since, cause, fixed, (text, f"the coefficient is set to {fixed:g}"))


def _dropped(coef: Series) -> int | None:
    """Return the step at which the coefficient fell to nothing at once and stayed; None if it did not."""
    down = np.flatnonzero((coef.values[:-1] > 0) & (np.abs(coef.values[1:]) <= OFF * coef.values[:-1]))
    for i in down:
        if len(coef) - i > LASTING and (np.abs(coef.values[i + 1 :]) <= OFF * coef.values[i]).all():
            return int(coef.steps[i + 1])
    return None


def _held_in_loss(run: Run) -> Series | None:
    """Return the coefficient that the loss shows: (loss - policy's part) / KL, where the KL is not near 0; or None."""
    loss, policy = run.get("loss"), run.get("loss_policy")
    kl = find(run, "kl_ref", TOKEN, ("k3", "exact", "k1", ""))
    if loss is None or policy is None or kl is None or run.settings.get("kl_place") != "loss":
        return None
    if run.get("loss_value") is not None:
        return None
    loss, policy = together(loss, policy)
    policy, kl = together(policy, kl)
    loss, kl = together(loss, kl)
    there = kl.values > SOME_KL
    if there.sum() < LASTING:
        return None
    penalty = loss.values - policy.values
    penalty[np.abs(penalty) < NONE_LEFT * np.abs(loss.values)] = 0.0
    return Series("kl_coef", "", "measured", loss.source, loss.steps[there], penalty[there] / kl.values[there])


def _median(series: Series, since: int) -> float:
    return float(np.median(within(series, since, int(series.steps[-1])).values))


def _finding(run: Run, since: int, cause: str, coefficient: float, evidence: Sequence[str]) -> Finding:
    kl = run.get("kl_ref")
    assert kl is not None, "a need"
    return Finding(
        check="kl_penalty_off",
        severity="warning",
        since_step=since,
        cause=cause,
        message=f"From step {since} on nothing holds the policy near its reference: {cause.replace('_', ' ')}.",
        evidence=(*evidence, f"the KL is {number(float(kl.values[-1]))} {kl.unit} at the end"),
        remedy=f"Set the coefficient back to {number(coefficient)} and find what changed it; if it was meant, watch "
        "held-out rewards.",
        overrides=(f"algorithm.args.kl_coef={coefficient:.3g}",),
        source="arithmetic of the penalty",
    )
