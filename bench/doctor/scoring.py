"""From alarms and labels to figures: what was detected, named, dated, and raised for nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from expected import Pair, fits

HEALTHY = "healthy"
# Onsets are dated by blocks of a tenth of a run: an alarm up to so much before the fault is of the fault.
TOLERANCE_SHARE = 0.1

Label = Mapping[str, Any]
Right = Mapping[str, tuple[Pair, ...]]


@dataclass(frozen=True)
class Alarm:
    """A warning or worse.

    Attributes:
        check, cause: What it says.
        severity: "warning" or "critical".
        since: The step that it is dated to; None for the run as a whole.
    """

    check: str
    cause: str
    severity: str
    since: int | None

    @property
    def pair(self) -> Pair:
        """What it is judged by."""
        return self.check, self.cause

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.check}: {self.cause}" if self.cause else self.check


@dataclass(frozen=True)
class Judged:
    """A run and what was said of it.

    Attributes:
        label: See ``store``.
        alarms: In the order in which they are shown.
        told: Steps after which the run so far had a right alarm for the first time; None if never or not tried.
        live: Whether any alarm was raised at any time, at the end or before; for healthy runs.
    """

    label: Label
    alarms: tuple[Alarm, ...]
    told: int | None = None
    live: bool = False

    @property
    def fault(self) -> str:
        """Its name, or "healthy"."""
        return str(self.label["fault"])

    @property
    def own(self) -> tuple[Alarm, ...]:
        """Alarms that can be of the fault: none dated well before it."""
        earliest = (self.label["onset"] or 0) - TOLERANCE_SHARE * self.label["steps"]
        return tuple(alarm for alarm in self.alarms if alarm.since is None or alarm.since >= earliest)


def right_alarms(run: Judged, right: Right) -> tuple[Alarm, ...]:
    """Return the alarms that name the run's fault."""
    return tuple(alarm for alarm in run.own if fits(alarm.pair, right[run.fault]))


def fault_row(fault: str, runs: Sequence[Judged], right: Right) -> dict[str, Any]:
    """Return the figures of one fault.

    Args:
        fault: Which.
        runs: All runs of the split, healthy ones and other faults among them: precision needs them.
        right: Right answers by fault.
    """
    sick = [run for run in runs if run.fault == fault]
    named = [run for run in sick if right_alarms(run, right)]
    claimed = [run for run in runs if any(fits(alarm.pair, right[fault]) for alarm in run.alarms)]
    justified = [run for run in claimed if _justified(run, right[fault], right)]
    dated = [
        min(since) - run.label["onset"]
        for run in named
        if (since := [alarm.since for alarm in right_alarms(run, right) if alarm.since is not None])
    ]
    told = [run.told - run.label["onset"] for run in named if run.told is not None]
    return {
        "fault": fault,
        "runs": len(sick),
        "detected": sum(bool(run.own) for run in sick),
        "named": len(named),
        "first": sum(run.alarms[0] in right_alarms(run, right) for run in named),
        "precision": len(justified) / len(claimed) if claimed else None,
        "dated": median(dated) if dated else None,
        "told": median(told) if told else None,
        "early": sum(len(run.alarms) - len(run.own) for run in sick),
    }


def _justified(run: Judged, claim: tuple[Pair, ...], right: Right) -> bool:
    """Return True if an alarm that claims a fault is right for the fault that the run has."""
    return run.fault != HEALTHY and any(fits(alarm.pair, claim) for alarm in right_alarms(run, right))


def healthy_row(runs: Sequence[Judged]) -> dict[str, Any]:
    """Return the figures of the healthy runs."""
    well = [run for run in runs if run.fault == HEALTHY]
    alarms = [alarm for run in well for alarm in run.alarms]
    steps = sum(run.label["steps"] for run in well)
    return {
        "runs": len(well),
        "steps": steps,
        "warnings": sum(alarm.severity == "warning" for alarm in alarms),
        "criticals": sum(alarm.severity == "critical" for alarm in alarms),
        "runs_with_alarms": sum(bool(run.alarms) for run in well),
        "runs_with_alarms_at_any_time": sum(run.live for run in well),
        "alarms_per_1000_steps": 1000 * len(alarms) / steps if steps else None,
        "warnings_per_10_runs": 10 * len(alarms) / len(well) if well else None,
        "by_check": dict(Counter(alarm.name for alarm in alarms).most_common()),
    }


def totals(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return sums over the faults, and shares."""
    found = {name: sum(row[name] for row in rows) for name in ("runs", "detected", "named", "first", "early")}
    shares = {f"{name}_share": found[name] / found["runs"] for name in ("detected", "named", "first") if found["runs"]}
    return found | shares


def confusion(runs: Sequence[Judged], said: Callable[[Judged], str]) -> dict[str, dict[str, int]]:
    """Return how often each fault (rows) was called what (columns)."""
    table: dict[str, Counter[str]] = {}
    for run in runs:
        table.setdefault(run.fault, Counter())[said(run)] += 1
    return {fault: dict(counts.most_common()) for fault, counts in sorted(table.items())}


def first_said(run: Judged) -> str:
    """Return what a run's first alarm says."""
    return run.alarms[0].name if run.alarms else "nothing"
