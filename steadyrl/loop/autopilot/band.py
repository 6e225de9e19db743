"""The band of the KL of a step, what of the run moves the band, and the factors that hold a step in it: pure functions.

``autopilot.kl_band`` is for a policy that begins with 0.9 nats per token and a run of at most 40 steps: one that is
surer of its answers has a lower band, and one that is less sure a higher one. Long runs and long answers lower it, and
so do a rate that does not fall, and gradients that point back against the ones before them. Entropy that was lost and
texts that became ill-formed stop the rate from rising. The factors are in log space, and bounded per step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from steadyrl.core.config import Config
from steadyrl.core.stats import block_mean_slope
from steadyrl.core.types import Finding
from steadyrl.doctor.checks.entropy import FALLEN
from steadyrl.doctor.checks.kl import LEAST_SEQUENCE
from steadyrl.doctor.examine import CHECKS
from steadyrl.loop.checkpoint import PilotState

RECENT = 0.2  # weight of the newest step in the mean of the cosines, which remembers some five steps
AGAINST, WITH = -0.1, 0.0  # mean cosine below which the band falls, and from which on it comes back
NARROWER, WIDER, NARROWEST = 0.8, 1.1, 0.01  # factors of the band per step, and the least share of it
USUAL = 0.9  # nats per token with which a policy begins whose band is the configured one
SUREST, LEAST_SURE = 0.2, 3.5  # bounds of the share of the band by the entropy with which a policy begins
SHORT, LONGEST = 40, 640  # steps of a run from which on the band falls, and from which on it falls no more
CONSTANT = 0.25  # of the band where the rate does not fall: half the rate, for it has to average noise all along
FALL = 1.5  # power of the rate's share with which the KL of a step falls: less than 2, see ``Band.at_rate_share``
LOST_ENTROPY = "entropy"
# The doctor's findings about these say that answers lose their variety or form, in which a higher rate is no help.
HOLDS = {check.name for check in CHECKS if check.topic in ("Entropy", "Length and text")}
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
COEF_LOW, COEF_HIGH = (0.1, 100.0)  # of the configured one; from below, it would come back too late when the KL rises


@dataclass(frozen=True)
class Band:
    """Where the KL of a step should lie, nats per token; ``low`` < ``high``."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """The geometric middle."""
        return math.sqrt(self.low * self.high)

    def times(self, factor: float) -> Band:
        """Return the band with both ends times a factor."""
        return Band(self.low * factor, self.high * factor)

    def at_rate_share(self, share: float, rate_multiplier: float) -> Band:
        """Return the band of a step at a share of the learning rate.

        The KL of a small step grows with the square of the rate, but Adam's first steps are longer than its rate says,
        and a policy that has learned is easier to move. So the band falls with the power of 1.5 only.

        Args:
            share: Share of the rate that warm-up and schedule leave, (0, 1].
            rate_multiplier: The autopilot's factor for findings, (0, 1].
        """
        return self.times(share**FALL * rate_multiplier**2)

    def aim(self, rising: bool) -> float:
        """Return the KL to settle at within the band.

        Args:
            rising: Whether the reward clearly rises. Then a step is more signal than noise, and a larger step gains
                more: the aim is three quarters of the way up the band, in log space. Otherwise it is the middle.
        """
        return self.low**0.25 * self.high**0.75 if rising else self.middle


def healthy_band(pilot: PilotState, record: Mapping[str, Any], config: Config) -> Band:
    """Return the configured band for a policy as sure as this one, with an upper end of at most 10 nats per sequence.

    A KL to the reference of up to 10 nats per sequence is healthy for a whole run (see the doctor's kl_runaway), so one
    step must not move a long answer further than that.

    Args:
        pilot: For the entropy of the run's first step.
        record: The step's metrics; completion/length is the mean length of its answers, in tokens.
        config: As configured.
    """
    first = record.get("entropy") if pilot.first_entropy is None else pilot.first_entropy
    band = Band(*config.autopilot.kl_band).times(entropy_share(first))
    per_sequence = band.high * max(record.get("completion/length") or 1.0, 1.0)
    return band.times(min(1.0, LEAST_SEQUENCE / per_sequence))


def narrowed_band(pilot: PilotState, record: Mapping[str, Any], config: Config) -> Band:
    """Return ``healthy_band`` times the shares of it that schedule and length of the run and the gradients leave."""
    scheduled = CONSTANT if config.update.schedule == "constant" else 1.0
    return healthy_band(pilot, record, config).times(scheduled * length_share(config.run.steps) * pilot.narrowing)


def length_share(steps: int) -> float:
    """Return the share of the band that fits the length of a run: the inverse of its steps, over 40 of them.

    The noise of the steps adds up over a run, and what it has to learn does not. So the best rate falls with the square
    root of the steps, and the KL of a step, which grows with the square of the rate, with the steps themselves.

    Args:
        steps: Of the whole run, >= 1.

    Returns:
        From 1/16, at 640 steps and more, to 1.

    Source:
        Nemirovski et al., "Robust Stochastic Approximation Approach to Stochastic Programming" (SIAM J. Optim. 2009),
        section 2.2: the best constant step is inverse to the root of the number of steps.
    """
    return min(1.0, SHORT / min(steps, LONGEST))


def entropy_share(first_entropy: float | None) -> float:
    """Return the share of the band that fits a policy: the square of the entropy with which its run begins, over 0.9.

    A policy that is sure of nine tokens in ten has little to move: the same KL changes much more of what it knows.

    Args:
        first_entropy: Of the first step, nats per token; None where it is not known.

    Returns:
        From 0.2 to 3.5.
    """
    if first_entropy is None or not math.isfinite(first_entropy):
        return 1.0
    return min(max((first_entropy / USUAL) ** 2, SUREST), LEAST_SURE)


def observe(pilot: PilotState, record: Mapping[str, Any], findings: Sequence[Finding] | None) -> PilotState:
    """Return the autopilot's state with what a step that is kept shows about its band.

    ``findings`` is None where the doctor did not look.
    """
    pilot = replace(pilot, held_by=_held_by(pilot, record, findings))
    if pilot.first_entropy is None:
        pilot = replace(pilot, first_entropy=record.get("entropy"))
    cosine = record.get("grad_cosine")
    if cosine is None or not math.isfinite(cosine):
        return pilot
    mean = cosine if pilot.agreement is None else pilot.agreement + RECENT * (cosine - pilot.agreement)
    return replace(pilot, agreement=mean, narrowing=narrowing_after(pilot.narrowing, mean))


def narrowing_after(narrowing: float, agreement: float) -> float:
    """Return the next share of the band: four fifths of it while updates undo the ones before, else up to a tenth more.

    Overshooting is what too high a rate does, whatever the task: a step goes past the point at which its gradient is
    zero, and the next gradient points back. The share therefore falls until it does so no longer.

    Args:
        narrowing: The present share, from 0.01 to 1.
        agreement: Mean cosine of the last steps' gradients with those before them, -1 to 1.
    """
    factor = NARROWER if agreement < AGAINST else WIDER if agreement >= WITH else 1.0
    return min(max(narrowing * factor, NARROWEST), 1.0)


def _held_by(pilot: PilotState, record: Mapping[str, Any], findings: Sequence[Finding] | None) -> str | None:
    """Return what keeps the rate from rising, None where nothing does; a finding holds until the doctor looks again."""
    entropy = record.get("entropy")
    if entropy is not None and pilot.first_entropy is not None and entropy < FALLEN * pilot.first_entropy:
        return LOST_ENTROPY
    if findings is None:
        return None if pilot.held_by == LOST_ENTROPY else pilot.held_by
    return next((finding.check for finding in findings if finding.check in HOLDS and finding.severity != "info"), None)


def search_factor(kl: float, band: Band) -> float:
    """Return the factor for the learning rate that brings the KL of a step to the middle of its band at once.

        factor = sqrt(middle / kl), within a tenth and ten; 1 within the band

    The KL of a small step grows with the square of its length, and the length of Adam's steps is proportional to the
    rate. This is for the start of a run, when the rate may be far off.

    Args:
        kl: KL of the step, k3, nats per token, >= 0; infinite or NaN where the step overflowed.
        band: Of this step, see ``Band.at_rate_share``.
    """
    return 1.0 if band.low <= kl <= band.high else _factor(kl, band.middle, 0.5, 1.0 / SEARCH, SEARCH)


def hold_factor(kl: float, band: Band, aim: float | None = None) -> float:
    """Return the factor for the learning rate that keeps the KL of a step in its band and leads it to an aim in it.

        factor = sqrt(aim / kl), from 0.5 to 1.3; inside the band (aim / kl)^(1/4), from 1 / 1.2 to 1.2

    The fourth root is half of the way in log space: it averages over the noise of a few steps.

    Args:
        kl: See ``search_factor``.
        band: Of this step, see ``Band.at_rate_share``.
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
    """Return whether mean rewards rise over the last 16 steps with 99.9 % confidence; None with fewer than 8 steps."""
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
    ceiling = SCALE_HIGH
    if found_scale is not None:
        ceiling = max(scale, min(SCALE_HIGH, (CLIMB if rising else CREEP) * found_scale))
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
