"""Steps of rows that say none: from the progress bars printed between them, as tqdm draws them."""

from __future__ import annotations

import re

import numpy as np

from steadyrl.doctor.series import Column

# Without words before it: "Map: 100%" and "Loading checkpoint shards: 50%" are no steps of training.
BAR = re.compile(r"(?:^|[\r\n])[^\w%]*(?:Training Progress: *)?\d{1,3}%\|[^|]{0,400}\| *(\d{1,12})/(\d{1,12}) *\[")
UNKNOWN = -1


class Bars:
    """Takes lines and rows in the order of writing, and remembers which bar stood before and which after each row."""

    def __init__(self) -> None:
        self._before: list[int] = []
        self._after: list[int] = []
        self._last = UNKNOWN
        self._fresh = UNKNOWN  # the last bar since the last row
        self.planned = 0

    def see(self, line: str) -> None:
        """Take in a line that may hold bars."""
        for found in BAR.finditer(line):
            at, total = int(found[1]), int(found[2])
            # A bar of an evaluation counts to another total.
            if total < self.planned and at <= total and self._last > UNKNOWN:
                continue
            self.planned = max(self.planned, total)
            if self._after and self._after[-1] == UNKNOWN:
                self._after[-1] = at
            self._last = self._fresh = at

    def row(self) -> None:
        """Take in a row."""
        self._before.append(self._fresh)
        self._after.append(UNKNOWN)
        self._fresh = UNKNOWN

    def steps(self, planned: int, complete: bool) -> np.ndarray | None:
        """Return the step of each row [n], strictly increasing; None where nothing tells it.

        A row belongs to the bar before it, or to the one after it where the log begins with a row. Where only some
        rows have a bar, rows are taken to be equally far apart, as they are with ``logging_steps``; so are the rows of
        a complete run, whose bars another stream may have written all at once.

        Args:
            planned: How many steps the run was to have, by its settings; 0 if unknown.
            complete: Whether the run came to its end.
        """
        count, planned = len(self._before), self.planned or planned
        if not count:
            return None
        steps = np.array(self._before if self._before[0] > UNKNOWN else self._after, np.int64)
        known = np.flatnonzero(steps > 0)
        if len(known) == count and (np.diff(steps) > 0).all():
            return steps
        apart = set(np.rint(steps[known] / (known + 1)).astype(int).tolist())
        if len(apart) == 1 and (steps[known] == min(apart) * (known + 1)).all() and min(apart) * count <= planned:
            return min(apart) * np.arange(1, count + 1)
        if complete and planned // count and planned // (planned // count) == count:
            return planned // count * np.arange(1, count + 1)
        return None


def renumbered(column: Column, steps: np.ndarray) -> Column:
    """Return a column whose rows are numbered from 1 with the steps [n] of the rows instead."""
    return Column(steps[column.steps - 1], column.values)
