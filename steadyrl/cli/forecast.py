"""`steadyrl forecast`: where the score of a run will end, or why nobody can tell; also for the display of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from steadyrl.cli.terminal import note
from steadyrl.core.errors import SteadyError
from steadyrl.core.rundir import RunDir
from steadyrl.lab.forecast import NOMINAL, finished_beside, forecast_run, require_values, score_name, widths_on


def forecast_command(
    run: Annotated[Path, typer.Argument(help="a run directory, finished or not")],
    history: Annotated[
        list[Path] | None,
        typer.Option(help="finished runs to try the interval on; by default the runs in the same folder"),
    ] = None,
    metric: Annotated[str, typer.Option(help="a metric of metrics.jsonl; the held-out score by default")] = "",
) -> None:
    """Forecast the last score of a run from the curve. No forecast is made if earlier intervals did not hold."""
    directory = RunDir.open(run)
    finished_runs = [RunDir.open(path) for path in history] if history else finished_beside(directory, note)
    name = metric or score_name(directory)
    require_values(directory, name)
    outlook = forecast_run(directory, widths_on(finished_runs, directory, name), name)
    if outlook.tried:
        print(f"intervals of {100 * NOMINAL:.0f} % held the end of {outlook.covered} of {outlook.tried} finished runs")
    if outlook.forecast is None:
        print(f"no forecast of {outlook.metric}: {outlook.reason}")
        return
    print(f"{outlook.metric}: {outlook.forecast}")


class Outlook:
    """Says after each evaluation where the held-out score will end, where `steadyrl forecast` would say it.

    A run beside this one that cannot be read is left out with a note, and so is a forecast that is given up.
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
