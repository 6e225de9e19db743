"""`steadyrl report`: the write-up of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from steadyrl.rundir import RunDir


def report_command(run: Annotated[Path, typer.Argument(help="a run directory")]) -> None:
    """Write report.md, report.html, the pictures and summary.json of a run, and print what they say."""
    show_report(RunDir.open(run))


def show_report(run: RunDir) -> None:
    """Write the report and print the summary."""
    from steadyrl.report.write import write_report  # matplotlib takes a second to load

    folder = write_report(run.path)
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    for line in summary_lines(summary):
        print(line)
    print(f"report: {folder / 'report.html'}")


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """Return the summary as lines for a terminal."""
    lines = []
    for name, found in (("sampled", summary), ("greedy", summary.get("greedy") or {})):
        if found.get("interval"):
            low, high = found["interval"]
            lines.append(
                f"held-out {summary['metric'] or 'reward'}, {name}: {found['before']:.3f} -> {found['after']:.3f}, "
                f"{found['difference']:+.3f} [{low:.3f}, {high:.3f}], n = {found['n']}"
            )
    for name, parts in sorted((summary.get("baselines") or {}).items(), key=lambda item: item[1]["metric"] or 0.0):
        if parts["metric"] is not None:
            lines.append(f"  without a model, {name}: {parts['metric']:.3f}")
    health = summary["health"]
    if health.get("parseable") is not None:
        lines.append(f"parseable: {health['parseable']:.1%}")
    if health.get("entropy_ratio") is not None:
        lines.append(f"entropy: {health['entropy_start']:.2f} -> {health['entropy_end']:.2f} nats/token")
    if summary.get("verdict"):
        lines.append(f"verdict: {summary['verdict']}")
    return lines
