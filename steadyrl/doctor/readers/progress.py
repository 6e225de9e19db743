"""Steps of rows that say none: from the progress bars printed between them, as tqdm draws them."""

from __future__ import annotations

import re

import numpy as np

from steadyrl.doctor.series import Column

# Without words before it: "Map: 100%" and "Loading checkpoint shards: 50%" are no steps of training.
BAR = re.compile(
    r"(?:^|[\r\n])[^\w%\r\n]{0,200}(?:Training Progress: *)?\d{1,3}%\|[^|]{0,400}\| *(\d{1,12})/(\d{1,12}) *\["
)


class Bars:
    """Takes lines and rows in the order of writing, and remembers which bar stood before and which after each row.

    Bars that count to different totals are of different things: of the training, and of an evaluation in between.

    Attributes:
        rows: How many were taken in.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._before: dict[int, dict[int, int]] = {}  # by the bar's total: where it stood, by the row after it
        self._after: dict[int, dict[int, int]] = {}
        self._last: dict[int, int] = {}

    def see(self, line: str) -> None:
        """Take in a line that may hold bars."""
        for found in BAR.finditer(line):
            at, total = int(found[1]), int(found[2])
            self._before.setdefault(total, {})[self.rows] = at
            if self.rows:
                self._after.setdefault(total, {}).setdefault(self.rows - 1, at)
            self._last[total] = at

    def row(self) -> None:
        """Take in a row."""
        self.rows += 1

    @property
    def planned(self) -> int:
        """The total of the bar that stood beside the most rows; 0 without any."""
        return max(self._before, key=lambda total: (len(self._before[total]), total), default=0)

    def steps(self, planned: int, complete: bool) -> np.ndarray | None:
        """Return the step of each row [n], strictly increasing; None where nothing tells it.

        A row belongs to the bar before it, or to the one after it where the log begins with a row. Where only some
        rows have a bar, rows are taken to be equally far apart, as they are with ``logging_steps``; so are the rows of
        a complete run, whose bars another stream may have written all at once.

        Args:
            planned: How many steps the run was to have, by its settings; 0 if unknown.
            complete: Whether the run came to its end.
        """
        total = self.planned
        before, after = self._before.get(total, {}), self._after.get(total, {})
        told = before if 0 in before else after
        known = np.array([row for row in sorted(told) if row < self.rows and told[row] > 0], np.int64)
        steps = np.array([told[row] for row in known], np.int64)
        if len(known) == self.rows > 0 and (np.diff(steps) > 0).all():
            return steps
        return self._spread(known, steps, total or planned, complete)

    def _spread(self, known: np.ndarray, steps: np.ndarray, planned: int, complete: bool) -> np.ndarray | None:
        """Return steps that are equally far apart, as some known rows or the planned number of steps say."""
        apart = set(np.rint(steps / (known + 1)).astype(int).tolist())
        every = min(apart) if len(apart) == 1 else 0
        if not every or (steps != every * (known + 1)).any() or every * self.rows > planned:
            every = planned // self.rows if self.rows and complete else 0
            if not every or planned // every != self.rows:
                return None
        return np.arange(1, self.rows + 1) * every


def renumbered(column: Column, steps: np.ndarray) -> Column:
    """Return a column whose rows are numbered from 1 with the steps [n] of the rows instead."""
    return Column(steps[column.steps - 1], column.values)
