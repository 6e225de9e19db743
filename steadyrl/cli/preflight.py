"""`steadyrl preflight`: is everything a run stands on in order, and what will the run take?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from steadyrl import config as configs
from steadyrl.preflight.run import preflight, summary_line
from steadyrl.preflight.trial import Verdict
from steadyrl.train import open_session

_MARKS = {True: "ok  ", False: "FAIL", None: "?   "}


def preflight_command(
    config: Annotated[Path, typer.Argument(help="a TOML file; see examples/")],
    overrides: Annotated[list[str] | None, typer.Argument(help="section.key=value, as many as you like")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the verdicts as JSON")] = False,
) -> None:
    """Try everything on a few prompts before a budget is spent. Exit code 1 if something is wrong."""
    verdicts = preflight(open_session(configs.load(config, overrides or [])))
    failed = any(verdict.passed is False for verdict in verdicts)
    if as_json:
        print(json.dumps({"passed": not failed, "verdicts": [asdict(verdict) for verdict in verdicts]}, indent=2))
    else:
        for line in verdict_lines(verdicts):
            print(line)
    if failed:
        raise typer.Exit(1)


def verdict_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the verdicts as lines for a terminal, the summary last."""
    lines = []
    for verdict in verdicts:
        lines.append(f"{_MARKS[verdict.passed]}  {verdict.name}: {verdict.message}")
        if verdict.cause:
            lines += [f"        cause: {verdict.cause}", f"        remedy: {verdict.remedy}"]
        lines += [f"        try: {override}" for override in verdict.overrides]
    return [*lines, summary_line(verdicts)]
