"""The ratio of the new to the old policy, and what is clipped of it."""

from __future__ import annotations

import numpy as np

from steadyrl.core.words import percent
from steadyrl.doctor.check import Found, Result, Unknown, check
from steadyrl.doctor.remedies import learning_rate
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.statistics import readings
from steadyrl.doctor.statistics.readings import number
from steadyrl.doctor.statistics.signals import LASTING, first_lasting, strays, tail

RATIO_MEAN = (0.9, 1.1)  # its expectation is 1, exactly so in the first minibatch
RATIO_SKIP = 10.0  # TRL 0.11 skips a batch whose mean ratio is above it
RATIO_GREATEST = 100.0  # a single token whose probability grew a hundredfold within one step
RATIO_BROKEN = 1000.0  # at once: 7 nats between two log-probabilities of one token
# A working PPO run was seen at 0.24 (Stable-Baselines3's logger page), which is told as a warning, not as more.
CLIP_HIGH = 0.2
# GRPO's usual 0.01 to 0.05 are those of one or two updates per batch; with more it clips as PPO does.
CLIP_HIGH_GROUPED, FEW_UPDATES = 0.1, 2.0
USUAL_CLIP, NARROW = 0.2, 0.25  # clip range of the ratio; the part of it below which a range is narrow
MANY_EPOCHS = 2.0
KL_OLD_NOTABLE = 0.02  # nats per token: usual limits that stop the epochs are 0.01 to 0.05
WARMING = 0.2  # of the final learning rate: a first step that clips much cannot be due to it
LOSS_RATIOS = (0.5, 2.0)  # mean ratio at a spike of the loss
SPIKES_THAT_COUNT = 3
ADVANTAGE_SPIKE = 3.0  # times the median


@check("ratio_off")
def ratio_off(run: Run) -> Result:
    # A mean of 10, or a single token's of 1000, is enough in one step; what is less has to last.
    for quantity, low, high, lasting in (
        ("ratio_mean", *RATIO_MEAN, LASTING),
        ("ratio_mean", 0.0, RATIO_SKIP, 1),
        ("ratio_max", 0.0, RATIO_GREATEST, LASTING),
        ("ratio_max", 0.0, RATIO_BROKEN, 1),
    ):
        series = run.get(quantity)
        if series is None:
            continue
        off = (series.values < low) | (series.values > high)
        if (onset := first_lasting(series, off, lasting)) is None:
            continue
        text = f"{series.source} is {number(series.select(off).median)} from step {onset} on"
        early = bool(off[0]) and not readings.moves_at_once(run)
        because = ("it is so in the first row already",) if early else readings.large_updates(run, onset)
        evidence = (f"{text} (median where it is off)", *because)
        cause = "old_logprobs" if early else "learning_rate"
        return Found(cause, "warning", onset, "the ratio of new to old probabilities is far from 1", evidence)
    return None


def learning_moves(run: Run) -> bool:
    """Return False where every token is "clipped" and no advantage differs from 0: that number says nothing."""
    clipped, std = run.get("clip_fraction"), run.get("advantage_std")
    return clipped is None or not (clipped.values >= 1.0).all() or std is None or bool(std.values.any())


@check("clip_fraction_high", when=learning_moves)
def clip_fraction_high(run: Run) -> Result:
    clipped = run.needed("clip_fraction")
    updates = readings.updates_per_step(run)
    grouped = run.traits.critic is False and (updates is None or updates <= FEW_UPDATES)
    limit = CLIP_HIGH_GROUPED if grouped else CLIP_HIGH
    onset = _level_above(clipped, limit)
    if onset is None:
        return None
    cause, because = _clip_cause(run, clipped, limit, updates)
    level = clipped.select(clipped.steps >= onset).median
    over = tail(clipped) <= limit / 2.0 and cause not in ("old_logprobs", "epochs")
    return Found(
        cause,
        "info" if over else "warning",
        onset,
        f"{percent(level)} of the tokens are clipped",
        (f"the clip fraction is {number(level)} from step {onset} on (median; limit {limit})", *because),
    )


def _level_above(series: Series, limit: float) -> int | None:
    """Return the first step of the first tenth of a run (10 points or more) whose median lies above a limit."""
    width = max(10, len(series) // 10)
    if len(series) < width:
        return None
    count = len(series) // width
    medians = np.median(series.values[len(series) - count * width :].reshape(count, width), axis=1)
    high = np.flatnonzero(medians > limit)
    return None if not len(high) else int(series.steps[len(series) - count * width + int(high[0]) * width])


def _clip_cause(run: Run, clipped: Series, limit: float, updates: float | None) -> tuple[str, tuple[str, ...]]:
    if updates is not None and updates <= 1:
        return "old_logprobs", ("there is one update per batch, whose ratio has to be exactly 1",)
    opening, rate, full_rate = float(np.median(clipped.values[:3])), run.get("learning_rate"), learning_rate(run)
    warming = rate is not None and full_rate is not None and rate.first < WARMING * full_rate
    if opening > limit and warming and not readings.moves_at_once(run):
        text = f"it is {number(opening)} in the first steps, whose learning rate is a small part of the later one"
        return "old_logprobs", (text,)
    size, epochs = readings.update_size(run), run.get("epochs")
    passes = readings.setting(run, "epochs") if epochs is None else epochs.median
    moved = None if size is None else size.median
    much = () if moved is None else (f"KL of one step's updates: {number(moved)} nats/token (median)",)
    if passes is not None and passes > MANY_EPOCHS and (moved is None or moved > KL_OLD_NOTABLE):
        return "epochs", (f"{passes:g} passes over each batch", *much)
    if moved is not None and moved > KL_OLD_NOTABLE:
        return "learning_rate", much
    if 0.0 < (clip := readings.setting(run, "clip") or USUAL_CLIP) < NARROW * USUAL_CLIP:
        return "narrow_range", (f"the upper clip range is {clip:g}; {USUAL_CLIP:g} is usual", *much)
    return "unknown", much


@check("policy_loss_spikes")
def policy_loss_spikes(run: Run) -> Result:
    loss, size = run.needed("loss_policy"), readings.update_size(run)
    ratio, greatest = run.get("ratio_mean"), run.get("ratio_max")
    if ratio is None and greatest is None and size is None:
        message = "the loss alone says nothing: neither ratios nor the KL of a step's updates are logged"
        return Unknown(message, ("ratio_mean", "ratio_max", "kl_old"))
    bounds = {
        "mean ratio": (ratio, *LOSS_RATIOS),
        "greatest ratio": (greatest, 0.0, RATIO_SKIP),
        "KL of one step's updates": (size, 0.0, readings.KL_OLD_LARGE),
    }
    outlying = {
        name: series.steps[(series.values < low) | (series.values > high)]
        for name, (series, low, high) in bounds.items()
        if series is not None
    }
    steps = np.intersect1d(loss.steps[strays(loss)], np.concatenate(list(outlying.values())))
    if not len(steps):
        return None
    quantities = ", ".join(name for name, outside in outlying.items() if np.isin(outside, steps).any())
    cause, because = "learning_rate", f"out of bounds there: {quantities}"
    for name in ("advantage_max", "advantage_std"):
        series = run.get(name)
        at_spikes = None if series is None else series.select(np.isin(series.steps, steps))
        if series and at_spikes and at_spikes.median > ADVANTAGE_SPIKE * series.median:
            cause, because = "advantages", f"{name} is {number(at_spikes.median)} there"
    return Found(
        cause,
        "warning" if len(steps) >= SPIKES_THAT_COUNT else "info",
        int(steps[0]),
        f"the policy loss jumps at {len(steps)} step{'s' if len(steps) > 1 else ''} together with the ratios",
        (f"steps {', '.join(str(step) for step in steps[:5])}{' ...' if len(steps) > 5 else ''}", because),
    )
