"""The forecast of a run's held-out score in its own display, after each evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from steadyrl.core.errors import SteadyError
from steadyrl.core.rundir import RunDir
from steadyrl.lab.forecast import finished_beside, forecast_run, score_name, widths_on


class Outlook:
    """Says after each evaluation where the held-out score will end, where `steadyrl forecast` would say it.

    Args:
        say: Takes the forecast as a line.
        note: Takes a line for each run beside this one that cannot be read and is left out, and the reason where the
            forecast is given up.
    """

    def __init__(self, say: Callable[[str], None], note: Callable[[str], None]) -> None:
        self._say, self._note = say, note
        self._run: RunDir | None = None
        self._widths: Sequence[float | None] | None = None  # known after the first evaluation

    def opened(self, run: RunDir) -> None:
        """Follow a run."""
        self._run = run

    def look(self, record: Mapping[str, Any]) -> None:
        """Look at a step's metrics."""
        if self._run is None or not any(name.startswith("heldout/") for name in record):
            return
        try:
            name = score_name(self._run)
            if self._widths is None:
                self._widths = widths_on(finished_beside(self._run, self._note), self._run, name)
            outlook = forecast_run(self._run, self._widths, name)
        except SteadyError as error:
            self._note(f"no forecast: {error}")
            self._run = None
            return
        if outlook.forecast is not None:
            self._say(f"{name}: {outlook.forecast}")
