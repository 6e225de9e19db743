"""Remedies as settings of steadyrl, computed from those of the run."""

from __future__ import annotations

import numpy as np

from steadyrl.doctor.checks.measures import setting
from steadyrl.doctor.checks.readings import KL_OLD_LARGE, update_size
from steadyrl.doctor.series import Run

HEALTHY_UPDATE = 0.02  # nats per token: what the updates of a healthy run's step come to
LEAST_CUT, USUAL_CUT, GREATEST_CUT = 2.0, 3.0, 100.0


def learning_rate(run: Run) -> float | None:
    """Return the learning rate that the run was set to, or reached; None where neither is known."""
    logged = run.get("learning_rate")
    reached = float(logged.values.max()) if logged is not None else 0.0
    return setting(run, "learning_rate") or reached or None


def scaled_learning_rate(run: Run, factor: float) -> tuple[str, ...]:
    """Return the override for a learning rate ``factor`` times the run's; nothing where that is unknown."""
    rate = learning_rate(run)
    return () if rate is None else (f"update.learning_rate={rate * factor:.1g}",)


def learning_rate_cut(run: Run) -> float:
    """Return what to divide a learning rate by that is too high.

    The KL of a step grows with the square of the learning rate: the root of (KL / 0.02) brings it back to 0.02.
    Without a logged KL, 3.
    """
    size = update_size(run)
    large = np.zeros(0) if size is None else size.values[size.values > KL_OLD_LARGE]
    if not len(large):
        return USUAL_CUT
    return float(np.clip(np.sqrt(np.median(large) / HEALTHY_UPDATE), LEAST_CUT, GREATEST_CUT))


def calmer(run: Run) -> tuple[str, ...]:
    """Return the overrides against steps that are too large: a lower learning rate and one pass over each batch."""
    return (*scaled_learning_rate(run, 1.0 / learning_rate_cut(run)), "update.epochs=1")


def go_back(since: int | None) -> str:
    """Return where to go on from when a fault began at a step."""
    return f"go back to a checkpoint before step {since}" if since else "start again from the beginning"
