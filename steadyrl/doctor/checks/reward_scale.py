"""The numbers that rewards come as: missing scores, scale and outliers, where their spread lies."""

from __future__ import annotations

import numpy as np

from steadyrl.core.types import Severity
from steadyrl.core.words import percent
from steadyrl.doctor.check import Found, Result, Unknown, check
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.statistics.readings import levels, number, reward_spread
from steadyrl.doctor.statistics.signals import MIN_STEPS, bursts, first_lasting, head, tail
from steadyrl.doctor.statistics.units import together

LATE = 0.2  # of the run: how it is now, rather than how it began
UNSCORED_WARN, UNSCORED_CRITICAL = 0.1, 0.5
OFFSET = 10.0  # standard deviations between the rewards' mean and 0
OUTLIER = 10.0  # standard deviations above the usual greatest reward
FIFTHS = 5
ALONE = 2.0  # standard deviations of the step between its mean and a single outlying reward
OUTLIER_STEPS, OUTLIER_SHARE = 3, 0.002
USUAL_BETWEEN = 0.2  # share of the steps since the first outlier that are in order


@check("reward_unscored")
def reward_unscored(run: Run) -> Result:
    share = run.needed("reward_unscored")
    start, level = head(share), tail(share, LATE)
    if level <= UNSCORED_WARN:
        return None
    unscored = share.values > UNSCORED_WARN
    onset = int(share.steps[0]) if start > UNSCORED_WARN else first_lasting(share, unscored)
    # Of batches with and without failures in turn no three follow one another.
    onset = int(share.steps[unscored.argmax()]) if onset is None else onset
    return Found(
        "scorer_fails",
        "critical" if level > UNSCORED_CRITICAL else "warning",
        onset,
        f"{percent(level)} of the completions have no reward, since step {onset}",
        (levels("the unscored share", share),),
    )


@check("reward_scale")
def reward_scale(run: Run) -> Result | list[Result]:
    spread = reward_spread(run)
    if spread is None:
        return Unknown("the log has no spread of the rewards", ("reward_std",))
    return [_offset(run, spread), _outliers(run, spread)]


def _offset(run: Run, spread: Series) -> Result:
    reward, value, returned = run.needed("reward"), run.get("value_mean"), run.get("return_mean")
    start, width = head(reward), head(spread)
    if not run.traits.critic or width <= 0 or abs(start) <= OFFSET * width:
        return None
    lagging = False
    if value is not None and returned is not None:
        value, returned = together(value, returned)
        behind = np.abs(value.values - returned.values)[MIN_STEPS:]
        lagging = len(behind) > 0 and bool(np.median(behind) > OFFSET * width)
    distance = number(abs(start) / width)
    message = f"the rewards lie {distance} standard deviations from 0, which the value head has to learn"
    evidence = (f"first rewards: mean {number(start)}, standard deviation {number(width)}",)
    severity: Severity = "warning" if lagging else "info"
    return Found("offset", severity, int(reward.steps[0]), f"{message} first{'; it has not' * lagging}", evidence)


def _outliers(run: Run, spread: Series) -> Result:
    """Tell outliers from the greatest and least rewards, or from the spread alone where neither is logged.

    One of n completions at a distance d makes a spread of d over the root of n.
    """
    reward = run.needed("reward")
    # Rewards may hardly differ before a policy has learned anything, or once it has: what they differed by at first, or
    # in some fifth of the run, is no outlier. Of a fifth with outliers in it the lower quartile is still free of them.
    fifths = np.array_split(spread.values, min(FIFTHS, len(spread)))
    width = max(spread.median, head(spread), *(float(np.quantile(part, 0.25)) for part in fifths))
    ends = [(series, sign) for end, sign in (("max", 1), ("min", -1)) if (series := run.get(f"reward_{end}"))]
    for series, sign in ends if width > 0 else ():
        if len(series) < MIN_STEPS:
            continue
        beyond = sign * (series.values - series.median)
        # Where all rewards of a step are low, or spread wide, its least is no single one.
        same, mean = together(series, reward)
        scatter = np.interp(same.steps, spread.steps, spread.values)
        alone = np.isin(series.steps, same.steps[np.abs(same.values - mean.values) > ALONE * scatter])
        far = np.flatnonzero((beyond > OUTLIER * width) & alone)
        if len(far) >= max(OUTLIER_STEPS, OUTLIER_SHARE * len(series)):
            return _outlying(series, far, far[np.argmax(beyond[far])])
    if ends or len(burst_rows := bursts(spread, OUTLIER)) < OUTLIER_STEPS:
        return None
    usual = float(np.median(spread.values[: burst_rows[0]]))
    far = np.flatnonzero(spread.values > OUTLIER * usual)
    if usual <= 0 or len(far) < OUTLIER_SHARE * len(spread):
        return None
    if 1 - len(far) / (len(spread) - far[0]) < USUAL_BETWEEN:
        return None  # the spread grew and stayed: see reward_jump
    return _outlying(spread, far, far[np.argmax(spread.values[far])])


def _outlying(series: Series, far: np.ndarray, top: int) -> Found:
    name, greatest = series.source or series.quantity, number(float(series.values[top]))
    usual = number(series.median)
    message = f"single rewards lie far beyond the others at {len(far)} steps: {name} is up to {greatest}"
    evidence = f"{name} is {usual} usually, {greatest} at step {series.steps[top]}"
    return Found("outliers", "warning", int(series.steps[far[0]]), message, (evidence,))
