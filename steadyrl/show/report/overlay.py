"""Writes one report of several runs: what differs in their settings, their curves over one another, their numbers."""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steadyrl.core.errors import ConfigError, RunError
from steadyrl.core.rundir import RunDir, write_text
from steadyrl.lab.measure import heldout_mean, measure
from steadyrl.lab.study.file import Rule
from steadyrl.lab.study.plan import flat
from steadyrl.show.page import markup
from steadyrl.show.report.curves import curves, script, style
from steadyrl.show.report.study import TAKES, TOPICS
from steadyrl.show.report.study_pictures import overlay
from steadyrl.show.report.write import page

MOST_RUNS = 26  # a letter each
RULE = Rule()  # how many steps are the start and the end: as in a study that says nothing else
_OF_THE_PLACE = ("run.folder",)


def write_overlay(runs: Sequence[RunDir], to: Path) -> Path:
    """Write overlay.md, overlay.svg and overlay.html, and return the page's path.

    Args:
        runs: Two or more.
        to: The folder; made if it is not there.

    Raises:
        ConfigError: Too many runs, or one twice.
        RunError: A run has no steps yet.
        AccessError: The folder cannot be written.
    """
    if len({run.path.resolve() for run in runs}) < len(runs):
        raise ConfigError("a run is given twice; give different ones")
    if len(runs) > MOST_RUNS:
        raise ConfigError(f"got {len(runs)} runs; expected at most {MOST_RUNS}")
    letters = string.ascii_uppercase[: len(runs)]
    records = {letter: [run.metrics()] for letter, run in zip(letters, runs, strict=True)}
    for run, (several,) in zip(runs, records.values(), strict=True):
        if not several:
            raise RunError(f"the run '{run.path}' has no steps yet; write the report when its first step is done")
    svg = overlay(records)
    view = {
        "runs": [
            {"letter": letter, "name": run.path.name, "status": run.status, "steps": len(records[letter][0])}
            for letter, run in zip(letters, runs, strict=True)
        ],
        "letters": list(letters),
        "settings": _settings(runs),
        "topics": _topics(runs),
        "picture": svg is not None,
    }
    if svg is not None:
        write_text(to / "overlay.svg", svg)
    write_text(to / "overlay.md", page("overlay.md.j2", view, markup.markdown))
    more = {
        "inline": markup.inline_svg(svg, "overlay") if svg is not None else None,
        "data": curves(records),
        "script": script(),
        "style": style(),
    }
    write_text(to / "overlay.html", page("overlay.html.j2", {**view, **more}, markup.clean))
    return to / "overlay.html"


def _settings(runs: Sequence[RunDir]) -> list[dict[str, Any]]:
    """Return the settings in which the runs differ."""
    all_of_them = [flat(run.resolved()) for run in runs]
    keys = dict.fromkeys(key for settings in all_of_them for key in settings)
    rows = []
    for key in keys:
        values = [settings.get(key) for settings in all_of_them]
        if key not in _OF_THE_PLACE and any(value != values[0] for value in values):
            rows.append({"key": key, "values": ["not set" if value is None else f"{value}" for value in values]})
    return rows


def _topics(runs: Sequence[RunDir]) -> list[dict[str, Any]]:
    """Return the numbers by topic, one column per run; the held-out scores first."""
    score_rows = [
        {"what": f"held-out score, {when} training", "values": [heldout_mean(run, when, "metric") for run in runs]}
        for when in ("before", "after")
    ]
    topics = [
        {"name": "Held-out problems", "rows": [row for row in score_rows if any(v is not None for v in row["values"])]}
    ]
    read = [(run, run.metrics()) for run in runs]
    for topic, measures in TOPICS.items():
        rows = [
            {
                "what": f"{metric}, {TAKES[take]}",
                "values": [measure(*run_metrics, metric, take, RULE) for run_metrics in read],
            }
            for metric, take in measures
        ]
        topics.append({"name": topic, "rows": [row for row in rows if any(v is not None for v in row["values"])]})
    return [topic for topic in topics if topic["rows"]]
