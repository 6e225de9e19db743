"""What a tracker does with a run. Each stands in a file of its own and imports its library when it is opened."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from steadyrl.core.metrics import describe

SAMPLES = 16  # rollouts in a table


@dataclass(frozen=True)
class Opening:
    """What a tracker needs to begin or go on with a run."""

    run: str  # the run's name, which is its id in the tracker
    settings: Mapping[str, Any]  # every setting, by section
    info: Mapping[str, Any]  # run.json
    folder: Path  # for files of the tracker, below the run directory
    kept: MutableMapping[str, Any]  # what the tracker has to know when the run is resumed; it is saved for it


class Tracker(Protocol):
    """Writes a run into a tracker. Every method may block or fail; it runs in a process of its own.

    A class that is derived from it has the methods that it needs; the others do nothing.
    """

    needs: ClassVar[str] = ""
    """The package that has to be installed; "" for none."""

    anew: bool = False
    """True if everything has to be written again after a resumption, for the tracker cannot go on."""

    def __init__(self, opening: Opening):
        """Begin the run in the tracker, or go on with it."""

    def log(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        """Write metrics of a step, under our names; held-out scores come in a call of their own, with the same step."""

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write a table of rollouts: "problem", "prompt", "completion", "reward"."""

    def finding(self, line: Mapping[str, Any]) -> None:
        """Write that a finding was raised, as an alert where the tracker has such."""

    def close(self, status: str) -> None:
        """End the run: "finished", "interrupted", "failed" or "killed"."""


@runtime_checkable
class Reporting(Protocol):
    """What a tracker may offer: it takes the report of a run, too."""

    def report(self, folder: Path) -> None:
        """Write the files of the run's report, as an artifact where the tracker has such."""


def description(name: str) -> str:
    """Return what a metric means, with its unit; "" if it is not in the catalogue."""
    metric = describe(name)
    if metric is None:
        return ""
    return f"{metric.meaning} Unit: {metric.unit or 'none'}."


def alert_text(line: Mapping[str, Any]) -> str:
    """Return a finding as the text of an alert."""
    onset = f"since step {line['since_step']}: " if isinstance(line.get("since_step"), int) else ""
    return f"{onset}{line.get('message', '')}\n{line.get('remedy', '')}".strip()
