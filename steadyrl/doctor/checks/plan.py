"""What a run cannot reach by its own plan: the learning rate that is set, and its targets."""

from __future__ import annotations

import numpy as np

from steadyrl.core.stats import smoothed
from steadyrl.core.types import Severity
from steadyrl.core.words import percent
from steadyrl.doctor.check import Found, Passed, Result, check
from steadyrl.doctor.checks.kl_control import OFF_TARGET
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.statistics.readings import direction, entropy_lost, number, setting, solved, steps_of
from steadyrl.doctor.statistics.signals import LASTING, tail
from steadyrl.doctor.statistics.units import SEQUENCE, find

LEAST = 20  # steps; a shorter run tries something out, and is not meant to learn
HALF = 0.5  # of the rate that is set
UNLIMITED = 2  # updates of a step: the KL that the first one made is measured by the second
IDLE = 0.2  # of the rows, without a rate at the end
NO_RATE = 0.01  # of the highest rate: as good as none, where a usual schedule comes at its very end only
FEWEST_COMPLETIONS = 4  # from which on the error of their mean is half of their spread: two gains worth having
WARM = 0.1  # of a run: a usual warm-up


def plans_a_rate(run: Run) -> bool:
    """Return whether the planned steps and the rate of a run are known."""
    return bool(setting(run, "steps") and setting(run, "learning_rate"))


@check("rate_not_reached", when=lambda run: plans_a_rate(run) or run.get("learning_rate") is not None)
def rate_not_reached(run: Run) -> Result:
    logged = run.get("learning_rate")
    if logged is not None and (ended := _schedule_ended(logged)):
        return ended
    if not plans_a_rate(run):
        return Passed("The learning rate is not 0 before the log ends.")
    steps, warm_up, rate = (setting(run, name) or 0.0 for name in ("steps", "warmup_steps", "learning_rate"))
    severity: Severity = "warning" if steps >= LEAST else "info"
    if (head_alone := setting(run, "value_warmup_steps") or 0.0) >= steps:
        message = f"only the value head learns in the first {head_alone:.0f} steps, and the run has {steps:.0f}"
        change = {"value_warmup_steps": max(1, round(WARM * steps))}
        return Found("value_warm_up", severity, None, f"{message}: the policy is not trained at all", change=change)
    reward = run.get("reward")
    too_fast = (reward is not None and direction(reward.second_half) < 0) or entropy_lost(run)
    if warm_up >= steps and not too_fast:  # what breaks while its rate still rises needs no higher one
        return Found(  # in the mean the rate is half of that at the most
            "warm_up",
            severity,
            None,
            f"the warm-up of {warm_up:.0f} steps takes all {steps:.0f} steps of the run: the learning rate rises "
            f"until its end, to {steps / warm_up * rate:.3g} of the {rate:g} that is set",
            change={"warmup_steps": max(1, round(WARM * steps))},
        )
    # The autopilot moves the rate away from what is set, and its own lines say why.
    if logged is None or run.span[1] + 1 < max(steps, LEAST) or run.get("autopilot/scale") is not None:
        return None
    reached, usual = logged.greatest, logged.median
    if usual > rate / HALF:
        message = f"the learning rate is {usual:.3g} in the median of the steps, {usual / rate:.3g} times the {rate:g}"
        return Found("above", "info", None, f"{message} that is set")
    if reached >= HALF * rate:
        return None
    message = f"the learning rate came to {reached:.3g} at most, {percent(reached / rate)} of the {rate:g} that is set"
    return Found("schedule", "warning", None, message)


def _schedule_ended(rate: Series) -> Result:
    trained = np.flatnonzero(rate.values > NO_RATE * rate.values.max(initial=0.0))
    if not len(trained) or len(rate) - 1 - trained[-1] < max(LASTING, IDLE * len(rate)):
        return None
    onset, rows = int(rate.steps[trained[-1] + 1]), len(rate) - 1 - int(trained[-1])
    least = float(rate.values[trained[-1] + 1 :].max())
    message = f"the learning rate is {least:.3g} from step {onset} on, in the last {rows} of {len(rate)} rows"
    return Found(
        "ended",
        "warning",
        onset,
        f"{message}: {'hardly anything' if least else 'nothing'} trains there",
        (f"it was {rate.greatest:.3g} at most before",),
    )


def has_target(run: Run) -> bool:
    """Return whether a run has a target for its reward, its answers or its KL, or a limit to the KL of a step."""
    limits = any(setting(run, name) for name in ("kl_ref_target", "kl_old_limit"))
    return limits or any(setting(run, name) is not None for name in ("reward_target", "solved"))


@check("target_out_of_reach", when=has_target)
def target_out_of_reach(run: Run) -> list[Result]:
    reward, kl = run.get("reward"), find(run, "kl_ref", SEQUENCE, "exact", "k1")
    return [
        None if reward is None or len(reward) < LEAST else _reward_missed(run, reward),
        None if kl is None or len(kl) < LEAST else _kl_missed(run, kl),
        _updates_skipped(run),
        _never_solved(run),
    ]


def _reward_missed(run: Run, reward: Series) -> Result:
    target, curve = setting(run, "reward_target"), smoothed(reward.values)
    if target is None or curve.max() >= target:
        return None
    highest, best = float(curve.max()), run.get("reward_best")
    message = f"the smoothed reward is {number(highest)} at most, and its target is {target:g}"
    best_earned = None if best is None else float(smoothed(best.values).max())
    if best_earned is not None and best_earned < target and direction(reward) <= 0:
        evidence = f"even the best of each group's completions earn {number(best_earned)} at most, with no rise"
        change = {"reward_target": float(f"{best_earned:.2g}")}
        return Found("nothing_earns_it", "warning", None, message, (evidence,), change=change)
    if run.span[1] + 1 < steps_of(run):
        return None
    return Found("not_reached", "info", None, message, (f"the run made its {steps_of(run)} steps",))


def _kl_missed(run: Run, kl: Series) -> Result:
    target, level = setting(run, "kl_ref_target"), tail(kl)
    if not target or target / OFF_TARGET <= level <= OFF_TARGET * target:
        return None
    message = f"the KL to the reference ends at {number(level)} nats/sequence, and its target is {target:g}"
    step, length, coef = run.get("kl_step"), run.get("length"), run.get("kl_coef")
    change = {"kl_ref_target": float(f"{level:.1g}")}
    if level > target and step is not None and length is not None:
        step_kl = step.median * tail(length)
        if step_kl > target:
            evidence = f"a single step moves the policy by {number(step_kl)} nats/sequence (median)"
            return Found("below_a_step", "warning", None, message, (evidence,), change=change)
    if coef is not None and len(coef) > LASTING and not np.ptp(coef.values[-LASTING:]):
        evidence = f"the coefficient stays at {number(coef.last)}, the end of its range"
        return Found("coefficient_at_its_end", "warning", None, message, (evidence,), change=change)
    return None


def _updates_skipped(run: Run) -> Result:
    """Find a limit to the KL of a step that the first update of most steps passes, as the second one measures."""
    limit, updates = setting(run, "kl_old_limit"), run.get("updates")
    planned = (setting(run, "epochs") or 1.0) * (setting(run, "minibatches") or 1.0)
    if not limit or updates is None or len(updates) < LEAST or planned <= UNLIMITED:
        return None
    ended = float((updates.values <= UNLIMITED).mean())
    if ended < HALF:
        return None
    return Found(
        "below_an_update",
        "info",
        None,
        f"{percent(ended)} of the steps end after {UNLIMITED} of their {planned:.0f} updates, because the first passes "
        f"the limit of {limit:g} nats/token to the KL of a step",
    )


def _never_solved(run: Run) -> Result:
    """Find a value that makes an answer count as solved, and that no answer of any evaluation reached."""
    rates = [series for name, series in run.with_prefix("heldout/").items() if name.startswith("pass@")]
    solved = setting(run, "solved")
    if solved is None or not rates or any(rate.values.any() for rate in rates):
        return None
    message = f"an answer counts as solved from {solved:g} on, and none was in {len(rates[0])} evaluations"
    return Found("never_solved", "info", None, message)


# Other settings than a run's own give what one device takes.
@check("batch_small", when=lambda run: setting(run, "prompts_per_step") is not None)
def batch_small(run: Run) -> Result:
    completions = setting(run, "batch_size")
    if completions is None or completions >= FEWEST_COMPLETIONS or solved(run):
        return None
    message = f"a step learns from {completions:g} completions: its mean reward is uncertain by "
    return Found("few", "warning", None, f"{message}{percent(1.0 / np.sqrt(completions))} of their spread")
