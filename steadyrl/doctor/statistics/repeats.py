"""Values that a callback writes again and again: only their first writing is a measurement."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from steadyrl.doctor.series import Run, Series

REPEATED = 0.75  # of the rows that equal the one before
DISTINCT = 10  # values: fewer can be a measurement of few outcomes
RECURS = 0.9  # distinct values over runs of equal ones: a mean of real numbers does not come back to one it had


def without_repeats(run: Run) -> Run:
    """Return a run whose repeated values are left out, where its reward is written several times over.

    Ten equal values and then ten others look like a jump, and like less noise than there is.
    """
    reward = run.get("reward")
    if reward is None or _first_writings(reward) is reward:
        return run
    series = {name: tuple(map(_first_writings, estimates)) for name, estimates in run.series.items()}
    return replace(run, series=series, notes=(*run.notes, "Values are repeated; the first writing of each counts."))


def _first_writings(series: Series) -> Series:
    """Return a series without its repetitions; the series itself where equal values are none."""
    changed, distinct = np.append(True, series.values[1:] != series.values[:-1]), len(np.unique(series.values))
    unrepeated = len(series) < 2 * DISTINCT or 1.0 - changed[1:].mean() < REPEATED
    return series if unrepeated or distinct < max(DISTINCT, RECURS * changed.sum()) else series.select(changed)
