"""The findings of findings.jsonl as the pages show them; lines that no doctor wrote are left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from steadyrl.core.types import Finding
from steadyrl.doctor.causes import SEVERITIES

_LATEST = 10**9  # steps; no run has more


@dataclass(frozen=True)
class Event:
    """A finding that was raised or cleared while a run went on, and the step at which that was."""

    finding: Finding
    step: int
    cleared: bool


def read_finding(line: Mapping[str, Any]) -> Finding | None:
    """Return the finding of a line, or None if it is none."""
    severity, since = line.get("severity"), line.get("since_step")
    if severity not in SEVERITIES:
        return None
    check, cause, message, remedy, source, follows = (
        value if isinstance(value := line.get(name), str) else ""
        for name in ("check", "cause", "message", "remedy", "source", "follows")
    )
    evidence, overrides = (_texts(line.get(name)) for name in ("evidence", "overrides"))
    since_step = since if _is_step(since) else None
    return Finding(check, severity, since_step, cause, message, evidence, remedy, overrides, source, follows)


def events(lines: Iterable[Mapping[str, Any]]) -> list[Event]:
    """Return the findings that were raised and cleared, oldest first."""
    return [
        Event(finding, line["step"], line.get("state") == "cleared")
        for line in lines
        if _is_step(line.get("step")) and (finding := read_finding(line)) is not None
    ]


def standing(raised: Iterable[Event]) -> list[Finding]:
    """Return the findings that were raised and not cleared since, the worst first."""
    standing: dict[tuple[str, str], Finding] = {}
    for event in raised:
        name = event.finding.check, event.finding.cause
        standing.pop(name, None)
        if not event.cleared:
            standing[name] = event.finding
    return sorted(standing.values(), key=lambda finding: SEVERITIES.index(finding.severity))


def _is_step(value: Any) -> bool:
    return type(value) is int and 0 <= value < _LATEST


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(text for text in value if isinstance(text, str)) if isinstance(value, list | tuple) else ()
