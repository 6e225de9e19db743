"""The band of the KL of a step, and what of the run itself moves it: pure functions.

``autopilot.kl_band`` is for a policy that begins with 0.9 nats per token and a run of at most 40 steps: one that is
surer of its answers has a lower band, and one that is less sure a higher one. Long runs and long answers lower it, and
so do a rate that does not fall, and gradients that point back against the ones before them. Entropy that was lost and
texts that became ill-formed stop the rate from rising.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from steadyrl.core.config import Config
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
FALL = 1.5  # power of the rate's share with which the KL of a step falls: less than 2, see ``Band.at``
LOST_ENTROPY = "entropy"
# The doctor's findings about these say that answers lose their variety or form, in which a higher rate is no help.
HOLDS = {check.name for check in CHECKS if check.topic in ("Entropy", "Length and text")}


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

    def at(self, share: float, rate_multiplier: float) -> Band:
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

    Args:
        pilot: The state before.
        record: The step's metrics.
        findings: What the doctor found at this step; None where it did not look.
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
