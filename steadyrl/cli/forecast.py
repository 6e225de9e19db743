"""`steadyrl forecast`: where the score of a run will end, or why that cannot be told."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from steadyrl.cli.terminal import note
from steadyrl.core.rundir import RunDir
from steadyrl.lab.forecast import NOMINAL, finished_beside, forecast_run, require_values, score_name, widths_on


def forecast_command(
    run: Annotated[Path, typer.Argument(help="a run directory, finished or not")],
    history: Annotated[
        list[Path] | None,
        typer.Option(help="finished runs to try the interval on; those in the same folder by default"),
    ] = None,
    metric: Annotated[str, typer.Option(help="a metric of metrics.jsonl; the held-out score by default")] = "",
) -> None:
    """Forecast the last score of a run from its curve. It abstains where its intervals have not held so far."""
    directory = RunDir.open(run)
    finished_runs = [RunDir.open(path) for path in history] if history else finished_beside(directory, note)
    name = metric or score_name(directory)
    require_values(directory, name)
    outlook = forecast_run(directory, widths_on(finished_runs, directory, name), name)
    if outlook.tried:
        print(f"intervals of {100 * NOMINAL:.0f} % held the end of {outlook.covered} of {outlook.tried} finished runs")
    if outlook.forecast is None:
        print(f"no forecast of {outlook.metric}: {outlook.why}")
        return
    print(f"{outlook.metric}: {outlook.forecast}")
