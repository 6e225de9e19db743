"""By which factor a learning rate or a KL coefficient moves: pure functions in log space, bounded per step.

Numbers in, a factor out; ``steadyrl.autopilot`` measures and acts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LEAP = 3.5  # times the band's upper end, about 1 nat/token: nothing of the old policy remains
SLOWER, FASTER = 0.5, 1.3  # bounds of the factor per step; what is too high does harm, what is too low costs time
SEARCH = 10.0  # the same while the right rate is being looked for
CREEP = 3.0  # times the rate that was found: a policy that is done moves little, and must not be driven on for that
SCALE_LOW, SCALE_HIGH = 1e-6, 1e6  # of the configured rate
LEAST_SHARE = 0.1  # of the rate, by warm-up and schedule: below, a step moves too little to be measured
GAIN, COEF_STEP = 0.3, 1.25  # of the KL coefficient: answer, factor per step
COEF_LOW, COEF_HIGH = 0.1, 100.0  # of the configured one; what falls further comes too late when the KL rises


@dataclass(frozen=True)
class Band:
    """Where the KL of a step should lie, nats per token; ``low`` < ``high``."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """The geometric middle: as many factors from one end as from the other."""
        return math.sqrt(self.low * self.high)

    def at(self, share: float, ease: float) -> Band:
        """Return the band of a step at a share of the learning rate: the KL of a step grows with the rate's square.

        Args:
            share: By warm-up and schedule, (0, 1]. It lowers the lower end only: Adam's first steps are longer than
                its rate says, which is what a warm-up is for.
            ease: (0, 1], what the autopilot holds the rate back by. It lowers both ends.
        """
        return Band(self.low * (share * ease) ** 2, self.high * ease**2)


def rate_factor(kl: float, band: Band, searching: bool) -> float:
    """Return the factor for the learning rate that brings the KL of a step to the middle of its band.

        factor = sqrt(middle / kl), 1 within the band

    The KL of a small step grows with the square of its length, and Adam's steps are as long as its rate says.

    Args:
        kl: Of the step to the policy before it, k3, nats per token, >= 0; infinite or NaN where the step overflowed.
        band: Of this step, see ``Band.at``.
        searching: True at the start of a run, while no step has been inside the band: moves may be larger.
    """
    lower, upper = (1.0 / SEARCH, SEARCH) if searching else (SLOWER, FASTER)
    if not math.isfinite(kl):
        return lower
    if band.low <= kl <= band.high:
        return 1.0
    if kl <= 0.0:
        return upper
    return min(max(math.sqrt(band.middle / kl), lower), upper)


def scale_after(scale: float, factor: float, found: float | None) -> float:
    """Return the next scale of the learning rate.

    Args:
        scale: The present one, > 0.
        factor: See ``rate_factor``.
        found: The scale at the end of the search, or None while it lasts.
    """
    ceiling = SCALE_HIGH if found is None else min(SCALE_HIGH, CREEP * found)
    return min(max(scale * factor, SCALE_LOW), ceiling)


def coefficient_after(coef: float, kl: float, target: float, start: float) -> float:
    """Return the next KL coefficient: a controller on its logarithm, proportional to that of KL over target.

        log coef <- log coef + 0.3 * log(kl / target), at most a factor 1.25 per step, from 0.1 to 100 times the start

    At twice the target the coefficient doubles in 4 steps. The published controllers need 2,000 (see kl.py).

    Args:
        coef: > 0, the present one.
        kl: To the reference, nats per sequence. A negative estimate is noise around a small KL and counts as one.
        target: > 0, nats per sequence.
        start: > 0, the configured coefficient.
    """
    assert coef > 0 and target > 0 and start > 0, f"coef {coef}, target {target} and start {start} must be above 0"
    if not math.isfinite(kl):
        return coef
    error = max(kl, 0.01 * target) / target
    factor = min(max(math.exp(GAIN * math.log(error)), 1.0 / COEF_STEP), COEF_STEP)
    return min(max(coef * factor, start * COEF_LOW), start * COEF_HIGH)
