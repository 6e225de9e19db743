"""The coefficient of the KL penalty and what moves it: units that clash, controllers that cannot keep up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steadyrl.doctor.check import Found, Result, Unknown, check
from steadyrl.doctor.remedies import LARGEST_ERROR, Value, horizon, horizon_batch
from steadyrl.doctor.series import Run
from steadyrl.doctor.statistics.readings import number, reward_spread, setting, steps_of
from steadyrl.doctor.statistics.signals import MIN_STEPS, first_lasting, head, tail
from steadyrl.doctor.statistics.units import PREFERRED, SEQUENCE, TOKEN, find

COEF_CONSTANT = 1e-9  # relative change; a controller that works moves by 1e-5 and more
OFF_TARGET = 3.0  # times; half or double a target is the controller at work
CLASH = 5.0  # times off target in the controller's unit
CLASH_NEAR = 2.0  # within so many times of the target in the other unit
CLASH_LENGTH = 10.0  # tokens; in shorter completions the two units are too near to tell
LEAST_TARGET = 0.5  # nats per sequence: sqrt(2 x 0.5) = one standard deviation of the reward
HEALTHY_SEQUENCE = 20.0  # nats; from there on it may be a runaway, which a controller should answer; no target is above
ROOM_SEQUENCE = 10.0  # nats: sqrt(2 x 10) = 4.5 standard deviations of the reward, and half of what a healthy run has
DRIVEN = 1.1  # times its start: a coefficient that moved by less has done nothing yet
SEEN = ("k1", *PREFERRED["kl_ref"])  # what controllers compare


@dataclass(frozen=True)
class Moves:
    """How the coefficient of the penalty moved."""

    constant: bool
    """True if it did not."""
    last: float
    """Its last value."""
    per_step: float
    """Median relative move upwards per step, among the upward ones; 0 if there are none."""
    doubling: float
    """Steps to double at that pace; infinite without upward moves."""
    remaining: int
    """Steps that the run has in all."""

    @property
    def sentence(self) -> str:
        """The pace in words."""
        if self.constant or not np.isfinite(self.doubling):
            return f"the coefficient {f'stays at {self.last:g}' if self.constant else 'never rises'}"
        return (
            f"the coefficient moves by {100 * self.per_step:.3g}% a step, so that it doubles in "
            f"{self.doubling:.0f} steps; the run has {self.remaining}"
        )


def coefficient_moves(run: Run) -> Moves | None:
    """Return how the logged coefficient moved, or None where it is not logged."""
    coef = run.get("kl_coef")
    if coef is None or len(coef) < 2:
        return None
    constant = bool(np.ptp(coef.values) <= COEF_CONSTANT * np.abs(coef.values).max())
    logs = np.log(np.maximum(coef.values, 1e-300))
    pace = np.diff(logs) / np.diff(coef.steps)  # [n - 1], relative move per step
    up = pace[pace > COEF_CONSTANT]
    per_step = float(np.median(up)) if len(up) and not constant else 0.0
    return Moves(
        constant=constant,
        last=coef.last,
        per_step=per_step,
        doubling=float(np.log(2.0)) / per_step if per_step else float("inf"),
        remaining=steps_of(run),
    )


def target_in(run: Run) -> tuple[float, str] | None:
    """Return (target, unit) of a controller whose unit is known, or None; a fixed coefficient has no target."""
    target, unit = setting(run, "kl_target"), run.settings.get("kl_target_unit")
    if not target or run.settings.get("kl_adaptive") is False or unit not in (TOKEN, SEQUENCE):
        return None
    return target, str(unit)


def adaptive(run: Run) -> bool:
    """Return False where the coefficient of the penalty is known to be fixed."""
    return run.settings.get("kl_adaptive") is not False


@check("kl_unit_clash", when=adaptive)
def kl_unit_clash(run: Run) -> Result:
    target, unit = setting(run, "kl_target"), run.settings.get("kl_target_unit")
    if not target:
        return Unknown("the log has no target for the KL", ("kl_target",))
    length = run.get("length")
    per_token, per_sequence = (find(run, "kl_ref", unit, *SEEN) for unit in (TOKEN, SEQUENCE))
    if per_token is None or per_sequence is None:
        return Unknown("the KL is known in one unit only, and lengths are not", ("length", "kl_ref"))
    if length is None:
        return None
    # What the trainer logs is what its controller sees.
    logged = next((s.unit for s in run.series["kl_ref"] if s.unit in (TOKEN, SEQUENCE)), TOKEN)
    compared = {TOKEN: per_token, SEQUENCE: per_sequence}[unit or logged]
    alternative = per_sequence if compared is per_token else per_token
    if min(len(compared), len(alternative)) < 2:
        return Unknown("the KL is known at the first step only, where it is 0", ("kl_ref",))
    level, meant = float(np.median(compared.values[1:])), float(np.median(alternative.values[1:]))
    off, near = level / target, meant / target
    fits = not 1 / CLASH < off < CLASH and 1 / CLASH_NEAR <= near <= CLASH_NEAR and tail(length) >= CLASH_LENGTH
    moves, coef = coefficient_moves(run), run.get("kl_coef")
    driven = moves is not None and coef is not None and moves.last > DRIVEN * coef.first
    # A target per sequence can drive the coefficient up against a KL that any policy that learns has.
    low = compared is per_sequence and off >= CLASH and target < LEAST_TARGET and level <= HEALTHY_SEQUENCE
    if not fits and not (low and driven):
        return None
    better = target * (tail(length) if compared is per_sequence else 1.0 / tail(length))
    reason = "the sum is the mean times the length"
    # A controller that holds the policy keeps its KL below what the policy has to move by.
    if not fits and better < (reached := min(max(level, ROOM_SEQUENCE), HEALTHY_SEQUENCE)):
        better, reason = reached, "so far a policy that learns has to move"
    return Found(
        "target_per_token" if compared is per_sequence else "target_per_sequence",
        "warning",
        None,
        f"The KL's target {target:g} is compared with {compared.unit}, but fits {alternative.unit}"
        + ("." if fits else " if anything: so near to where it began no policy has learned much."),
        (
            f"the KL is {number(level)} {compared.unit} and {number(meant)} {alternative.unit} (medians)",
            f"completions have {number(tail(length))} tokens",
        ),
        f"Set the target to about {better:.2g} {compared.unit}: {reason}.",
        {"kl_target": float(f"{better:.2g}")},
    )


@check("kl_controller", when=adaptive)
def kl_controller(run: Run) -> Result:
    if (target_and_unit := target_in(run)) is None:
        return Unknown("the controller's target or its unit is not known", ("kl_target",))
    (target, unit), moves = target_and_unit, coefficient_moves(run)
    if (kl := find(run, "kl_ref", unit, *SEEN)) is None:
        return Unknown(f"the KL in {unit} is not logged", ("kl_ref", "length"))
    onset = first_lasting(kl, kl.values > OFF_TARGET * target, MIN_STEPS)
    if onset is None or tail(kl) <= OFF_TARGET * target:
        return None
    level = f"the KL is {number(tail(kl))} {kl.unit}, {number(tail(kl) / target)} times its target {target:g}"
    message = "the controller of the KL penalty does not hold the KL"
    if moves is not None and moves.constant:
        return Found("absent", "warning", onset, f"{message}: its coefficient does not move", (level, moves.sentence))
    if moves is not None and moves.per_step > 0:
        doubling, pace = moves.doubling, moves.sentence
    elif (doubling_as_set := _doubling_by_settings(run)) is not None:
        doubling, pace = doubling_as_set, f"by its settings the coefficient needs {doubling_as_set:.0f} steps to double"
    else:
        return Unknown("neither the coefficient nor the horizon is known", ("kl_coef", "kl_horizon"))
    if doubling <= steps_of(run):
        return None
    change: dict[str, Value] = dict(horizon(run))
    reach: tuple[str, ...] = ()
    reward, spread, gained, reached = run.get("reward"), reward_spread(run), 0.0, min(tail(kl), HEALTHY_SEQUENCE)
    if reward is not None and spread is not None and head(spread) > 0:  # in standard deviations of the first rewards
        gained = max(tail(reward) - head(reward), 0.0) / head(spread)
    if kl.unit == SEQUENCE and target < reached and target < max(LEAST_TARGET, gained * gained / 2.0):
        # A controller that can keep up would only hold the policy where it began, or bring it back there.
        change["kl_target"] = float(f"{reached:.2g}")
        attainable = number(float(np.sqrt(2.0 * target)))
        reach = (
            f"at the target a policy gains at most {attainable} standard deviations of a roughly normal reward; this "
            f"policy gained {number(gained)}",
        )
    return Found("slow", "warning", onset, f"{message}: it is too slow", (level, pace, *reach), change=change)


def _doubling_by_settings(run: Run) -> float | None:
    """Return the steps in which the published controller doubles its coefficient at most, or None."""
    horizon, batch = setting(run, "kl_horizon"), horizon_batch(run)
    if not horizon or not batch or not run.settings.get("kl_adaptive"):
        return None
    return float(np.log(2.0)) / (LARGEST_ERROR * batch / horizon)
