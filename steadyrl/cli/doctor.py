"""`steadyrl doctor`: what is wrong with a run of any trainer, and why."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from steadyrl.cli.doctor_text import show
from steadyrl.cli.terminal import note
from steadyrl.doctor.causes import tree
from steadyrl.doctor.examine import Diagnosis, diagnose_all, span
from steadyrl.errors import SteadyError

HEALTHY, FINDINGS, UNREADABLE = 0, 1, 2  # exit codes
UNBROKEN = 100_000  # characters


def doctor_command(
    paths: Annotated[list[Path], typer.Argument(help="logs, run directories, or folders of them", metavar="PATH...")],
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object instead of text")] = False,
    config: Annotated[
        Path | None, typer.Option(help="the trainer's config (TOML or JSON), for logs that hold no settings")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="also write diagnosis.md and diagnosis.html here")] = None,
) -> None:
    """Say what is wrong with a run, and why. Exit code 0: healthy, 1: findings, 2: something could not be read."""
    settings = {} if config is None else _settings(config)
    diagnoses: list[Diagnosis] = []
    unreadable: dict[str, str] = {}
    for path in paths:
        try:
            found, refused = diagnose_all(path, settings)
        except SteadyError as error:  # the other paths are examined all the same
            found, refused = [], {str(path): str(error)}
        diagnoses += found
        unreadable |= {name: " ".join(why.split()) for name, why in refused.items()}
    _print(diagnoses, unreadable, as_json)
    for problem in unreadable.values():
        note(f"error: {problem}")
    if report is not None and diagnoses:
        _write(diagnoses, report)
    if unreadable:
        raise typer.Exit(UNREADABLE)
    raise typer.Exit(HEALTHY if all(diagnosis.healthy for diagnosis in diagnoses) else FINDINGS)


def _settings(config: Path) -> dict[str, Any]:
    from steadyrl.cli.trainer_config import read_settings  # pydantic takes a third of the time of a small log

    return read_settings(config)


def as_record(diagnoses: list[Diagnosis], unreadable: Mapping[str, str]) -> dict[str, Any]:
    """Return what ``--json`` prints; docs/doctor/README.md describes it."""
    return {
        "runs": [
            {
                "path": diagnosis.run.path,
                "trainer": diagnosis.run.trainer,
                "algorithm": diagnosis.run.algorithm,
                "steps": diagnosis.run.steps,
                "first_step": span(diagnosis.run)[0],
                "last_step": span(diagnosis.run)[1],
                "healthy": diagnosis.healthy,
                "findings": [{**asdict(placed.finding), "depth": placed.depth} for placed in tree(diagnosis.findings)],
                "could_not_tell": [
                    {"check": unclear.check, "why": unclear.why, "would_tell": list(unclear.would_tell)}
                    for unclear in diagnosis.unclear
                ],
                "notes": list(diagnosis.run.notes),
                "unknown_names": list(diagnosis.run.unknown),
            }
            for diagnosis in diagnoses
        ],
        "unreadable": [{"path": path, "error": error} for path, error in unreadable.items()],
    }


def _print(diagnoses: list[Diagnosis], unreadable: Mapping[str, str], as_json: bool) -> None:
    """Print the diagnoses; a reader that has seen enough, such as head, changes nothing of what was found."""
    try:
        if as_json:
            print(json.dumps(as_record(diagnoses, unreadable), indent=2, allow_nan=False))
        else:
            _show(diagnoses)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more when it ends, and would fail then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show(diagnoses: list[Diagnosis]) -> None:
    from rich.console import Console

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would end the program here, with the code that says "findings"

    # A log's names may hold what the terminal's encoding has not.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    # Lines in a file are not broken where some terminal's would be.
    width = None if sys.stdout.isatty() else UNBROKEN
    console = Terminal(highlight=False, markup=False, emoji=False, width=width)
    for diagnosis in diagnoses:
        show(console, diagnosis)


def _write(diagnoses: list[Diagnosis], folder: Path) -> None:
    from steadyrl.report.diagnosis import write_diagnosis  # matplotlib takes a second to load

    note(f"report: {write_diagnosis(diagnoses, folder)}")
