"""The KL penalty: is it applied as it was set, and does it outweigh the reward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from steadyrl.core.types import Severity
from steadyrl.core.words import percent
from steadyrl.doctor.check import Found, Result, Unknown, check
from steadyrl.doctor.checks.kl_control import HEALTHY_SEQUENCE, ROOM_SEQUENCE, target_in
from steadyrl.doctor.remedies import Value, default
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.statistics import readings
from steadyrl.doctor.statistics.readings import number
from steadyrl.doctor.statistics.signals import LASTING, first_lasting, head, tail
from steadyrl.doctor.statistics.units import SEQUENCE, find, together

LEAST_COEFFICIENT = 1e-9  # below it a term pulls at nothing
OFF = 1e-3  # of the coefficient before: what a controller reaches in no step
SOME_KL = 1e-3  # nats per token: from there on a penalty shows in a loss that is printed with five digits
NONE_LEFT = 1e-5  # of the size of the loss: printing and rounding
MEASURED_OFF = 0.1  # of the set coefficient: estimators and updates within a step make it 0.5 to 2
OUTWEIGHS = 1.0  # penalty of a completion over what its reward can vary by
OPENING = 3  # rows
SHRANK = 0.5  # of the first length
FRACTION = 0.1  # of the reward's range that a completion's penalty may come to
# Times the KL of the balance. From a quarter on the penalty takes half of what the reward pulls with, for it grows with
# the distance and the KL with its square. Beyond the second, a run's steps are noise.
RESTS, DRIVEN = 0.25, 30.0
# Likewise, and of the gain of the best policy: there a run is at the balance. Both are rough, for the rewards differ
# less far from the reference.
AT_BALANCE, OF_GAIN = (0.6, 3.0), 0.25
ROOM = 0.5  # of the spread of the rewards: a coefficient whose balance is at 2 nats per completion
LESS = 0.2  # of the coefficient: what is advised at most
# Times the length of the reward's gradient. In runs that a higher rate alone helps it is below 0.15.
STRONG, WEAK_PENALTY = 0.5, 0.1
PULLED = 0.25  # likewise, of a reward that no longer rises with the KL at the balance: noise makes the reward's longer


FIXED: Mapping[str, Value] = {"kl_adaptive": False, "algorithm.args.kl_control": "fixed"}


@check("kl_penalty_off")
def kl_penalty_off(run: Run) -> Result:
    coef, measured, fixed = run.get("kl_coef"), _coefficient_in_loss(run), readings.setting(run, "kl_coef")
    if coef is not None and (onset := _dropped(coef)) is not None:
        before = float(coef.values[np.searchsorted(coef.steps, onset) - 1])
        return _penalty_gone(onset, "penalty_switched_off", before, f"the coefficient went from {number(before)} to 0")
    if not fixed or (measured is None and coef is not None):
        return None
    if measured is None:
        message = "the coefficient is set, and neither it nor the parts of the loss are logged"
        return Unknown(message, ("kl_coef", "loss", "loss_policy"))
    is_off = np.abs(measured.values) < MEASURED_OFF * fixed
    if (onset := first_lasting(measured, is_off, LASTING)) is None or not is_off[measured.steps >= onset].all():
        return None
    cause = "penalty_switched_off" if (~is_off[measured.steps < onset]).sum() >= LASTING else "not_applied"
    median = number(float(np.median(measured.values[measured.steps >= onset])))
    return _penalty_gone(
        onset, cause, fixed, f"loss less its policy part is {median} times the KL, and {fixed:g} is set"
    )


def _dropped(coef: Series) -> int | None:
    """Return the step at which the coefficient fell to nothing at once and stayed; None if it did not."""
    down = np.flatnonzero((coef.values[:-1] > 0) & (np.abs(coef.values[1:]) <= OFF * coef.values[:-1]))
    for i in down:
        if len(coef) - i > LASTING and (np.abs(coef.values[i + 1 :]) <= OFF * coef.values[i]).all():
            return int(coef.steps[i + 1])
    return None


def _coefficient_in_loss(run: Run) -> Series | None:
    """Return the coefficient that the loss shows: (loss - policy's part) / KL, where the KL is not near 0; or None."""
    loss, policy, kl = run.get("loss"), run.get("loss_policy"), find(run, "kl_ref")
    if loss is None or policy is None or kl is None or run.traits.kl_place != "loss" or run.get("loss_value"):
        return None
    loss, policy = together(loss, policy)
    policy, kl = together(policy, kl)
    loss, kl = together(loss, kl)
    nonzero = kl.values > SOME_KL
    if nonzero.sum() < LASTING:
        return None
    penalty = loss.values - policy.values
    penalty[np.abs(penalty) < NONE_LEFT * np.abs(loss.values)] = 0.0
    return Series("kl_coef", "", "measured", loss.source, loss.steps[nonzero], penalty[nonzero] / kl.values[nonzero])


def _penalty_gone(onset: int, cause: str, coefficient: float, evidence: str) -> Found:
    message = f"from step {onset} on nothing holds the policy near its reference"
    return Found(cause, "warning", onset, message, (evidence,), change={"kl_coef": float(f"{coefficient:.3g}")})


@dataclass(frozen=True)
class Penalty:
    """What a completion pays for its KL where the penalty is a part of the reward."""

    cost: float
    """Of a first completion, or of a later one where the reward does not rise."""
    coefficient: float
    """In force there."""
    width: float
    """What its reward can vary by."""
    basis: str
    """How that is known."""

    @property
    def sentence(self) -> str:
        """Says that it is larger than all that the reward could give; "" where it is not."""
        if not 0.0 < self.width * OUTWEIGHS < self.cost:
            return ""
        return f"the KL penalty takes {number(self.cost)} from the reward of a completion, and {self.basis}"


def _penalty(run: Run, lengthening: float = 1.0) -> Penalty | None:
    """Return what a completion pays, or would pay if later ones were so many times longer; None if unknown."""
    if run.traits.kl_place == "loss":
        return None
    kl, reward = find(run, "kl_ref", SEQUENCE), run.get("reward")
    coefficient = None if kl is None else readings.kl_coef(run, kl)
    paid = run.traits.kl_place == "reward" or run.traits.critic
    if kl is None or coefficient is None or reward is None or not paid:
        return None
    costs = coefficient * kl.values  # [n]; a KL below 0 gives, and takes nothing
    cost, in_force = float(np.median(costs[:OPENING])), float(coefficient[0])
    later = slice(len(kl) // 2, None)
    # A policy that learns may pay more for its distance than its reward differs by, and so may one that is driven away.
    flat = readings.direction(reward) <= 0 and kl.second_half.median <= HEALTHY_SEQUENCE
    if flat or lengthening > 1.0:
        late_cost = float(np.median(costs[later])) * lengthening, float(np.median(coefficient[later]))
        cost, in_force = max((cost, in_force), late_cost)
    least, greatest = run.get("reward_min"), run.get("reward_max")
    if least is not None and greatest is not None:
        width = greatest.greatest - least.least
        return Penalty(cost, in_force, width, f"all rewards of the run lie within {number(width)}")
    spread = run.get("reward_std")
    if spread is None or not spread.values.any():
        return None
    width = 4.0 * float(spread.values[:OPENING].max())
    return Penalty(cost, in_force, width, f"rewards differ by about {number(width)} (four standard deviations)")


def _shrinkage(run: Run) -> float:
    """Return the first length of completions over the later one where they shrank to less than half, and 1 else."""
    length = run.get("length")
    if length is None or tail(length, least=OPENING) >= SHRANK * head(length, least=OPENING):
        return 1.0
    return head(length, least=OPENING) / max(length.second_half.median, 1.0)


def penalty_pays(run: Run) -> str:
    """Return a sentence if the KL penalty of a whole completion was larger than all that its reward could give."""
    penalty = _penalty(run)
    return penalty.sentence if penalty else ""


@check("kl_penalty_outweighs")
def kl_penalty_outweighs(run: Run) -> Result:
    shrinkage = _shrinkage(run)
    # Where a run falls short, what long answers would pay counts: that is what short ones are for.
    penalty = _penalty(run, shrinkage if readings.falls_short(run) else 1.0)
    if penalty is None:
        return Unknown("it takes a KL in the reward, its coefficient, the lengths and the range of the rewards")
    kl = find(run, "kl_ref", SEQUENCE)
    if not penalty.sentence or kl is None:
        return None
    weaker = float(f"{penalty.coefficient * FRACTION * penalty.width / penalty.cost:.1g}")
    return Found(
        "ends_early" if shrinkage != 1.0 else "reward_drowned",
        "warning" if shrinkage != 1.0 or readings.fell(run, "reward") else "info",
        int(kl.steps[0]),
        f"the KL penalty outweighs the reward: {penalty.sentence}",
        (f"coefficient {number(penalty.coefficient)}, {readings.levels('the KL', kl, 'nats per completion')}",),
        change={"kl_coef": weaker, **_controller_off(run)},
    )


def resting(spread: float, coefficient: np.ndarray | float) -> np.ndarray:
    """Return where what is earned and a term that pulls against it hold each other, nats per completion.

    The best policy is what the term pulls to (the reference, or for an entropy bonus the flat policy) times
    exp(advantage / coefficient). While it is near that, their KL is the variance of the advantages over twice the
    squared coefficient.

    Args:
        spread: Standard deviation of the rewards, or of the advantages.
        coefficient: Of the term, one or [n].
    """
    steepness = spread / np.maximum(coefficient, LEAST_COEFFICIENT)
    return np.asarray(steepness * steepness / 2.0)


@dataclass(frozen=True)
class Balance:
    """Where reward and penalty hold each other (``resting``), and where the run is.

    What the best policy gains is the variance of the rewards over the coefficient. A run that is held by the penalty
    has come to its KL; one that moves too little is far below it.
    """

    coefficient: float
    """In force at the end."""
    spread: float
    """Standard deviation of the rewards at the start."""
    kl: float
    """Nats per completion in the later half of the run (mean)."""
    gain: float
    """Of the best policy at that coefficient, in units of the reward."""
    share: float
    """The KL over that of the balance at each step's coefficient, median of the later half."""

    @property
    def holds(self) -> bool:
        """Return whether the penalty takes most of the pull of the reward, within 2 nats of the reference."""
        return RESTS <= self.share <= DRIVEN and ROOM * self.spread <= self.coefficient


def penalty_balance(run: Run) -> Balance | None:
    """Return where a run stands between reward and penalty; None where that is not known or there is no penalty."""
    kl, spread = find(run, "kl_ref", SEQUENCE), readings.reward_spread(run)
    coefficient = None if kl is None else readings.kl_coef(run, kl)
    if kl is None or coefficient is None or spread is None or not spread.values.any() or not coefficient.any():
        return None
    reward_std = head(spread)
    if reward_std <= 0:
        return None
    # With the KL in the loss, rewards are divided by their spread, where nothing else is known.
    advantage_std = max(reward_std, 1.0) if run.traits.kl_place == "loss" else reward_std
    late_kl = kl.second_half.values
    share = float(np.median(late_kl / resting(advantage_std, coefficient[len(kl) // 2 :])))
    last = float(coefficient[-1])
    gain = reward_std * advantage_std / max(last, LEAST_COEFFICIENT)
    return Balance(last, advantage_std, float(late_kl.mean()), gain, share)


def penalty_gradient(run: Run) -> float | None:
    """Return how long the gradient of the penalty is, in lengths of the reward's, in the later half of a run."""
    reward, penalty = run.get("gradient_reward"), run.get("gradient_penalty")
    if reward is None or penalty is None:
        return None
    reward, penalty = together(reward, penalty)
    if not len(reward):
        return None
    pull, drive = (float(np.sqrt(np.mean(series.second_half.values**2))) for series in (penalty, reward))
    return pull / drive if drive > 0 else None


@check("kl_penalty_holds")
def kl_penalty_holds(run: Run) -> Result:
    reward, balance, length_ratio = run.needed("reward"), penalty_balance(run), penalty_gradient(run)
    if balance is None:
        kl, spread = find(run, "kl_ref", SEQUENCE), readings.reward_spread(run)
        coefficient = readings.kl_coef(run, reward if kl is None else kl)
        needed = {"the KL of a completion to the reference": kl, "the coefficient of the KL penalty": coefficient}
        return Unknown(readings.untold({**needed, "the spread of the rewards": spread}))
    course, later = readings.direction(reward), readings.direction(reward.second_half)
    if readings.nothing_to_learn(run) or readings.solved(run):
        return None
    gradients: tuple[str, ...] = ()
    if length_ratio is not None:
        gradients = (f"the penalty's gradient is {number(length_ratio)} times as long as the reward's",)
    pulled = length_ratio is not None and length_ratio >= PULLED and RESTS <= balance.share <= DRIVEN
    # KL and reward have come to the balance, far from what can be earned. A controller does that by design.
    at_balance = AT_BALANCE[0] <= balance.share <= AT_BALANCE[1] and not run.settings.get("kl_adaptive")
    gained = tail(reward) - head(reward) >= OF_GAIN * balance.gain
    arrived = at_balance and gained and readings.falls_short(run)
    if course < 0 or not (arrived or (later <= 0 and (balance.holds or pulled))):
        evidence = (readings.levels("the reward", reward), *gradients)
        return _held_by_gradient(run, balance, length_ratio, course, evidence)
    held_at = float(resting(balance.spread, balance.coefficient))
    return Found(
        "penalty_too_strong",
        "warning" if balance.holds or arrived or course == 0 or readings.falls_short(run) else "info",
        None,
        f"the KL penalty holds the policy where it is: coefficient {number(balance.coefficient)} beside rewards that "
        f"differ by {number(balance.spread)}",
        (
            readings.levels("the reward", reward),
            f"reward and penalty balance at a KL of {number(held_at)} nats per completion, and the KL is "
            f"{number(balance.kl)}: a higher learning rate would not move the policy further",
            *_share_of_advantage(run, balance),
            *gradients,
        ),
        change=_weaker(run, balance),
    )


def _held_by_gradient(
    run: Run, balance: Balance, length_ratio: float | None, course: int, evidence: tuple[str, ...]
) -> Result:
    """Find a penalty that takes back much of what the reward asks for, in a run that it does not hold where it is."""
    if length_ratio is None or length_ratio < STRONG:
        return None
    coefficient = balance.coefficient
    message = f"the KL penalty takes back much of what the reward asks for, at a coefficient of {coefficient:.3g}"
    severity: Severity = "warning" if course >= 0 and readings.falls_short(run) else "info"
    lower = {"kl_coef": float(f"{coefficient * max(LESS, WEAK_PENALTY / length_ratio):.1g}")}
    change = _weaker(run, balance) if coefficient >= ROOM * balance.spread else lower
    return Found("penalty_too_strong", severity, None, message, evidence, change=change)


def _weaker(run: Run, balance: Balance) -> Mapping[str, Value]:
    """Return the coefficient whose balance is as far from the reference as a healthy run may come, or the target.

    No coefficient is above the default. A controller raises a lower one until the KL is at its target again: it is
    switched off, where its name is known.
    """
    target, fixed = target_in(run), _controller_off(run)
    if target is not None and target[1] == SEQUENCE and run.settings.get("kl_adaptive") and not fixed:
        return {"kl_target": max(ROOM_SEQUENCE, target[0])}
    far = balance.spread / float(np.sqrt(2.0 * HEALTHY_SEQUENCE))
    return {"kl_coef": float(f"{min(far, LESS * balance.coefficient, default(run, 'kl_coef') or far):.1g}"), **fixed}


def _controller_off(run: Run) -> Mapping[str, Value]:
    """Return what switches a controller of the coefficient off, where there is one and its name is known."""
    adaptive = run.settings.get("kl_adaptive")
    return {name: value for name, value in FIXED.items() if adaptive and (name in run.keys or name in run.config)}


def _share_of_advantage(run: Run, balance: Balance) -> tuple[str, ...]:
    """Return by how much the penalty of a completion differs beside its reward, where the KL's error is logged."""
    errors, completions = run.get("kl_ref_se", SEQUENCE), readings.setting(run, "batch_size")
    if errors is None or not completions:
        return ()
    kl_std = tail(errors) * float(np.sqrt(completions))  # from the error of a mean of n
    penalty = balance.coefficient * kl_std
    share = penalty / (penalty + balance.spread)
    return (f"the penalties of completions differ by {number(penalty)}: {percent(share)} of the spread of advantages",)
