"""The value head and what is made of it: value loss, explained variance, advantages."""

from __future__ import annotations

import math

import numpy as np

from steadyrl.doctor.check import Found, Result, Unknown, check
from steadyrl.doctor.series import Run
from steadyrl.doctor.statistics import signals
from steadyrl.doctor.statistics.readings import coincident_cause, learns, number, setting, share_with_spike
from steadyrl.doctor.statistics.units import together

SPIKE_FACTOR = 5.0  # times the usual level; the value loss of healthy runs stays within it from step to step
SPIKES_WITH = {
    "length_jump": ("length",),
    "kl": ("kl_ref",),
    "reward_outlier": ("reward_max", "reward_min", "reward_std", "reward"),
}
WARM_SHARE = 0.2  # a fresh value head may be worse than a constant for so long, and for 20 steps
SETTLED = 10  # steps after that
FAR_OFF = 300.0  # times the square of the returns
OUTSIDE, SETTLED_BY = 3.0, 100  # times the range of the returns; steps
FEWEST_BLOCKS = 3  # that a lasting fault shows in
EV_BAD = -0.05  # below 0 by more than rounding: worse than predicting the mean
EV_HARMS = -0.5  # the advantages are noisier by a half than without a value head; above it runs learn all the same
OFFSET_SHARE = 0.8  # of the squared error that a constant offset has to explain
LEAST_MEAN = 0.01  # of rewards whose spread is not logged, from which their mean tells how large they are
CONSTANT = 1e-6  # spread of returns, relative to their size, below which explaining it means nothing
ADVANTAGE_FLOOR = 0.05  # standard deviations; a mean below it shifts no update noticeably
ADVANTAGE_SE = 3.0


@check("value_loss_spikes")
def value_loss_spikes(run: Run) -> Result:
    series = run.needed("loss_value")
    if len(series) <= signals.BURSTS_FROM:
        return Unknown(f"{len(series)} steps are too few to tell what is usual")
    far = signals.bursts(series, SPIKE_FACTOR)
    if not len(far):
        return None
    cause, reason = coincident_cause(run, series.steps[far], SPIKES_WITH)
    onset, top = int(series.steps[far[0]]), far[np.argmax(series.values[far])]
    if cause == "unknown" and share_with_spike(run.get("value_mean"), series.steps[far[:1]]):
        cause, reason = "value_reset", f"value_mean jumps at step {onset} while reward and KL stay as they were"
    evidence = (
        f"{len(far)} steps are more than {SPIKE_FACTOR:g} times the level before them; the median of all steps is "
        f"{number(series.median)}, the greatest {number(float(series.values[top]))} at step {series.steps[top]}"
    )
    return Found(cause, "warning", onset, f"the value loss spikes from step {onset} on: {reason}", (evidence,))


@check("explained_variance_low")
def explained_variance_low(run: Run) -> Result:
    if far := _far_off(run) or _outside(run):
        return far
    if (series := run.get("explained_variance")) is None:
        return Unknown("the log has no explained variance", ("explained_variance",))
    warm = max(signals.MIN_STEPS, int(WARM_SHARE * len(series)))
    if len(series) < warm + SETTLED:
        return Unknown(f"the value head is given {warm} steps to settle; few follow")
    steps, medians = signals.block_medians(series.select(slice(warm, None)))
    if (start := _lasting_from(medians < EV_BAD)) is None:
        return None
    low = float(np.median(medians[start:]))
    # What is low as soon as a fresh head may be judged was so before.
    onset = int(steps[start]) if start else signals.first_lasting(series, series.values < EV_BAD)
    cause, reason = _low_cause(run, low)
    harmless = low > EV_HARMS or (cause == "untrained_head" and learns(run))
    return Found(
        cause,
        "info" if harmless else "warning",
        onset,
        f"the value head explains returns worse than a constant: {reason}",
        (f"the median of {series.source} is {number(low)} from step {steps[start]} on",),
    )


def _far_off(run: Run) -> Result:
    """Find a value head whose squared error is far beyond anything that the logged returns, or rewards, could make."""
    loss, mean = run.get("loss_value"), run.get("return_mean") or run.get("reward")
    spread = run.get("return_std") if run.get("return_mean") else run.get("reward_std")
    if loss is None or mean is None or len(loss) < signals.LASTING or run.traits.critic is False:
        return None
    if spread is None and mean.quantity == "reward" and abs(mean.median) < LEAST_MEAN:
        return None  # rewards of both signs, or per token, have a mean near 0 and any width
    error = signals.tail(loss)
    around = float(np.std(mean.values)) if spread is None else signals.tail(spread)
    width = max(math.hypot(mean.median, around), CONSTANT)
    limit = FAR_OFF * width * width
    if error <= limit:
        return None
    message = f"the value head is off by about {number(float(np.sqrt(error)))}, and returns are about {number(width)}"
    evidence = f"{loss.source or 'the value loss'} is {number(error)} at the end; it is a squared error, or half of one"
    return Found("value_far_off", "warning", signals.first_lasting(loss, loss.values > limit), message, (evidence,))


def _outside(run: Run) -> Result:
    """Find values whose mean lies far outside all returns of the step, long after a value head has settled."""
    value, least, greatest = (run.get(name) for name in ("value_mean", "return_min", "return_max"))
    if value is None or least is None or greatest is None or run.span[1] < SETTLED_BY:
        return None
    mean, low, high = signals.tail(value), signals.tail(least), signals.tail(greatest)
    if max(low - mean, mean - high) <= OUTSIDE * max(high - low, CONSTANT * abs(high)):
        return None
    message = f"the values are {number(mean)} in the mean, and all returns lie between {number(low)} and {number(high)}"
    return Found("value_far_off", "warning", None, message, (f"in the last rows, at step {run.span[1]}",))


def _lasting_from(bad: np.ndarray) -> int | None:
    """Return the index from which blocks are bad [k] to the end; None if those are fewer than three."""
    good = np.flatnonzero(~bad)
    start = int(good[-1]) + 1 if len(good) else 0
    return start if len(bad) - start >= FEWEST_BLOCKS else None


def _low_cause(run: Run, low: float) -> tuple[str, str]:
    spread, mean, value = run.get("return_std"), run.get("return_mean"), run.get("value_mean")
    level = abs(mean.median) if mean is not None else 1.0
    if spread is not None and spread.median <= CONSTANT * max(level, CONSTANT):
        return "constant_returns", "the returns do not vary, so there is nothing to explain"
    if mean is not None and value is not None and spread is not None:
        predicted, returned = together(value, mean)
        bias = float(np.median(np.abs(predicted.values - returned.values))) if len(predicted) else 0.0
        if bias >= np.sqrt(OFFSET_SHARE * (1.0 - low)) * spread.median:
            return "offset", f"the mean prediction is off the mean return by {number(bias)}, most of the whole error"
    return "untrained_head", "its errors are wider than the returns themselves"


@check("advantage_off")
def advantage_off(run: Run) -> Result:
    series, spread, completions = run.needed("advantage_mean"), run.get("advantage_std"), setting(run, "batch_size")
    grouped = run.traits.grouped is True
    if run.trainer == "steadyrl" and not grouped:
        return None
    std = spread.median if spread is not None else 1.0 if run.settings.get("whitened") else None
    if std is None:
        return Unknown("the spread of the advantages is not known", ("advantage_std", "whitened"))
    # The error of a step's mean goes by completions, which whole advantages belong to; else by its scatter.
    scatter = float(np.std(np.diff(series.values)) / np.sqrt(2.0))
    error = std / float(np.sqrt(completions)) if completions else scatter
    limit = max(ADVANTAGE_FLOOR * std, ADVANTAGE_SE * error)
    steps, medians = signals.block_medians(series)
    start = _lasting_from(np.abs(medians) > limit)
    if start is None or len(set(np.sign(medians[start:]))) > 1:
        return None
    level = float(np.median(medians[start:]))
    longer = f"long completions score {'better' if level > 0 else 'worse'} than short ones of the same prompt"
    return Found(
        "length_correlation" if grouped else "not_whitened",
        "info" if grouped or not run.traits.critic else "warning",
        int(steps[start]),
        f"the mean advantage stays at {number(level)} from step {steps[start]} on: "
        + (longer if grouped else "advantages are not centred over the tokens that train"),
        (f"block medians beyond {number(limit)} with one sign, their median {number(level)}",),
    )
