"""The factors by which a learning rate or a KL coefficient moves: pure functions in log space, bounded per step."""

from __future__ import annotations

import math
from collections.abc import Sequence

from steadyrl.core.stats import block_mean_slope
from steadyrl.loop.autopilot.band import Band

LEAP = 2.0  # times the upper end of the band: a step that is taken back
SLOWER, FASTER = 0.5, 1.3  # bounds of the factor per step: a rate that is too high does harm, one too low costs time
SETTLE = 1.2  # bound of the factor per step inside the band
WINDOW, AT_LEAST = 16, 8  # steps whose rewards show whether they rise
SURE = 0.999  # confidence that they rise: t above 4.1 with 16 steps, 6.0 with 8
SEARCH = 10.0  # bound of the factor per step during the search
CREEP = 3.0  # times the rate that was found: a policy that has learned moves little, and a higher rate would harm it
CLIMB = 10.0  # the same while the reward clearly rises, which shows that there is more to learn
SCALE_LOW, SCALE_HIGH = 1e-6, 1e6  # of the configured rate
LEAST_SHARE = 0.1  # of the rate, by warm-up and schedule; below it a step moves the policy too little to measure
GAIN, COEF_STEP = 0.3, 1.25  # of the KL coefficient: gain of the controller, factor per step
COEF_LOW, COEF_HIGH = (
    0.1,
    100.0,
)  # of the configured one; from below, it would come back too late when the KL rises


def search_factor(kl: float, band: Band) -> float:
    """Return the factor for the learning rate that brings the KL of a step to the middle of its band at once.

        factor = sqrt(middle / kl), within a tenth and ten; 1 within the band

    The KL of a small step grows with the square of its length, and the length of Adam's steps is proportional to the
    rate. This is for the start of a run, when the rate may be far off.

    Args:
        kl: KL of the step, k3, nats per token, >= 0; infinite or NaN where the step overflowed.
        band: Of this step, see ``Band.at``.
    """
    return 1.0 if band.low <= kl <= band.high else _factor(kl, band.middle, 0.5, 1.0 / SEARCH, SEARCH)


def hold_factor(kl: float, band: Band, aim: float | None = None) -> float:
    """Return the factor for the learning rate that keeps the KL of a step in its band and leads it to an aim in it.

        factor = sqrt(aim / kl), from 0.5 to 1.3; inside the band (aim / kl)^(1/4), from 1 / 1.2 to 1.2

    The fourth root is half of the way in log space: it averages over the noise of a few steps.

    Args:
        kl: See ``search_factor``.
        band: Of this step, see ``Band.at``.
        aim: See ``Band.aim``. With None the factor is 1 inside the band, and outside it leads to the middle.
    """
    if not band.low <= kl <= band.high:
        return _factor(kl, band.middle if aim is None else aim, 0.5, SLOWER, FASTER)
    return 1.0 if aim is None else _factor(kl, aim, 0.25, 1.0 / SETTLE, SETTLE)


def _factor(kl: float, aim: float, power: float, lower: float, upper: float) -> float:
    if not math.isfinite(kl):
        return lower
    if kl <= 0.0:
        return upper
    return min(max(math.pow(aim / kl, power), lower), upper)


def clearly_rising(rewards: Sequence[float]) -> bool | None:
    """Return whether the rewards of the last 16 steps rise with 99.9 % confidence; None with fewer than 8 steps.

    Args:
        rewards: Mean rewards of the steps so far, the newest last.
    """
    if len(rewards) < AT_LEAST:
        return None
    slope = block_mean_slope(rewards[-WINDOW:], WINDOW, SURE)
    return slope is not None and slope.low > 0.0


def scale_after(scale: float, factor: float, found_scale: float | None, rising: bool = False) -> float:
    """Return the next scale of the learning rate.

    Args:
        scale: The present scale, > 0.
        factor: See ``search_factor`` and ``hold_factor``.
        found_scale: The scale at the end of the search, or None while the search lasts. The scale rises to at most
            three times this one, and to at most ten times while the reward clearly rises. A scale that is already
            higher stays where it is.
        rising: See ``clearly_rising``.
    """
    ceiling = (
        SCALE_HIGH if found_scale is None else max(scale, min(SCALE_HIGH, (CLIMB if rising else CREEP) * found_scale))
    )
    return min(max(scale * factor, SCALE_LOW), ceiling)


def coefficient_after(coef: float, kl: float, target: float, start: float) -> float:
    """Return the next KL coefficient: a controller on its logarithm, proportional to that of KL over target.

        log coef <- log coef + 0.3 * log(kl / target), at most a factor 1.25 per step, from 0.1 to 100 times the start

    At twice the target the coefficient doubles in 4 steps. The published controllers need 2,000 (see kl.py).

    Args:
        coef: > 0, the present coefficient.
        kl: KL to the reference, nats per sequence. A negative estimate is noise around a small KL and counts as one.
        target: > 0, nats per sequence.
        start: > 0, the configured coefficient.
    """
    assert coef > 0 and target > 0 and start > 0, f"coef {coef}, target {target} and start {start} must be above 0"
    if not math.isfinite(kl):
        return coef
    error = max(kl, 0.01 * target) / target
    factor = min(max(math.exp(GAIN * math.log(error)), 1.0 / COEF_STEP), COEF_STEP)
    return min(max(coef * factor, start * COEF_LOW), start * COEF_HIGH)
