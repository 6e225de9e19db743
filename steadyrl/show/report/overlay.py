"""Several runs in one report: their curves over one another, how they differ, and their numbers."""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path

from steadyrl.core.errors import ConfigError, RunError
from steadyrl.core.rundir import RunDir, write_text
from steadyrl.core.words import counted
from steadyrl.doctor.examine import diagnose
from steadyrl.show.page import html, markdown
from steadyrl.show.page.records import Heading, Picture, Record, Table, numbers
from steadyrl.show.report.differences import Compared, conclusions, differences
from steadyrl.show.report.pictures.curves import curves, overlay

MOST_RUNS = 26  # a letter each


def write_overlay(runs: Sequence[RunDir], to: Path) -> Path:
    """Write overlay.md, overlay.svg and overlay.html of two or more runs, and return the page's path.

    Raises:
        ConfigError: Too many runs, or one twice.
        RunError: A run has no steps yet, or a file of it is damaged.
        AccessError: The folder cannot be written.
    """
    if len({run.path.resolve() for run in runs}) < len(runs):
        raise ConfigError("a run is given twice; give different ones")
    if len(runs) > MOST_RUNS:
        raise ConfigError(f"got {len(runs)} runs; expected at most {MOST_RUNS}")
    title = f"{counted(len(runs), 'run')} over one another"
    letters = string.ascii_uppercase[: len(runs)]
    metrics = {letter: [run.metrics()] for letter, run in zip(letters, runs, strict=True)}
    for run, (records,) in zip(runs, metrics.values(), strict=True):
        if not records:
            raise RunError(f"the run '{run.path}' has no steps yet; write the report when its first step is done")
    compared = [_compared(run, letter) for run, letter in zip(runs, letters, strict=True)]
    rows = [
        (letter, run.path.name, run.status, f"{len(metrics[letter][0])}")
        for run, letter in zip(runs, letters, strict=True)
    ]
    svg, label = overlay(metrics), "Every topic that was measured, one line per run"
    page: list[Record] = [
        Heading(title, 1),
        Table(("run", "name", "status", *numbers("steps")), rows),
        *conclusions(compared),
        Heading("Curves"),
        curves(metrics, "overlay.html"),
        *([Picture("overlay.svg", label, "", (svg,))] if svg is not None else []),
        *differences(compared),
    ]
    if svg is not None:
        write_text(to / "overlay.svg", svg)
    write_text(to / "overlay.md", markdown.page(page))
    write_text(to / "overlay.html", html.page(title, page))
    return to / "overlay.html"


def _compared(run: RunDir, letter: str) -> Compared:
    (diagnosis,) = diagnose(run.path)
    return Compared(letter, run, lambda: diagnosis.run, diagnosis.harmful)
