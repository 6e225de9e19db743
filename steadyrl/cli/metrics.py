"""`steadyrl metrics`: the metrics of a run as a table, or sent to a tracker afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from steadyrl.cli.terminal import printable
from steadyrl.core.errors import ConfigError
from steadyrl.core.rundir import RunDir
from steadyrl.core.words import counted
from steadyrl.integrations.trackers.follow import Follower, is_complete, sent_until
from steadyrl.integrations.trackers.table import write_csv, write_parquet
from steadyrl.integrations.trackers.tracked import require_trackers

TABLES = {"csv": write_csv, "parquet": write_parquet}


def metrics_command(
    run: Annotated[Path, typer.Argument(help="a run directory")],
    to: Annotated[str, typer.Option(help="csv, parquet, wandb, tensorboard, trackio, mlflow, or an import path")],
    out: Annotated[
        Path | None, typer.Option(help="the file of a table; metrics.csv or metrics.parquet in the run's report/")
    ] = None,
) -> None:
    """Write a run's metrics as a table, or send missing data to a tracker: steps, held-out scores, report."""
    directory = RunDir.open(run)
    if to in TABLES:
        path = out or directory.report_folder / f"metrics.{to}"
        if path.suffix not in ("", f".{to}"):  # above all a file of the run itself
            raise ConfigError(f"--out is '{path}', and --to {to} writes a table; expected a name that ends in .{to}")
        path = path.resolve() if path.is_file() else path  # a link stays
        TABLES[to](directory, path)
        print(printable(f"{counted(len(directory.metrics()), 'step')}: {path}"))
        return
    if out is not None:
        raise ConfigError(f"--out names a file, and '{to}' is no table; expected csv or parquet, or leave --out away")
    require_trackers([to])
    with directory.writing():  # two writers would send everything twice
        before = sent_until(directory, to)
        if is_complete(directory, to):
            print(printable(f"nothing to send: {to} has all {counted(len(directory.metrics()), 'step')} of {run}"))
            return
        Follower(directory, to).close(directory.status)
    after = sent_until(directory, to)
    steps = f"steps {before + 1} to {after}" if after > before else "no new steps, but what came after them"
    print(printable(f"sent to {to}: {steps}"))
