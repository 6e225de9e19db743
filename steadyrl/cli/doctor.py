"""`steadyrl doctor`: what is wrong with a run of any trainer, and why."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from steadyrl.cli.activity import following
from steadyrl.cli.doctor_text import show, show_difference
from steadyrl.cli.terminal import note
from steadyrl.core.errors import ConfigError, SteadyError
from steadyrl.doctor import seeds
from steadyrl.doctor.causes import as_record as as_finding
from steadyrl.doctor.causes import tree
from steadyrl.doctor.differ import differ, is_same, sentences
from steadyrl.doctor.examine import Diagnosis, diagnose_all
from steadyrl.doctor.names.identify import meaning_of, require_named
from steadyrl.show.report.diagnosis import write_diagnosis

HEALTHY, SICK, UNREADABLE, TOO_LITTLE = 0, 1, 2, 3  # exit codes
UNBROKEN = 100_000  # characters


class _Terminal(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would end the program here, with the code that says "findings"


def doctor_command(
    paths: Annotated[
        list[Path],
        typer.Argument(help="logs, run directories, or folders of both; - reads standard input", metavar="PATH..."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="print a JSON object instead of text")] = False,
    config: Annotated[
        Path | None, typer.Option(help="the trainer's config (TOML or JSON), for logs without settings")
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(
            help="what a metric of your own loop is, as in policy_divergence=kl; may be repeated",
            metavar="YOURS=OURS",
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="every finding, and checks without an answer")] = False,
    report: Annotated[
        Path | None, typer.Option(help="also write diagnosis.md and diagnosis.html here", file_okay=False)
    ] = None,
) -> None:
    """Diagnose runs: faults and their causes. Exit code 0: healthy, 1: sick, 2: unreadable, 3: too little to judge."""
    settings: dict[str, Any] = {}
    if config is not None:
        from steadyrl.cli.trainer_config import read_settings  # pydantic takes a third of the time of a small log

        settings = read_settings(config)
    names = _names(name or ())
    by_path: list[list[Diagnosis]] = []  # the runs of each path
    unreadable: dict[str, str] = {}
    for path in paths:
        try:
            with following():
                diagnosed, refused = diagnose_all(path, settings, names)
        except SteadyError as error:  # the other paths are examined all the same
            diagnosed, refused = [], {str(path): str(error)}
        by_path.append(diagnosed)
        unreadable |= {name: " ".join(reason.split()) for name, reason in refused.items()}
    diagnoses = [diagnosis for diagnosed in by_path for diagnosis in diagnosed]
    if diagnoses:
        require_named(names, [diagnosis.run for diagnosis in diagnoses])
    runs_by_path = [[diagnosis.run for diagnosis in diagnosed] for diagnosed in by_path if diagnosed]
    difference: list[str] = []  # why two runs, or the runs of two paths, differ, a sentence each
    if len(runs_by_path) == 2 and len(runs_by_path[0]) == len(runs_by_path[1]) and all(map(is_same, *runs_by_path)):
        difference = ["nothing: both are the same log, or copies of it; name two runs to compare them"]
    elif len(runs_by_path) == 2 and min(map(len, runs_by_path)) > 1:
        difference = seeds.sentences(*runs_by_path)
    elif len(diagnoses) == 2:
        difference = sentences(differ(*(diagnosis.run for diagnosis in diagnoses)))
    _print(diagnoses, difference, unreadable, as_json, full)
    for problem in unreadable.values():
        note(f"error: {problem}")
    if report is not None and diagnoses:
        note(f"report: {write_diagnosis(diagnoses, report)}")
    if unreadable:
        raise typer.Exit(UNREADABLE)
    verdicts = {diagnosis.verdict for diagnosis in diagnoses}
    raise typer.Exit(SICK if "sick" in verdicts else TOO_LITTLE if "too little to judge" in verdicts else HEALTHY)


def _names(assignments: Sequence[str]) -> dict[str, str]:
    names = {}
    for text in assignments:
        yours, equals, ours = text.rpartition("=")
        if not (yours and equals and ours):
            raise ConfigError(f"--name is '{text:.80}'; expected YOURS=OURS, as in policy_divergence=kl")
        meaning_of(ours)
        names[yours] = ours
    return names


def as_record(diagnoses: list[Diagnosis], difference: list[str], unreadable: Mapping[str, str]) -> dict[str, Any]:
    """Return what ``--json`` prints; docs/doctor/README.md describes it."""
    return {
        "runs": [
            {
                "path": diagnosis.run.path,
                "trainer": diagnosis.run.trainer,
                "algorithm": diagnosis.run.algorithm,
                "steps": diagnosis.run.steps,
                "first_step": diagnosis.run.span[0],
                "last_step": diagnosis.run.span[1],
                "verdict": diagnosis.verdict,
                "missing": list(diagnosis.missing),
                "minor": list(diagnosis.minor),
                "judgement": asdict(diagnosis.judgement) if diagnosis.judgement else None,
                "healthy": diagnosis.healthy,
                "findings": [{**as_finding(node.finding), "depth": node.depth} for node in tree(diagnosis.findings)],
                "could_not_tell": [
                    {"check": unknown.check, "why": unknown.message, "would_tell": list(unknown.would_tell)}
                    for unknown in diagnosis.unknown
                ],
                "notes": list(diagnosis.run.notes),
                "unknown_names": list(diagnosis.run.unknown),
            }
            for diagnosis in diagnoses
        ],
        "difference": difference,
        "unreadable": [{"path": path, "error": error} for path, error in unreadable.items()],
    }


def _print(
    diagnoses: list[Diagnosis], difference: list[str], unreadable: Mapping[str, str], as_json: bool, full: bool
) -> None:
    # A log's names may hold what the terminal's encoding has not.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    # Lines in a file are not broken where some terminal's would be.
    console = _Terminal(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else UNBROKEN)
    try:
        if as_json:
            print(json.dumps(as_record(diagnoses, difference, unreadable), indent=2, allow_nan=False))
        else:
            for diagnosis in diagnoses:
                show(console, diagnosis, full)
            if difference:
                show_difference(console, difference)
        sys.stdout.flush()
    except BrokenPipeError:
        # A reader that has seen enough, such as head, changes nothing of the verdict. Python flushes once more when it
        # ends, and would fail then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
