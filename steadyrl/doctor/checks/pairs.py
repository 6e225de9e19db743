"""Pairs of a preferred and a rejected answer: whether their order is learned, and what that costs the preferred one."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np

from steadyrl.doctor.check import Found, Passed, Result, Unknown, check
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.statistics.levels import measure
from steadyrl.doctor.statistics.readings import number, setting

UNORDERED = math.log(2)  # the loss of DPO, and of a reward model, where both answers of every pair are alike
LEAST_MARGIN = 0.05  # a margin that changes the loss of DPO by 0.025
BY_CHANCE = 0.58  # share of pairs: of some hundred pairs a fair coin orders as many
USUAL_RATE = 5e-6  # of adapters; of all weights a tenth is usual
ENOUGH = 30  # steps in which an order shows
WORSE = 1.05  # times the loss of the first rows, or the least one of held-out pairs
ALL, NO_LOSS, WIDE = 0.98, 0.05, 8.0  # accuracy, loss and margin of pairs that are known by heart
ACCURACY = "accurac|(?<![a-z])acc(?![a-z])"  # in the name of a held-out measurement
GAP = 0.2  # accuracy on pairs of training above that on held-out ones
LOST_ACCURACY = 0.03  # of held-out pairs
FEWEST_EVALUATIONS = 3
DOUBLED, HALF_MORE = 2.0, 1.5  # times the negative log-likelihood that the preferred answers had
FAR_DOWN, DOWN = -10.0, -5.0  # rewards of the preferred answers, where no likelihood is logged


def margins(run: Run) -> Series | None:
    """Return the rewards of the preferred answers less those of the rejected ones, logged or reckoned."""
    chosen, rejected = run.get("chosen_reward"), run.get("rejected_reward")
    if (logged := run.get("pair_margin")) is not None or chosen is None or rejected is None:
        return logged
    steps, of_chosen, of_rejected = np.intersect1d(chosen.steps, rejected.steps, return_indices=True)
    return replace(chosen, steps=steps, values=chosen.values[of_chosen] - rejected.values[of_rejected])


def accuracies(run: Run) -> Series | None:
    """Return the share of pairs in order, also where its name alone is no more than "accuracy"."""
    logged = (series for name in ("pair_accuracy", "reward_part/accuracy", "reward") if (series := run.get(name)))
    return next((series for series in logged if re.search(ACCURACY, series.source)), None)


def has_pairs(run: Run) -> bool:
    """Return True for training on given pairs."""
    return run.traits.trains_on == "given" and (accuracies(run) or margins(run)) is not None


@check("pair_order", when=has_pairs)
def pair_order(run: Run) -> Result:
    accuracy, margin, loss = accuracies(run), margins(run), run.get("loss")
    order = accuracy if accuracy is not None else margin
    assert order is not None, "the check is for runs with one"
    logged = (("accuracy", accuracy), ("margin", margin), ("loss", loss))
    courses = tuple(f"the {name} {_course(series)}" for name, series in logged if series is not None)
    if loss is not None and _rises(loss) and _late(loss) > WORSE * _early(loss):
        message = f"the loss rises from {number(_early(loss))} to {number(_late(loss))}"
        return Found("diverges", "critical", None, message, courses)
    if (worse := _heldout_worse(run)) is not None:
        return worse
    by_chance = accuracy is None or _late(accuracy) < BY_CHANCE
    if by_chance and (margin is None or abs(_late(margin)) < LEAST_MARGIN) and not _rises(order):
        if run.covers(order) < ENOUGH:
            return Unknown(f"in {run.covers(order)} steps no order of the pairs shows, and it takes {ENOUGH}")
        rate = run.get("learning_rate")
        highest = setting(run, "learning_rate") if rate is None else rate.greatest
        cause = "rate_too_low" if highest is None or highest < USUAL_RATE else "not_trained"
        return Found(cause, "warning", None, f"the order of the pairs is not learned: {courses[0]}", courses)
    if (overfit := _overfit(run, accuracy, margin, loss)) is not None:
        return overfit
    if accuracy is not None and by_chance:
        return Unknown(f"the order of the pairs is hardly learned: {', '.join(courses)}", ("heldout/*",))
    return Passed(f"pairs whose order is learned: {', '.join(courses)}")


@check("chosen_unlikely", when=has_pairs)
def chosen_unlikely(run: Run) -> Result:
    logp, reward = run.get("chosen_logp"), run.get("chosen_reward")
    if logp is not None and len(logp) > 1 and _early(logp) < 0:
        times = _late(logp) / _early(logp)
        level = (times >= HALF_MORE) + (times >= DOUBLED)
        course = f"their log-probability {_course(logp)}"
    elif reward is not None and len(reward) > 1:
        level = (_late(reward) <= DOWN) + (_late(reward) <= FAR_DOWN)
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


def _heldout(run: Run, word: str) -> Series | None:
    """Return a series of held-out pairs by a word of its name, if it has rows enough to have a course."""
    matching = (series for name, series in run.with_prefix("heldout/").items() if re.search(word, name))
    return next((series for series in matching if len(series) >= FEWEST_EVALUATIONS), None)


def _heldout_worse(run: Run) -> Found | None:
    """Find held-out pairs whose order or loss gets worse after it was best."""
    accuracy, loss = _heldout(run, ACCURACY), _heldout(run, "loss")
    if accuracy is not None and accuracy.greatest - accuracy.last > LOST_ACCURACY:
        best, since = accuracy.greatest, int(accuracy.steps[accuracy.values.argmax()])
        course = f"their accuracy was best at step {since} ({number(best)}) and ends at {number(accuracy.last)}"
    elif loss is not None and loss.last > WORSE * loss.least:
        best, since = loss.least, int(loss.steps[loss.values.argmin()])
        course = f"their loss was least at step {since} ({number(best)}) and ends at {number(loss.last)}"
    else:
        return None
    keeps = accuracy is not None and accuracy.greatest - accuracy.last <= LOST_ACCURACY
    change = {"steps": max(since, 1)}
    message = f"training makes held-out pairs worse: {course}"
    return Found("heldout_worse", "info" if keeps else "warning", since, message, (course,), change=change)


def _overfit(run: Run, accuracy: Series | None, margin: Series | None, loss: Series | None) -> Found | None:
    if accuracy is None or _late(accuracy) < ALL:
        return None
    lossless = loss is not None and _late(loss) < NO_LOSS
    if not lossless and (margin is None or _late(margin) < WIDE):
        return None
    heldout = _heldout(run, ACCURACY)
    ends = f"accuracy {number(_late(accuracy))}" + (f", loss {number(_late(loss))}" if loss is not None else "")
    apart = heldout is None or _late(accuracy) - heldout.last > GAP
    of_heldout = "no held-out pairs are measured"
    if heldout is not None:
        of_heldout = f"of held-out pairs {number(heldout.last)} are in order"
    message = f"the pairs of training are learned by heart ({ends}), and {of_heldout}"
    return Found("overfit", "warning" if apart else "info", None, message, (ends,))
