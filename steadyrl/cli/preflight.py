"""`steadyrl preflight`: does everything that a run depends on work, and how much time and memory will it take?"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from steadyrl.cli.activity import following
from steadyrl.cli.terminal import show_text
from steadyrl.core import config as configs
from steadyrl.loop.preflight.run import fails, finding_lines, preflight, summary_line
from steadyrl.loop.train import open_session


def preflight_command(
    config: Annotated[Path, typer.Argument(help="a TOML file; see `steadyrl examples`")],
    overrides: Annotated[list[str] | None, typer.Argument(help="section.key=value, as many as you like")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the findings as JSON")] = False,
) -> None:
    """Try everything on a few prompts before spending compute. Exit code 1 if something fails."""
    with following() as activity:
        findings = preflight(open_session(configs.load(config, overrides or [])), activity.phase)
    failed = any(map(fails, findings))
    if as_json:
        print(json.dumps({"passed": not failed, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        for line in [*finding_lines(findings), summary_line(findings)]:
            show_text(line)
    if failed:
        raise typer.Exit(1)
