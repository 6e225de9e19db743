"""Pairs of a preferred and a rejected answer: whether their order is learned, and what that costs the preferred one."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from steadyrl.core.words import counted
from steadyrl.doctor.check import Found, Passed, Result, Unknown, check
from steadyrl.doctor.readers.source import PAIRS_KEY
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.statistics.levels import measure
from steadyrl.doctor.statistics.readings import number, setting

UNORDERED = math.log(2)  # the loss of DPO, and of a reward model, where both answers of every pair are alike
ABOVE = 1.05  # times that loss: no policy that learned an order
LEAST_MARGIN = 0.1  # of the rewards of DPO, whose loss such a margin lowers by 0.05
NO_MARGIN, FEW_MORE = 0.02, 0.65  # a margin, or a distance from that loss, next to none; an accuracy that goes with it
BY_CHANCE = 0.58  # share of pairs: of some hundred pairs a fair coin orders as many
NEARLY_ONE, AT_LEAST = 0.9, 15  # passes over the pairs in which an order shows, if they take so many steps
ODDS = re.compile("log.?odds", re.IGNORECASE)  # what ORPO alone logs
FEWEST_ROWS = 3  # without any gradient
USUAL_RATE = 5e-6  # of adapters; of all weights a tenth is usual
ENOUGH, WHOLE_RUN = 30, 500  # steps in which an order shows, and in which it should be learned
SOON = 0.1  # of a run, in which its first row shows where it began
APART, RATIO = 4.0, 3.0  # the first rewards of both answers, far from 0, and times their margin
WORSE, MUCH_WORSE = 1.05, 1.2  # times the loss of the first rows, or the least one of held-out pairs
ALL, NO_LOSS, WIDE = 0.98, 0.05, 10.0  # accuracy, loss and margin of pairs that are learned by heart
PASSES = 1.5  # over the pairs; in one no pair comes again
ACCURACY = "accurac|(?<![a-z])acc(?![a-z])"  # in the name of a held-out measurement
GAP = 0.2  # accuracy on pairs of training above that on held-out ones
LOST_ACCURACY = 0.03  # of held-out pairs whose loss rises, too; else twice as much
FEWEST_EVALUATIONS = 3
SWINGS = 2  # rows of the second half
DOUBLED, HALF_MORE = 2.0, 1.5  # times the negative log-likelihood that the preferred answers had
FALLEN = -1.0  # change of the reward of preferred answers that lost likelihood: ten nats at the usual beta
FAR_DOWN, DOWN = -10.0, -5.0  # change of that reward, where no likelihood is logged


def margins(run: Run) -> Series | None:
    """Return the rewards of the preferred answers less those of the rejected ones, logged or reckoned."""
    chosen, rejected = run.get("chosen_reward"), run.get("rejected_reward")
    if (logged := run.get("pair_margin")) is not None or chosen is None or rejected is None:
        return logged
    steps, of_chosen, of_rejected = np.intersect1d(chosen.steps, rejected.steps, return_indices=True)
    values = chosen.values[of_chosen] - rejected.values[of_rejected]
    return replace(chosen, steps=steps, values=values) if len(steps) else None


def accuracies(run: Run) -> Series | None:
    """Return the share of pairs in order, also where its name alone is no more than "accuracy"."""
    logged = (series for name in ("pair_accuracy", "reward_part/accuracy", "reward") if (series := run.get(name)))
    return next((series for series in logged if re.search(ACCURACY, series.source, re.IGNORECASE)), None)


def has_pairs(run: Run) -> bool:
    """Return True for training on given pairs, of which at least the loss is logged."""
    logged = accuracies(run) or margins(run) or (run.get("loss") if PAIRS_KEY in run.config else None)
    return run.traits.trains_on == "given" and logged is not None


@check("pair_order", when=has_pairs)
def pair_order(run: Run) -> Result:
    accuracy, loss = accuracies(run), run.get("loss")
    # ORPO's rewards are a tenth of mean log-probabilities, and have no reference.
    margin = None if run.algorithm == "orpo" or any(map(ODDS.search, run.unknown)) else margins(run)
    order = next((series for series in (accuracy, margin, loss) if series is not None), None)
    assert order is not None, "the check is for runs with one"
    gradient = run.get("grad_norm")
    if gradient is not None and len(gradient) >= FEWEST_ROWS and not gradient.values.any():
        message = f"the gradient norm is 0 in all {len(gradient)} rows, so that nothing is trained"
        return Found("not_trained", "critical", None, message)
    logged = (("accuracy", accuracy), ("margin", margin), ("loss", loss))
    courses = tuple(f"the {name} {_course(series)}" for name, series in logged if series is not None)
    if (unlike := _starts_apart(run, margin)) is not None:
        return unlike
    if loss is not None and _diverges(loss):
        message = f"the loss rises from {number(_early(loss))} to {number(_late(loss))}"
        return Found("diverges", "critical", None, message, courses)
    heldout = _heldout_accuracy(run, accuracy)
    if (worse := _heldout_worse(run, heldout)) is not None:
        return worse
    shares = [_late(series) for series in (accuracy, heldout) if series is not None]
    by_chance, unordered = min(shares, default=1.0) < BY_CHANCE, _unordered(margin, loss, shares)
    steps, course = run.covers(order), measure(order) if order is not loss else None
    if unordered and course is not None and course.rose and steps < WHOLE_RUN:
        return Unknown(f"the order of the pairs is hardly learned: {', '.join(courses)}", ("heldout/*",))
    if unordered or (by_chance and steps >= WHOLE_RUN):
        passes = run.get("data_epoch")
        if steps < ENOUGH and (steps < AT_LEAST or passes is None or passes.last < NEARLY_ONE):
            return Unknown(f"in {counted(steps, 'step')} no order of the pairs shows, and it takes {ENOUGH}")
        rate = run.get("learning_rate")
        highest = setting(run, "learning_rate") if rate is None else rate.greatest
        cause = "learning_rate_too_low" if highest is None or highest < USUAL_RATE else "not_trained"
        return Found(cause, "warning", None, f"the order of the pairs is not learned: {courses[0]}", courses)
    if (overfit := _overfit(run, accuracy, heldout)) is not None:
        return overfit
    if by_chance or (order is loss and _early(loss) - _late(loss) < LEAST_MARGIN / 2.0):
        return Unknown(f"the order of the pairs is hardly learned: {', '.join(courses)}", ("heldout/*",))
    return Passed(f"pairs whose order is learned: {', '.join(courses)}")


@check("chosen_unlikely", when=has_pairs)
def chosen_unlikely(run: Run) -> Result:
    logp, reward = run.get("chosen_logp"), run.get("chosen_reward")
    if logp is not None and len(logp) > 1 and _early(logp) < 0:
        times = _late(logp) / _early(logp)
        fell = reward is None or _late(reward) - _early(reward) <= FALLEN
        level = fell * ((times >= HALF_MORE) + (times >= DOUBLED))
        course = f"their log-probability {_course(logp)}"
    elif reward is not None and len(reward) > 1:
        level = sum(_late(reward) - _early(reward) <= bound for bound in (DOWN, FAR_DOWN))
        course = f"their reward {_course(reward)}"
    else:
        return Unknown("the log has neither log-probability nor reward of the preferred answers", ("chosen_reward",))
    if level == 0:
        return None
    message = f"training makes the preferred answers less likely, too: {course}"
    return Found("likelihood_displacement", "warning" if level > 1 else "info", None, message, (course,))


def _early(series: Series) -> float:
    """Return the mean of the first tenth of the rows."""
    return float(series.values[: max(len(series) // 10, 1)].mean())


def _late(series: Series) -> float:
    """Return the mean of the last third of the rows."""
    return float(series.values[-max(len(series) // 3, 1) :].mean())


def _course(series: Series) -> str:
    return f"goes from {number(_early(series))} to {number(_late(series))}"


def _rises(series: Series) -> bool:
    levels = measure(series)
    return levels.rose if levels is not None else _late(series) > WORSE * abs(_early(series))


def _unordered(margin: Series | None, loss: Series | None, shares: Sequence[float]) -> bool:
    """Return True where margin, accuracy or loss, whichever is logged, are those of a policy that has not been trained.

    Args:
        margin: Of the pairs, if it is logged.
        loss: Of training.
        shares: The late accuracies that are logged, of training or of held-out pairs.
    """
    if margin is not None:
        share = min(shares, default=0.0)
        return share < FEW_MORE and abs(_late(margin)) < (LEAST_MARGIN if share < BY_CHANCE else NO_MARGIN)
    if shares:
        return min(shares) < BY_CHANCE
    return loss is not None and abs(_late(loss) - UNORDERED) < NO_MARGIN


def _diverges(loss: Series) -> bool:
    """Return True for a loss that rises, or of which several rows of the second half are twice its start."""
    half = loss.second_half.values
    swings = np.count_nonzero(half > 2.0 * _early(loss)) >= SWINGS and half.mean() > WORSE * _early(loss)
    return bool(swings or (_rises(loss) and _late(loss) > WORSE * _early(loss)))


def _heldout(run: Run, word: str) -> Series | None:
    """Return a series of held-out pairs by a word of its name."""
    heldout = run.with_prefix("heldout/").items()
    return next((series for name, series in heldout if re.search(word, name, re.IGNORECASE)), None)


def _heldout_accuracy(run: Run, accuracy: Series | None) -> Series | None:
    """Return the accuracy on held-out pairs, which a table of evaluations calls by the name of training's."""
    loss, logged = _heldout(run, "loss"), _heldout(run, ACCURACY)
    if logged is None and loss is not None and accuracy is not None and np.array_equal(loss.steps, accuracy.steps):
        return accuracy
    return logged


def _starts_apart(run: Run, margin: Series | None) -> Found | None:
    """Find first rewards far from 0 of both answers alike, which policy and reference that start alike do not give."""
    chosen, rejected = run.get("chosen_reward"), run.get("rejected_reward")
    if chosen is None or rejected is None or margin is None:
        return None
    passes = run.get("data_epoch")
    ends = chosen.steps if passes is None else passes.values
    if ends[0] > SOON * ends[-1]:
        return None
    middle = (chosen.first + rejected.first) / 2.0
    if min(abs(chosen.first), abs(rejected.first)) < APART or abs(middle) < RATIO * abs(margin.first):
        return None
    message = (
        f"the first rewards of both answers are {number(chosen.first)} and {number(rejected.first)}, not 0: policy "
    )
    message += "and reference do not start alike"
    return Found("reference_apart", "warning", int(chosen.steps[0]), message)


def _heldout_worse(run: Run, accuracy: Series | None) -> Found | None:
    """Find held-out pairs whose order or loss gets worse after it was best, or is worse than before training."""
    loss, of_training = _heldout(run, "loss"), run.get("loss")
    of_dpo = run.algorithm not in ("kto", "orpo") and of_training is not None and of_training.least < 2.0 * UNORDERED
    evaluated = loss is not None and len(loss) >= FEWEST_EVALUATIONS
    compared = accuracy is not None and len(accuracy) >= FEWEST_EVALUATIONS
    lost = 0.0 if accuracy is None or not compared else accuracy.greatest - accuracy.last
    times = 1.0 if loss is None or not evaluated or loss.least <= 0 else loss.last / loss.least
    if accuracy is not None and lost > LOST_ACCURACY * (1.0 if times > WORSE else 2.0):  # few pairs, and no other sign
        best_step, grave = int(accuracy.steps[accuracy.values.argmax()]), True
        course = f"their accuracy was best at step {best_step} ({number(accuracy.greatest)}) and ends at "
        course += number(accuracy.last)
    elif loss is not None and times > WORSE:
        best_step, grave = int(loss.steps[loss.values.argmin()]), times > MUCH_WORSE or not compared
        course = f"their loss was {number(loss.least)} at step {best_step} and ends at {number(loss.last)}"
    elif loss is not None and of_dpo and loss.last > ABOVE * UNORDERED:
        best_step, grave = int(loss.steps[0]), True
        course = f"their loss ends at {number(loss.last)}, above the 0.693 of a policy that has not been trained"
    else:
        return None
    message = f"training makes held-out pairs worse: {course}"
    change = {"steps": best_step} if times > WORSE or lost > LOST_ACCURACY else None
    return Found("heldout_worse", "warning" if grave else "info", best_step, message, (course,), change=change)


def _overfit(run: Run, accuracy: Series | None, heldout: Series | None) -> Found | None:
    """Find pairs that are learned by heart: they come again with nothing left to learn, or are ever further apart."""
    margin, loss, passes = margins(run), run.get("loss"), run.get("data_epoch")
    wide = margin is not None and _late(margin) >= WIDE
    lossless = loss is not None and _late(loss) < NO_LOSS
    share = 1.0 if accuracy is None else _late(accuracy)
    if share < ALL or not (lossless or (wide and accuracy is not None)):
        return None
    logged = (("accuracy", accuracy), ("margin", margin), ("loss", loss))
    ends = ", ".join(f"{name} {number(_late(series))}" for name, series in logged if series is not None)
    again = passes is None or passes.last >= PASSES
    apart = heldout is None or share - heldout.last > GAP
    of_heldout = "no held-out pairs are measured"
    if heldout is not None:
        of_heldout = f"of held-out pairs {number(heldout.last)} are in order"
    message = f"the pairs of training are learned by heart ({ends}), and {of_heldout}"
    grave = (again and apart) or (wide and lossless)
    return Found("overfit", "warning" if grave else "info", None, message, (ends,))
