"""The course of the reward: flat, constant, falling."""

from __future__ import annotations

import numpy as np

from steadyrl.core.types import Severity
from steadyrl.core.words import percent
from steadyrl.doctor.check import Found, Passed, Result, Unknown, check
from steadyrl.doctor.remedies import LITTLE_UPDATE, learning_rate
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.statistics import readings
from steadyrl.doctor.statistics.levels import AFTER, Drop, Levels, drop, measure
from steadyrl.doctor.statistics.readings import number
from steadyrl.doctor.statistics.signals import MIN_STEPS, long_run_error, tail
from steadyrl.doctor.statistics.units import SEQUENCE, find

# A policy at KL K (nats per sequence) from where it began can have moved a roughly normal reward by sqrt(2 K) of its
# standard deviations at most. For a quarter of one, the smallest gain worth having, K must reach 1/32.
NOT_MOVED = 1 / 32
FLAT_FROM = 100  # steps: many runs begin to rise after tens of them, so that fewer tell nothing by themselves
LITTLE = 0.15  # of the level: no labelled run that learned over 100 steps and more has gained so little
SIGNS, SURE = 0.25, 2.0  # share of the rows on either side of 0; standard errors
CONSTANT_STEPS = 10  # equal rewards one after the other; chance does not give so many, even printed with two digits
OFTEN = 1 / 3  # of the rows of a long log, in which the reward is its least
MOSTLY_ROWS, MOSTLY, SEVERAL = 20, 0.5, 5  # rows, and the share of them, likewise; rewards that differ, as means do
CONSTANT_ROWS = 2  # where the spread of the completions is logged, and is 0
SAME = 1e-9  # relative difference that is rounding
NO_ENTROPY = 0.1  # of the first one
NEARLY, NEARLY_ROWS = 0.005, 5  # relative deviation of the mean over batches of other prompts; see reward_constant
NEAR_STEPS = 5  # before a reward became constant, whose level says whether it was learned
RISEN_SHARE = 0.1  # how much a share of bad completions has to grow to explain a falling reward
LOST_AT_ONCE = 0.5  # of the level before; a policy that learns by small updates does not lose so much
LUCKY, FEW = 4.0, 4  # standard errors of a batch's mean; completions of a batch of which no size is known
STEEP = 10.0  # times the median gradient norm, around the step at which the reward was lost
HUGE_NORM = 100.0  # times the usual limit of 1 at which trainers clip


@check("reward_flat")
def reward_flat(run: Run) -> Result:
    reward = run.needed("reward")
    course, worth = measure(reward), _worth(run)
    if course is None:
        return Unknown(f"{len(reward)} rows are too few to tell a level reward from noise")
    change, level, near = course.change, reward.median, _near_reference(run)
    # What looks like a gain is noise where the policy is too near its reference to have gained what matters.
    if readings.rises(run) or readings.gained(run) or (change.leans and not near):
        return None
    if readings.fell(run, "reward") or course.loss(worth):
        return None  # another check speaks of a fall; of one that only the trend shows no other does
    if np.ptp(reward.values) == 0:
        return Unknown("the reward never changes")
    # A level that was there before training is no success while more than a little is left to gain.
    if readings.at_top(reward) and not (near and (readings.highest(reward) or level) - level > worth):
        return Passed(f"The reward rests at {number(level)}, near the most that it reaches.")
    cause, reason = _flat_cause(run)
    if (cause == "unknown" or change.high < 0) and readings.heldout_rises(run):
        return Passed("The reward of training does not rise, and held-out measurements rose.")
    if cause == "unknown" and run.covers(reward) < FLAT_FROM:
        few = f"{run.covers(reward)} steps are few for a reward to rise"
        return Unknown(f"{few}, and {reason}", ("kl_ref", "no_signal"))
    # A policy that has not moved, or has nothing to follow, cannot have gained what the interval still holds.
    idle = cause in ("not_moving", "no_signal")
    long = run.covers(reward) >= FLAT_FROM
    rests = long and change.high < LITTLE * abs(level)
    if not rests and not shows_no_gain(run) and not (idle and (change.detectable <= worth or long)):
        hidden = change.detectable if change.detectable > worth else change.high
        return Unknown(
            f"the reward shows no trend beyond its noise, in which a change of {number(hidden)} could hide, and "
            f"{number(worth)} would be worth having: run longer, or with more completions per step"
        )
    evidence = f"the change over all steps lies between {number(change.low)} and {number(change.high)} (95 %)"
    if change.high < 0:
        evidence = f"{evidence}: if anything it falls"
    elif rests and change.high > worth:
        evidence = f"{evidence}, at most {percent(change.high / abs(level))} of its level"
    elif change.detectable > worth:
        pass  # another reason than its course says that it does not rise
    elif change.detectable:
        detectable = f"a change of {number(change.detectable)} would have been seen"
        evidence = f"{evidence}; {detectable}, {number(worth)} would be worth having"
    else:
        evidence = f"{evidence}; the means of all blocks are equal"
    message = f"the reward does not rise in {run.covers(reward)} steps: {reason}"
    remedy = _log_more(run) if cause == "unknown" else ""
    return Found(cause, "warning", None, message, (evidence, readings.levels("it", reward)), remedy)


def _log_more(run: Run) -> str:
    """Return what to log that would tell why a reward is level, beyond what is logged."""
    missing = {"kl_ref": "the KL to the reference", "no_signal": "the share of groups with equal rewards"}
    # With a critic equal rewards of a prompt teach all the same.
    needless = {"no_signal"} if run.traits.critic or run.get("loss_value") else set[str]()
    names = [name for quantity, name in missing.items() if quantity not in needless and run.get(quantity) is None]
    if names:
        return f"Log {' and '.join(names)}, and run the doctor again."
    return "Read completions with high and low rewards, and log the KL under a name that says if it is one per token."


def shows_no_gain(run: Run) -> bool:
    """Return True if the 95 % interval of the reward's trend holds no gain that would be worth having."""
    course = _reward_levels(run)
    return course is not None and course.change.high < _worth(run) and not readings.gained(run)


def worsens(run: Run) -> bool:
    """Return True if the reward fell by what would be worth having, beyond its noise: something moves the policy."""
    course = _reward_levels(run)
    return course is not None and course.loss(_worth(run)) is not None


def _reward_levels(run: Run) -> Levels | None:
    """Return the levels of the reward; None where few steps have one."""
    reward = run.get("reward")
    return None if reward is None or run.covers(reward) < MIN_STEPS else measure(reward)


def _worth(run: Run) -> float:
    return readings.worth_having(run, float(np.median(run.needed("reward").values)))


def _flat_cause(run: Run) -> tuple[str, str]:
    """Return (cause, the sentence that tells it)."""
    kl, rate, size = _kl_of_sequence(run), run.get("learning_rate"), readings.update_size(run)
    # With one update per batch it is measured before that update, and is 0 by construction.
    step = None if size is None or not size.values.any() else size.median
    if sentence := readings.nothing_to_learn(run) or _mostly_least(run.needed("reward"), FLAT_FROM, OFTEN):
        return "no_signal", sentence
    if sentence := _near_reference(run) or _noise_about_0(run.get("kl_ref")):
        return "not_moving", sentence
    if rate is not None and not rate.values.any():
        return "not_moving", "the learning rate is 0 in every step"
    if step is not None and step < LITTLE_UPDATE and readings.updates_per_step(run) != 1:
        return "not_moving", f"a step's updates change the policy by {number(step)} nats per token"
    if kl is None and step is None:
        entropy = run.get("entropy")
        if entropy is None or readings.direction(entropy) == 0:
            return "unknown", "the log does not tell whether the policy moves"
        course = readings.levels("the entropy", entropy)
        return "moving_without_gain", f"{course}: the policy moves, the reward does not follow"
    far = "" if kl is None else f" (the KL to the reference is {number(tail(kl))} {kl.unit} at the end)"
    return "moving_without_gain", f"the policy moves, the reward does not follow{far}"


def _kl_of_sequence(run: Run) -> Series | None:
    """Return the KL to the reference in nats per sequence, or None.

    One of 0 at the end is a k3 so small that it is rounded away, or a reference that is the policy itself.
    """
    kl = find(run, "kl_ref", SEQUENCE)
    return None if kl is None or tail(kl) == 0.0 else kl


def _near_reference(run: Run) -> str:
    """Return a sentence if the policy is too near its reference to have gained what matters, with a signal; else ""."""
    kl = _kl_of_sequence(run)
    if kl is None or abs(tail(kl)) >= NOT_MOVED or readings.nothing_to_learn(run):
        return ""
    rate = learning_rate(run)
    rate_text = "" if rate is None else f" (learning rate {number(rate)})"
    return f"the KL to the reference is still {number(abs(tail(kl)))} nats per sequence{rate_text}"


def _mostly_least(reward: Series, rows: int, share: float) -> str:
    """Return a sentence if a log of so many rows has the least reward of all, exactly, in such a share of them."""
    idle = int((reward.values == reward.least).sum())
    if len(reward) < rows or idle <= share * len(reward) or len(np.unique(reward.values)) < SEVERAL:
        return ""
    return _least_sentence(reward)


def _least_sentence(reward: Series) -> str:
    where = f"its least, in {int((reward.values == reward.least).sum())} of {len(reward)} rows"
    return f"the reward is exactly {number(reward.least)}, {where}: no completion of those earns more"


def _noise_about_0(kl: Series | None) -> str:
    """Return a sentence if a KL, in whatever unit, cannot be told from 0 in the second half of the log; else ""."""
    if kl is None or len(kl) < FLAT_FROM:
        return ""
    late = kl.values[len(kl) // 2 :]
    mean, error = float(late.mean()), SURE * long_run_error(late)
    if min((late < 0).mean(), (late > 0).mean()) < SIGNS or not abs(mean) < error < NOT_MOVED:
        return ""
    return f"the KL to the reference is {number(mean)} in the mean, which its noise of {number(error)} explains"


@check("reward_constant")
def reward_constant(run: Run) -> Result:
    reward, spread = run.needed("reward"), run.get("reward_std") or run.get("reward_std_within")
    last = reward.last
    differing = np.flatnonzero(np.abs(reward.values - last) > SAME * max(abs(last), 1e-3))
    start = int(differing[-1]) + 1 if len(differing) else 0
    rows, onset = len(reward) - start, int(reward.steps[start])
    after = np.zeros(0) if spread is None else spread.values[spread.steps >= onset]
    varies = bool((after > SAME * max(abs(last), 1.0)).any())
    equal = len(after) > 0 and not varies and (start == 0 or rows >= CONSTANT_STEPS)
    if rows < (CONSTANT_ROWS if equal else CONSTANT_STEPS):
        if rows == len(reward) and run.covers(reward) < CONSTANT_STEPS:
            return Unknown(f"too few rows to tell a constant reward: {rows}")
        sentence = _mostly_least(reward, MOSTLY_ROWS, MOSTLY)
        if (frozen := _frozen(run, reward)) or not sentence or readings.learns(run) is not False:
            return frozen
        return Found("mostly_least", "warning", int(reward.steps[0]), sentence, (readings.levels("it", reward),))
    before, reward_max = reward.values[:start], run.get("reward_max")
    if start and last == reward.least and (before == last).mean() > MOSTLY:  # it hardly varied before
        sentence = _least_sentence(reward)
        return Found("mostly_least", "warning", int(reward.steps[0]), sentence, (readings.levels("it", reward),))
    spreads = np.zeros(0) if spread is None else spread.values[spread.steps < onset]
    # Whether no completion of the run earned more than all do now, and whether the policy has no entropy left.
    best = reward_max is not None and start > 0 and last >= reward_max.greatest - SAME
    entropy = find(run, "entropy")
    late_entropy = np.zeros(0) if entropy is None else readings.within(entropy, onset, onset + NEAR_STEPS).values
    alone = entropy is not None and len(late_entropy) > 0 and bool(np.median(late_entropy) < NO_ENTROPY * entropy.first)
    # What is learned comes near the best level first: completions that are all right were mostly right before. Where
    # none can earn more, half of the way is near.
    near = max(float(np.median(spreads)) if len(spreads) else np.inf, SAME)
    near = max(near, (last - float(before[:NEAR_STEPS].mean())) / 2.0) if best else near
    cause, reason = "broke", "after it varied: an engine died, or the policy writes one text only"
    severity: Severity = "critical"
    if varies:
        cause, severity, reason = "normalised", "info", "only its mean is: it was centred before it was logged"
    elif not start:
        cause, reason = (
            "broken",
            "from the start: all completions deserve the same, or what scores them does not tell them apart",
        )
    elif last >= before.max() - SAME and last - float(np.median(before[-NEAR_STEPS:])) <= near:
        cause, severity, reason = "solved", "info", "at the best level of the run: nothing is left to learn"
    elif alone:
        cause, reason = "one_text", "after it varied: the policy writes one text only, and better ones were lost"
    message = f"the reward is exactly {number(last)} in {'the last' if start else 'all'} {rows} rows, {reason}"
    evidence = f"it was {number(float(before.mean()))} in the mean of the {start} rows before" if start else reason
    return Found(cause, severity, onset, message, (evidence,))


def _frozen(run: Run, reward: Series) -> Result:
    """Find a mean that hardly changes although every batch has other prompts."""
    level = reward.median
    if len(reward) < NEARLY_ROWS or run.get("reward_std") or run.get("reward_std_within") or run.get("reward_max"):
        return None
    if reward.values.std() > NEARLY * abs(level):
        return None
    width = float(np.ptp(reward.values))
    stays = f"stays within {percent(width / abs(level))} of" if width else "is exactly"
    return Found(
        "frozen",
        "warning",
        int(reward.steps[0]),
        f"the reward {stays} {number(level)} in {len(reward)} rows: what scores the completions hardly tells them "
        "apart",
        ("batches of other prompts have other means, unless nearly all completions get the same score",),
    )


@check("reward_falling")
def reward_falling(run: Run) -> Result:
    reward = run.needed("reward")
    worth = _worth(run)
    lost, course, cause, suffix = drop(reward), measure(reward), "unknown", ""
    for quantity in ("reward_unscored", "empty", "truncated"):
        blocks = measure(share) if (share := run.get(quantity)) is not None else None
        if blocks is not None and blocks.rose and blocks.end - blocks.first > RISEN_SHARE:
            cause, suffix = "bad_texts", f", while the share of {quantity} completions grew to {percent(blocks.end)}"
            break
    if lost is not None and lost.before - lost.after > max(
        worth, LOST_AT_ONCE * abs(lost.before), _batch_noise(run, lost)
    ):
        steep = _steepest(run, lost.step)
        if steep and cause == "unknown":
            cause, suffix = "large_update", f", after a gradient norm of {number(steep)}"
        return Found(
            cause,
            "critical" if cause == "large_update" else "warning",
            lost.step,
            f"the reward fell for good, from {number(lost.before)} to {number(lost.after)}{suffix}",
            (f"these are the means before step {lost.step} and from then on",),
        )
    if course is None or run.covers(reward) < MIN_STEPS:
        return Unknown(f"{len(reward)} rows are too few to tell a falling reward from noise")
    loss = course.loss(worth)
    if loss is None or loss.before - loss.after <= _batch_noise(run, loss):
        return None
    onset = loss.began(reward)
    early, late = readings.within(reward, loss.highest_from, onset - 1), reward.select(reward.steps >= onset)
    before, after = (number(float(part.values.mean())) for part in (early, late))
    message = f"the reward fell from {before} to {after}{suffix}"
    evidence = f"these are the means of steps {early.steps[0]} to {early.steps[-1]} and of those after"
    return Found(cause, "warning", onset, message, (f"{evidence}; {course.explained}",))


def _batch_noise(run: Run, lost: Drop) -> float:
    """Return by how much one or two batches of few completions may lie above the rest; 0 where more were above."""
    reward, spread = run.needed("reward"), run.get("reward_std") or run.get("reward_std_within")
    if spread is None or int((reward.steps < lost.step).sum()) >= AFTER:
        return 0.0
    batch = readings.setting(run, "batch_size") or FEW
    return LUCKY * float(spread.values[spread.steps < lost.step].max(initial=0.0)) / float(np.sqrt(batch))


def _steepest(run: Run, step: int) -> float:
    """Return the greatest gradient norm about a step if it is huge and far above the others; else 0."""
    if (norm := run.get("grad_norm")) is None:
        return 0.0
    near = (norm.steps >= step - 2 * run.averaged_over) & (norm.steps <= step)
    greatest = float(norm.values[near].max(initial=0.0))
    usual = float(np.median(norm.values[~near])) if not near.all() else 1.0
    return greatest if greatest > max(STEEP * usual, HUGE_NORM) else 0.0
