"""Supervised fine-tuning: the likelihood of answers known to be good, for warm starts and as a baseline."""

from __future__ import annotations

from steadyrl.core.protocols import Algorithm
from steadyrl.core.sections import Section
from steadyrl.maths.losses import likelihood_loss
from steadyrl.maths.select import drop_unscored


class Settings(Section):
    """SFT has no settings. The task supplies the answers."""


def build(settings: Settings) -> Algorithm:
    """Return supervised fine-tuning as a record of functions."""
    return Algorithm(
        needs=frozenset(),
        select=drop_unscored,
        prepare=lambda batch, numbers: batch,
        # There is no KL to the old policy: it did not write these tokens, so no estimator from samples holds.
        loss=likelihood_loss,
        source="demonstrations",
    )
