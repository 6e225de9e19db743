"""Whether two logs show the same run: their metrics agree, step by step or row by row.

Two logs of one run must not become two runs that contradict each other, and two runs must not become one.
"""

from __future__ import annotations

import numpy as np

from steadyrl.doctor.series import Column, RawLog

MIN_POINTS = 3  # different values that two columns must share
MIN_AGREEING = 0.8  # share of the columns that can be compared, and of the points of each
TOLERANCE = 2e-3  # relative; a console rounds
# What two runs of one recipe have in common.
SCHEDULES = ("lr", "learning_rate", "epoch", "num_tokens", "step", "time", "kl_coef", "max_steps")


def same_run(first: RawLog, second: RawLog) -> bool:
    """Return whether two logs agree in what they both hold; logs with nothing in common are of different runs.

    A run has one log of a format: two of the same format are two runs, be they as equal as a run and its repetition.
    """
    if first.format == second.format:
        return False
    agreements, by_last_part = list[bool](), {name.rpartition("/")[2]: name for name in first.columns}
    for name, column in second.columns.items():
        last = name.rpartition("/")[2]
        twin = name if name in first.columns else by_last_part.get(last)
        if twin is None or last.lower() in SCHEDULES:
            continue
        # One of equal names may have what a tracker put before it.
        named_alike = f"/{twin}".endswith(f"/{name}") or name.endswith(f"/{twin}")
        if named_alike and (agrees := _agree(first.columns[twin], column)) is not None:
            agreements.append(agrees)
    return bool(agreements) and sum(agreements) >= MIN_AGREEING * len(agreements)


def _agree(first: Column, second: Column) -> bool | None:
    """Return whether two columns have the same values; None where too few of those that they share differ."""
    _, at_first, at_second = np.intersect1d(first.steps, second.steps, assume_unique=True, return_indices=True)
    compared = [(first.values[at_first], second.values[at_second])]
    if len(first.values) == len(second.values):  # rows without steps are numbered
        compared.append((first.values, second.values))
    agrees = None
    for a, b in compared:
        if min(len(np.unique(a)), len(np.unique(b))) >= MIN_POINTS:
            scale = np.nanmax(np.abs(np.where(np.isfinite(a), a, 0.0)), initial=0.0)
            near = np.isclose(a, b, rtol=TOLERANCE, atol=TOLERANCE * scale * 0.1, equal_nan=True)
            agrees = agrees or float(near.mean()) >= MIN_AGREEING
    return agrees
