"""`steadyrl runs`: a table of the runs of a folder, newest first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from steadyrl.cli.terminal import printable
from steadyrl.core.errors import RunError
from steadyrl.core.rundir import RunDir
from steadyrl.show.report.evidence import read_evaluation
from steadyrl.show.report.figures import change, metric_samples
from steadyrl.show.web.folder import Folder
from steadyrl.show.web.overview import Row, row

_FINISHED = ("finished", "log")
_LONGEST_NAME = 32  # characters of a line; in 80 columns the names of checks then stay whole


def runs_command(
    folder: Annotated[Path, typer.Argument(help="a folder of runs and logs")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="print the rows as JSON")] = False,
) -> None:
    """List the runs of a folder, newest first: steps, held-out score before and after training, and the verdict.

    The verdict says whether the held-out score rose for certain, and names the doctor's findings.
    """
    rows = sorted(map(row, Folder(folder).runs()), key=lambda run: run.time or 0.0, reverse=True)
    records = list(map(run_record, rows))
    if as_json:
        print(json.dumps(records, indent=2))
        return
    if not records:
        print(printable(f"there are no runs in '{folder}'; `steadyrl train CONFIG.toml` makes one"))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    longest = max(24, *(len(record["name"]) for record in records))
    # A least width would widen the column after the others have shared what is left, and cut the last one.
    table.add_column("run\n  task, model", overflow="fold", width=min(_LONGEST_NAME, longest))
    table.add_column("steps", justify="right", no_wrap=True)
    table.add_column("before", justify="right", no_wrap=True)
    table.add_column("after", justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    for record in records:
        names = ", ".join(str(record[name]) for name in ("task", "model") if record[name])
        origin = names or record["problem"] or "log of another trainer"
        steps = "-" if record["steps_done"] is None else f"{record['steps_done']}/{record['steps'] or '?'}"
        scores = ["-" if record[name] is None else f"{record[name]:.3f}" for name in ("before", "after")]
        name = Text(printable(record["name"]))
        table.add_row(
            name.append(f"\n  {printable(origin)}", style="dim"), steps, *scores, Text(printable(record["verdict"]))
        )
    Console(highlight=False, markup=False).print(table)


def run_record(row: Row) -> dict[str, Any]:
    """Return a row of the table of all runs as plain data; unknown is None."""
    before, after = _scores(row)
    health = f"{row.verdict or row.finding.severity}: {row.finding.check}" if row.finding else row.verdict
    words = ("" if row.status in _FINISHED else row.status, row.change, health)
    return {
        "name": row.ref.name,
        "task": row.task or None,
        "model": row.model or None,
        "steps_done": row.step,
        "steps": row.steps,
        "metric": row.heldout.metric if row.heldout else None,
        "before": before,
        "after": after,
        "verdict": ", ".join(word for word in words if word) or "-",
        "problem": row.problem or None,
    }


def _scores(row: Row) -> tuple[float | None, float | None]:
    """Return the held-out scores before and after training: those of the report, else of the run's evaluations."""
    if row.heldout is not None and row.heldout.change is not None:
        return row.heldout.score - row.heldout.change, row.heldout.score
    run = RunDir(row.ref.path)
    try:
        before, after = (read_evaluation(run.evaluation_file(name)).get(run.deploy) for name in ("before", "after"))
    except RunError:  # a damaged file must not hide the other runs; their scores are unknown
        before, after = {}, {}
    compared = change(metric_samples(before), metric_samples(after) if after else None)
    return compared["before"], compared["after"] if row.heldout is None else row.heldout.score
