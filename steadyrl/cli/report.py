"""`steadyrl report`: the write-up of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from steadyrl.cli.activity import following
from steadyrl.cli.terminal import near, show_text
from steadyrl.core.counting.count import begin
from steadyrl.core.errors import ConfigError
from steadyrl.core.rundir import RunDir
from steadyrl.core.types import DECODINGS
from steadyrl.core.words import counted, percent


def report_command(
    runs: Annotated[list[Path], typer.Argument(help="a run directory; several get a common report", metavar="RUN...")],
    to: Annotated[
        Path | None,
        typer.Option(help="where the report of several runs is written; overlay/ by default", file_okay=False),
    ] = None,
) -> None:
    """Write report.md, report.html, the pictures and summary.json of a run; or a common report of several runs."""
    if len(runs) == 1:
        if to is not None:
            raise ConfigError(f"--to {to}: the report of one run is in its own report/; leave --to out, and copy that")
        run = RunDir.open(runs[0])
        with following():
            write(run)
        show(run)
        return
    from steadyrl.show.report.overlay import write_overlay  # matplotlib takes a second to load

    with following():
        begin(f"writing the report of {counted(len(runs), 'run')}")
        folder = write_overlay([RunDir.open(run) for run in runs], to or Path("overlay"))
    print(f"report: {folder}")


def write(run: RunDir) -> None:
    """Write the report of a run."""
    begin("writing the report")
    from steadyrl.show.report.write import write_report  # matplotlib takes a second to load

    write_report(run.path)


def show(run: RunDir) -> None:
    """Print the summary of a report that is written."""
    folder = run.report_folder
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    from steadyrl.show.page import terminal
    from steadyrl.show.report.rows import epochs_view

    terminal.show(epochs_view(summary.get("epochs")))
    for line in summary_lines(summary):
        show_text(line)
    print(f"report: {near(folder) / 'report.html'}")


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """Return summary.json as lines for a terminal; a mean that is not finite is a word there, such as "Infinity"."""
    from steadyrl.show.report.figures import why_undecided

    lines = []
    for name in DECODINGS:
        comparison = summary[name]
        if comparison.get("difference") is not None:
            before, after, difference = (float(comparison[key]) for key in ("before", "after", "difference"))
            bounds = " [{:.3f}, {:.3f}]".format(*map(float, comparison["interval"])) if comparison["interval"] else ""
            lines.append(
                f"held-out {summary['metric'] or 'reward'}, {name}: {before:.3f} -> {after:.3f}, "
                f"{difference:+.3f}{bounds}, n = {comparison['n']}: {comparison['verdict']}{why_undecided(comparison)}"
            )
    if best := summary.get("best"):
        score = f"held-out {best['score']:.3f} (chosen by it, so biased upward)"
        lines.append(f"best checkpoint: step {best['step']}, {score}")
    baselines = (summary.get("baselines") or {}).items()
    baseline_metrics = {name: float(scores["metric"]) for name, scores in baselines if scores["metric"] is not None}
    for name, metric in sorted(baseline_metrics.items(), key=lambda item: item[1]):
        lines.append(f"  without a model, {name}: {metric:.3f}")
    if summary.get("against_rules"):  # a report that an earlier version wrote has none
        lines.append(summary["against_rules"])
    health = summary["health"]
    if health.get("parseable") is not None:
        lines.append(f"parseable: {percent(health['parseable'])}")
    if health.get("entropy_ratio") is not None:
        start, end = health["entropy_start"], health["entropy_end"]
        lines.append(f"entropy: {start:.2f} -> {end:.2f} nats/token (means of the first and the last steps)")
    if summary["conclusion"]:
        lines.append(f"verdict: {summary['conclusion']}")
    return lines
