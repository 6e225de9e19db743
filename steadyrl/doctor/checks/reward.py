"""The course of the reward: flat, constant, falling."""

from __future__ import annotations

import numpy as np

from steadyrl.doctor.check import Result, Unclear, check
from steadyrl.doctor.checks.measures import worth_having
from steadyrl.doctor.checks.readings import number, update_size, updates_per_step
from steadyrl.doctor.checks.remedies import learning_rate, scaled_learning_rate
from steadyrl.doctor.checks.units import SEQUENCE, find
from steadyrl.doctor.levels import measure
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.signals import MIN_STEPS, head, smallest_detectable, tail, trend
from steadyrl.types import Finding

# A policy at KL K (nats per sequence) from where it began can have moved a roughly normal reward by sqrt(2 K) of its
# standard deviations at most. For a quarter of one, the smallest gain worth having, K must reach 1/32.
NOT_MOVED = 1 / 32
NOT_MOVED_OLD = 5e-5  # nats per token and step: a twentieth of the least that moves a run
NO_SIGNAL = 0.8  # share of groups without any difference: a fifth of the batch, at most, teaches
FIRST, QUICK = 3, 4.0  # steps; standard deviations of single steps in the second half
CONSTANT_STEPS = 10  # equal rewards one after the other; chance does not give so many, even printed with two digits
SAME = 1e-9  # relative difference that is rounding
NEAR_STEPS = 5  # before a reward became constant, whose level says whether it was learned
RISEN_SHARE = 0.1  # how much a share of bad completions has to grow to explain a falling reward


@check(needs=("reward",))
def reward_flat(run: Run) -> Result:
    """Reward does not rise, although a rise worth having would have shown.

    Symptom: the trend over ten blocks of steps includes 0, the second half is not above the start, and the run is long
    and quiet enough that a gain worth having (a quarter of the standard deviation between completions, or a tenth of
    the level where that is not logged) would have been seen four times in five. If it is not, the answer is that it
    cannot be told: "flat" and "too noisy to see" are different things. A run that rose first and then stays is fine.

    Causes and what tells them apart:
    - no_signal: in most groups all rewards are equal, or rewards hardly differ at all. There is nothing to follow.
    - not_moving: the policy is where it began: a KL to the reference near 0, or steps that change nothing. The learning
      rate is too small (an adapter needs ten times that of full training or more), a schedule holds it at 0, or the
      weights are bfloat16, where an update of 1e-6 is rounded away for weights above 0.0003 or so.
    - moving_without_gain: the KL grows and the reward does not: the reward is noisy, or pays for something that the
      policy does not learn, or the coefficient of the KL penalty outweighs it.
    - unknown: neither KL nor groups are logged.

    Remedy: no_signal: problems of middling difficulty, more completions per problem. not_moving: three to ten times the
    learning rate, weights in float32. moving_without_gain: read completions with high and low rewards; score the same
    text twice; then average or mend the reward.

    Source: the sensitivity is the usual one of a two-sided test (2.8 standard errors: 5 %, power 80 %); TRL's guide on
    LoRA for its learning rate; the bfloat16 limit is arithmetic.
    """
    reward = run.get("reward")
    assert reward is not None, "a need"
    if len(reward) < MIN_STEPS:
        return Unclear("reward_flat", f"{len(reward)} steps are too few to see a trend")
    slope, detectable = trend(reward), smallest_detectable(reward)
    assert slope is not None and detectable is not None, "there are enough steps"
    if slope.low > 0 or slope.high < 0 or _rose(reward) or np.ptp(reward.values) == 0:
        return None  # rising, falling, risen before, or constant: other checks speak of these
    wanted = worth_having(run, float(np.median(reward.values)))
    if detectable > wanted:
        return Unclear(
            "reward_flat",
            f"no trend is seen, but one of {number(detectable)} in all could hide in the noise, and {number(wanted)} "
            "would be worth having; run longer, or with more completions per step",
        )
    cause, told, remedy, overrides = _flat_cause(run)
    total = (number(slope.low * len(reward)), number(slope.high * len(reward)))
    return Finding(
        check="reward_flat",
        severity="warning",
        since_step=None,
        cause=cause,
        message=f"the reward does not rise: {told}",
        evidence=(
            f"the change over all steps lies between {total[0]} and {total[1]} (95 %); a change of "
            f"{number(detectable)} would have been seen, {number(wanted)} would be worth having",
            f"the reward's level is {number(tail(reward))} at the end, {number(head(reward))} at the start",
            told,
        ),
        remedy=remedy,
        overrides=overrides,
        source="two-sided trend test; TRL's guide on LoRA",
        follows="no_signal_groups" if cause == "no_signal" and run.get("no_signal") is not None else "",
    )


def _rose(reward: Series) -> bool:
    """Return True if the reward rose, be it in the first steps only: a quick rise is gone within the first block."""
    levels = measure(reward)
    settled = reward.values[len(reward) // 2 :]
    quick = settled.mean() - reward.values[:FIRST].mean() > QUICK * settled.std()
    return bool(quick) or (levels is not None and levels.rose)


def _flat_cause(run: Run) -> tuple[str, str, str, tuple[str, ...]]:
    """Return (cause, the sentence that tells it, remedy, overrides)."""
    told = _nothing_differs(run)
    if told:
        samples = run.settings.get("samples_per_prompt")
        more = (f"rollout.samples_per_prompt={2 * samples}",) if isinstance(samples, int) and samples > 1 else ()
        remedy = "Take problems that the policy solves sometimes, and draw more completions of each."
        return "no_signal", told, remedy, more
    still = _stands_still(run)
    if still is None:
        return (
            "unknown",
            "the log does not tell whether the policy moves",
            "Log the KL to the reference and the share of groups with equal rewards; then ask again.",
            (),
        )
    if still:
        rate = learning_rate(run)
        shown = f" (learning rate {number(rate)})" if rate is not None else ""
        remedy = (
            "Raise the learning rate three- to tenfold, keep trained weights in float32, and see that the schedule "
            "does not hold it at 0."
        )
        return "not_moving", f"{still}{shown}", remedy, scaled_learning_rate(run, 5.0)
    kl = find(run, "kl_ref", SEQUENCE) or run.get("kl_ref")
    far = f"the KL to the reference is {number(tail(kl))} {kl.unit} at the end: " if kl is not None else ""
    return (
        "moving_without_gain",
        f"{far}the policy moves, the reward does not follow",
        "Read completions with high and with low rewards and score the same text twice: the reward is noisy, wrong, or "
        "outweighed by the KL penalty.",
        (),
    )


def _nothing_differs(run: Run) -> str:
    share, spread, reward = run.get("no_signal"), run.get("reward_std"), run.get("reward")
    if share is not None and np.median(share.values) >= NO_SIGNAL:
        return f"in {float(np.median(share.values)):.0%} of the groups all rewards are equal"
    level = abs(float(np.median(reward.values))) if reward is not None else 1.0
    if spread is not None and np.median(spread.values) <= SAME * max(level, 1.0):
        return "the rewards of a step do not differ"
    return ""


def _stands_still(run: Run) -> str | None:
    """Return a sentence if the policy does not move, "" if it does, None where the log does not tell."""
    kl = find(run, "kl_ref", SEQUENCE)
    if kl is not None and abs(tail(kl)) < NOT_MOVED:
        return f"the KL to the reference is still {number(abs(tail(kl)))} nats per sequence"
    rate = run.get("learning_rate")
    if rate is not None and not rate.values.any():
        return "the learning rate is 0 in every step"
    step = update_size(run)
    # With one update per batch it is measured before that update, and is 0 by construction.
    if step is not None and step.values.any() and updates_per_step(run) != 1:
        size = float(np.median(step.values))
        if size < NOT_MOVED_OLD:
            return f"a step's updates change the policy by {number(size)} nats per token"
    return None if kl is None and step is None else ""


@check(needs=("reward",))
def reward_constant(run: Run) -> Result:
    """Every completion gets the same reward.

    Symptom: the mean reward is exactly the same at every step, or from some step to the end, and the completions of a
    step do not differ either where their spread is logged. Nothing can be learned from it.

    Causes and what tells them apart:
    - broken: constant from the first step: the judge, the parser or the tests give every text the same answer.
    - broke: it varied, and since a step it does not, at a level that is not the best, or further from the one before
      than the completions' own spread: an engine died, or the policy writes the same text always (then the length is
      constant as well).
    - solved: it became constant at its best level, and had come near it before: there is nothing left to learn here.
    - normalised: the mean is constant while the spread is not 0: what is logged was centred before, and says nothing.

    Remedy: score a good and a bad answer by hand, outside training (``steadyrl task check``); train only when
    they differ.

    Source: steadyrl's own rule; equal rewards give advantages of exactly 0 under every group baseline.
    """
    reward = run.get("reward")
    assert reward is not None, "a need"
    if len(reward) < CONSTANT_STEPS:
        return Unclear("reward_constant", f"{len(reward)} steps are too few")
    last = float(reward.values[-1])
    other = np.flatnonzero(np.abs(reward.values - last) > SAME * max(abs(last), 1e-3))
    start = int(other[-1]) + 1 if len(other) else 0
    if len(reward) - start < CONSTANT_STEPS:
        return None
    since = int(reward.steps[start])
    spread = run.get("reward_std")
    varies = spread is not None and bool((spread.values[spread.steps >= since] > SAME * max(abs(last), 1.0)).any())
    cause = _constant_cause(reward.values[:start], last, varies, _spread_before(run, since))
    told, remedy = {
        "normalised": ("only its mean is: it was centred before it was logged", "Log the reward before centring it."),
        "solved": ("at the best level of the run: nothing is left to learn", "Stop here, or take harder problems."),
        "broken": (
            "from the start: what scores them does not tell texts apart",
            "Score a good and a bad answer by hand.",
        ),
        "broke": (
            f"since step {since}: an engine died, or the policy writes one text only",
            "Read the completions of that step; if they differ, the scorer is broken; go on from a checkpoint before.",
        ),
    }[cause]
    return Finding(
        check="reward_constant",
        severity="info" if cause in ("normalised", "solved") else "critical",
        since_step=since,
        cause=cause,
        message=f"the reward is exactly {number(last)} in {len(reward) - start} steps, {told}",
        evidence=(f"reward {number(last)} from step {since} to step {reward.steps[-1]}",),
        remedy=remedy,
        source="equal rewards give advantages of 0",
    )


def _constant_cause(before: np.ndarray, level: float, varies: bool, spread: float | None) -> str:
    if varies:
        return "normalised"
    if not len(before):
        return "broken"
    # What is learned comes near the best level first: completions that are all right were mostly right before.
    near = spread is None or level - float(np.median(before[-NEAR_STEPS:])) <= max(spread, SAME)
    return "solved" if level >= before.max() - SAME and near else "broke"


def _spread_before(run: Run, since: int) -> float | None:
    """Return the usual spread of a step's rewards before ``since``, or None where it is not logged."""
    spread = run.get("reward_std")
    known = np.zeros(0) if spread is None else spread.values[spread.steps < since]
    return float(np.median(known)) if len(known) else None


@check(needs=("reward",))
def reward_falling(run: Run) -> Result:
    """Reward ends clearly below where it was.

    Symptom: the last block of steps lies below the best one by more than noise explains and by more than a change
    worth having. Training made the policy worse at what it is paid for, which no setting of a working trainer does on
    purpose.

    Causes and what tells them apart:
    - truncated, empty, unscored: the share of such completions grew by a tenth or more in the same time; they, and not
      the others, lower the mean.
    - unknown: none of these. Updates that are too large, a KL that ran away or a sampler that differs from the trainer
      show in their own checks; look there first.

    Remedy: go on from a checkpoint before the fall with a third of the learning rate, unless another finding names the
    cause.

    Source: steadyrl's own rule; noise of block means as in docs/doctor/statistics.md.
    """
    reward = run.get("reward")
    assert reward is not None, "a need"
    levels = measure(reward)
    if levels is None or len(reward) < MIN_STEPS:
        return Unclear("reward_falling", f"{len(reward)} steps are too few")
    top = int(levels.means.argmax())
    drop = float(levels.means[top]) - levels.end
    if drop <= levels.least or drop <= worth_having(run, float(np.median(reward.values))):
        return None
    since = int(levels.steps[min(top + 1, len(levels.steps) - 1)])
    cause, told = _fall_cause(run)
    return Finding(
        check="reward_falling",
        severity="warning",
        since_step=since,
        cause=cause,
        message=f"the reward fell from {number(float(levels.means[top]))} to {number(levels.end)}{told}",
        evidence=(
            f"block means: {number(float(levels.means[top]))} from step {levels.steps[top]}, {number(levels.end)} at "
            f"the end; noise explains a difference of {number(levels.least)}",
        ),
        remedy="Go on from a checkpoint before the fall, with a third of the learning rate, unless another finding "
        "names the cause.",
        overrides=scaled_learning_rate(run, 1 / 3),
        source="docs/doctor/statistics.md",
        follows={"truncated": "truncated", "empty": "empty_completions", "unscored": "reward_unscored"}.get(cause, ""),
    )


def _fall_cause(run: Run) -> tuple[str, str]:
    for quantity, cause in (("reward_unscored", "unscored"), ("empty", "empty"), ("truncated", "truncated")):
        series = run.get(quantity)
        levels = measure(series) if series is not None else None
        if levels is not None and levels.rose and levels.end - levels.first > RISEN_SHARE:
            return cause, f", while the share of {cause} completions grew to {levels.end:.0%}"
    return "unknown", ""
