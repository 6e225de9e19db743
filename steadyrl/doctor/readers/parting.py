"""Runs one after another in one table, told by a column that names them: its text changes where the steps begin anew.

A column that changes between other rows names something else, such as the phase or the split of each row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
        self._step_key, self._steps, self._count = step_key or "", [row.get(step_key or "")] * 2, 0
        texts = {key: x for key, x in row.items() if step_key and key != step_key and _names(key, x)}
        self._latest, self._seen = texts, {key: {str(x)} for key, x in texts.items()}

    def run_of(self, row: Mapping[str, Any]) -> str:
        """Return the run of the next row."""
        if not self._latest:
            return self.run
        step = row.get(self._step_key)
        changed = [key for key, value in self._latest.items() if row.get(key, value) != value]
        if changed:
            self._change(row, step, changed)
        self._steps[1] = step
        self._count += 1
        return self.run

    def _change(self, row: Mapping[str, Any], step: Any, changed: list[str]) -> None:
        """Begin another run if its steps begin anew and a name is new; columns that change otherwise name none."""
        numbers, places = step_numbers([*self._steps, step])
        begins = self._count >= MIN_ROWS and places is None and numbers[2] <= numbers[0] < numbers[1]
        names = [key for key in changed if begins and str(row[key]) not in self._seen[key]]
        if names:
            self.first_name = self.first_name or str(self._latest[names[0]])[:MAX_NAME]
            self.run, self._steps, self._count = str(row[names[0]])[:MAX_NAME], [step, step], 0
        for key in names:
            self._latest[key] = row[key]
            self._seen[key].add(str(row[key]))
        self._latest = {key: value for key, value in self._latest.items() if key in names or key not in changed}


def _names(key: str, value: Any) -> bool:
    numbered = key.lower() in SEEDS
    return isinstance(value, str | int if numbered else str) and (numbered or spelled(value) is None)
