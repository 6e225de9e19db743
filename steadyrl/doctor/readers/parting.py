"""Runs one after another in one table, told by a column that names them: its text changes where the steps begin anew.

A column that changes between other rows names something else, such as the phase or the split of each row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from steadyrl.doctor.readers.rows import MIN_ROWS, step_numbers
from steadyrl.doctor.readers.spelling import spelled

SEEDS = ("seed", "trial", "fold")  # whose numbers are names
MAX_NAME = 80  # characters of a run's name


class Parting:
    """Tells of rows in the order of writing which run each is of.

    Attributes:
        run: The run of the latest row, "" for the first one.
        first_name: What the column that parted the runs says of the first one, "" while there is one alone.
    """

    def __init__(self, step_key: str | None, row: Mapping[str, Any]):
        self.run = self.first_name = ""
        self._step_key, self._first, self._last, self._count = step_key or "", math.nan, math.nan, 0
        self._texts = {key: [str(x)] for key, x in row.items() if step_key and key != step_key and _names(key, x)}

    def run_of(self, row: Mapping[str, Any]) -> str:
        """Return the run of the next row."""
        if not self._texts:
            return self.run
        step = float(np.append(step_numbers([row.get(self._step_key)])[0], math.nan)[0])
        begins = self._count >= MIN_ROWS and step <= self._first < self._last
        changed = [key for key, texts in self._texts.items() if key in row and str(row[key]) != texts[-1]]
        names = [key for key in changed if begins and str(row[key]) not in self._texts[key]]
        for key in changed:
            self._texts[key].append(str(row[key]))
            if key not in names:
                del self._texts[key]
        if names:
            self.first_name = self.first_name or self._texts[names[0]][0][:MAX_NAME]
            self.run, self._first, self._count = str(row[names[0]])[:MAX_NAME], step, 0
        self._first = step if self._count == 0 else self._first
        self._last, self._count = step, self._count + 1
        return self.run


def _names(key: str, value: Any) -> bool:
    numbered = key.lower() in SEEDS
    return isinstance(value, str | int if numbered else str) and (numbered or spelled(value) is None)
