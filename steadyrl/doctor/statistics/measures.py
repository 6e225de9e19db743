"""Numbers that checks derive from a run and its settings: the coefficient of the penalty, what change would matter."""

from __future__ import annotations

import numpy as np

from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.statistics.signals import strays

WORTH_SPREAD, WORTH_LEVEL = 0.25, 0.1


def setting(run: Run, name: str) -> float | None:
    """Return a setting if it is known and a number."""
    value = run.settings.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def kl_coef(run: Run, like: Series) -> np.ndarray | None:
    """Return the coefficient of the KL penalty at the steps of ``like`` [n], the last known one at each; or None."""
    logged = run.get("kl_coef")
    if logged is not None:
        at = np.searchsorted(logged.steps, like.steps, side="right") - 1
        known: np.ndarray = logged.values[np.maximum(at, 0)]
        return known
    fixed = setting(run, "kl_coef")
    return None if fixed is None else np.full(len(like), fixed)


def reward_spread(run: Run) -> Series | None:
    """Return the spread of a step's rewards: of all, of those of one prompt, or of the only part; or None."""
    parts = list(run.parts("reward_part_std/").values())
    return run.get("reward_std") or run.get("reward_std_within") or (parts[0] if len(parts) == 1 else None)


def worth_having(run: Run, level: float) -> float:
    """Return the smallest change of the mean reward that matters, in units of the reward.

    A quarter of the spread between completions: so much moves one completion in ten past another. Where the spread is
    not logged, a tenth of the level.
    """
    spread = run.get("reward_std") or run.get("reward_std_within")
    typical = float(np.median(spread.values)) if spread is not None else 0.0
    return WORTH_SPREAD * typical if typical > 0 else WORTH_LEVEL * abs(level)


def share_with_spike(series: Series | None, steps: np.ndarray, before: int = 5) -> float:
    """Return the share of ``steps`` at which, or up to ``before`` points before which, a series left its usual range.

    Args:
        series: Spikes count upwards and downwards; None has none.
        steps: [m], m >= 1.
        before: In logged points of the series.
    """
    if series is None:
        return 0.0
    count = np.zeros(len(series) + 1)
    count[1:][strays(series)] = 1.0
    count = np.cumsum(count)  # [n + 1], spikes among the first i points
    at = np.searchsorted(series.steps, steps, side="right")
    return float((count[at] > count[np.maximum(at - before - 1, 0)]).mean())
