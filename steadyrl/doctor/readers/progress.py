"""Steps of rows that say none: from the progress bars printed between them, as tqdm draws them."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np

# Without words before it: "Map: 100%" and "Loading checkpoint shards: 50%" are no steps of training.
BAR = re.compile(
    r"(?:^|[\r\n])[^\w%\r\n]{0,200}(?:Training Progress: *)?\d{1,3}%\|[^|]{0,400}\| *(\d{1,12})/(\d{1,12}) *\["
)


class Bars:
    """Remembers which bar stood before and which after each row.

    Bars that count to different totals are of different things: of the training, and of an evaluation in between.
    """

    def __init__(self) -> None:
        self.rows = 0  # so far
        # By the bar's total: where it stood, by the row after it and by the row before it.
        self._before: dict[int, dict[int, int]] = defaultdict(dict)
        self._after: dict[int, dict[int, int]] = defaultdict(dict)
        self._drawn_once = set[int]()  # totals of bars that were complete when they were first drawn, as of loading

    def add(self, line: str) -> None:
        """Take in a line that may hold bars."""
        for bar in BAR.finditer(line):
            position, total = int(bar[1]), int(bar[2])
            if position < total:
                self._drawn_once.discard(total)
            elif total not in self._before:
                self._drawn_once.add(total)
            self._before[total][self.rows] = position
            self._after[total].setdefault(self.rows - 1, position)

    @property
    def planned(self) -> int:
        """The total of the bar that stood beside the most rows; 0 without any but those drawn at their end alone."""
        totals = self._before.keys() - self._drawn_once
        return max(totals, key=lambda total: (len(self._before[total]), total), default=0)

    def steps(self, planned: int, complete: bool) -> np.ndarray | None:
        """Return the step of each row [n], strictly increasing; None where nothing tells it.

        A row belongs to the bar before it, or to the one after it where the log begins with a row. Where only some
        rows have a bar, rows are taken to be equally far apart, as they are with ``logging_steps``; so are the rows of
        a complete run, whose bars another stream may have written all at once.

        Args:
            planned: How many steps the run was to have, by its settings; 0 if unknown.
            complete: Whether the run came to its end.
        """
        before = self._before.get(self.planned, {})
        by_row = before if 0 in before else self._after.get(self.planned, {})
        barred_rows = np.array([row for row in sorted(by_row) if 0 <= row < self.rows and by_row[row] > 0], np.int64)
        steps = np.array([by_row[row] for row in barred_rows], np.int64)
        if len(barred_rows) == self.rows > 0 and (np.diff(steps) > 0).all():
            return steps
        planned = self.planned or planned
        steps_per_row = _steps_per_row(barred_rows, steps)
        if not steps_per_row or steps_per_row * self.rows > planned:
            steps_per_row = planned // self.rows if self.rows and complete else 0
            if not steps_per_row or planned // steps_per_row != self.rows:
                return None
        return np.arange(1, self.rows + 1) * steps_per_row


def _steps_per_row(rows: np.ndarray, steps: np.ndarray) -> int:
    """Return how far apart rows [n] are that were at some steps; 0 where equal distances do not explain these.

    A bar stands where its row was written, or, of two streams that are written in bursts, before a burst of rows: then
    the last of them, which is before the next bar, is as far as the bar, or one row less far.
    """
    if not len(rows):
        return 0
    row_bars, burst_bars = (steps, rows + 1), (steps[:-1], rows[1:])
    for bars, counts in (row_bars, burst_bars) if rows[0] == 0 and len(rows) > 2 else (row_bars,):
        steps_per_row = int(np.rint(np.median(bars / counts)))
        lag = bars - steps_per_row * counts
        fits = not lag.any() if counts is row_bars[1] else ((lag >= 0) & (lag < 2 * steps_per_row)).all()
        if steps_per_row and fits:
            return steps_per_row
    return 0
