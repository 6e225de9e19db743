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
    if reward is None or not _repeated(reward):
        return run
    series = {name: tuple(_first_writings(logged) for logged in several) for name, several in run.series.items()}
    return replace(run, series=series, notes=(*run.notes, "Values are repeated; the first writing of each counts."))


def _repeated(series: Series) -> bool:
    x = series.values
    if len(x) < 2 * DISTINCT or (x[1:] == x[:-1]).mean() < REPEATED:
        return False
    runs, distinct = 1 + int((x[1:] != x[:-1]).sum()), len(np.unique(x))
    return distinct >= DISTINCT and distinct >= RECURS * runs


def _first_writings(series: Series) -> Series:
    if not _repeated(series):
        return series
    return series.at(np.append(True, series.values[1:] != series.values[:-1]))
