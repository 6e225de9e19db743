"""The literal bound of what a check says of a healthy run, and where a log breaks it although no check found harm.

A check weighs noise, causes and what the reward does, so that it can be silent of a run in which its healthy sentence
does not hold at every step. A list of what is in order must not repeat that sentence then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from steadyrl.core.stats import rolling_median
from steadyrl.doctor.series import Run
from steadyrl.doctor.statistics.readings import number
from steadyrl.doctor.statistics.signals import tail

NEIGHBOURS = 3  # rows of a median: a single row breaks no bound
OPENING = 3  # rows that are the start


@dataclass(frozen=True)
class Bound:
    """What a series does not pass in a healthy run."""

    quantity: str
    """The quantity, in its own unit."""
    upper: float | None = None
    """The highest value; None for no limit."""
    lower: float | None = None
    """The lowest value; None for no limit."""
    relative_to: Literal["", "start", "end"] = ""
    """"start" or "end": ``upper`` and ``lower`` are multiples of that level; "" for values."""
    rows: Literal["", "end"] = ""
    """"end": the level at the end counts alone; "" for every row."""

    def broken(self, run: Run) -> str:
        """Return where a run breaks the bound, one sentence; "" if it does not, or has no such series."""
        series = run.get(self.quantity)
        if series is None or len(series) < NEIGHBOURS:
            return ""
        level = {"start": float(np.median(series.values[:OPENING])), "end": tail(series)}.get(self.relative_to, 1.0)
        if level <= 0:
            return ""
        values = np.array([tail(series)]) if self.rows else rolling_median(series.values, NEIGHBOURS)
        steps = series.steps[-len(values) :]
        worst = {"above": (self.upper, int(values.argmax())), "below": (self.lower, int(values.argmin()))}
        for word, (limit, row) in worst.items():
            if limit is None or (values[row] <= limit * level if word == "above" else values[row] >= limit * level):
                continue
            compared = (
                f"{limit:g} times its {self.relative_to} ({number(level)})" if self.relative_to else number(limit)
            )
            name, unit = series.source or self.quantity, f" {series.unit}" if series.unit else ""
            return f"{name} is {number(float(values[row]))}{unit} at step {steps[row]}, {word} {compared}"
        return ""
