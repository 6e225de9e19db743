"""The findings of findings.jsonl as the pages show them; lines that no doctor wrote are left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from steadyrl.core.types import Finding
from steadyrl.doctor.causes import SEVERITIES, as_record, tree

_LATEST = 10**9  # steps; no run has more
DEEPEST = 3  # that a consequence is moved in


def finding_view(line: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a page shows of a line of findings.jsonl, or None if it is none."""
    severity, step, since = line.get("severity"), line.get("step"), line.get("since_step")
    if severity not in SEVERITIES or not (step is None or _is_step(step)):
        return None
    return {
        **{name: _text(line.get(name)) for name in ("check", "cause", "message", "remedy", "source", "follows")},
        **{name: _texts(line.get(name)) for name in ("evidence", "overrides")},
        "severity": severity,
        "since": since if _is_step(since) else None,
        "step": step,
        "cleared": line.get("state") == "cleared",
    }


def finding_views(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the findings that were raised and cleared, with their steps, oldest first."""
    views = (finding_view(line) for line in lines if line.get("step") is not None)
    return [view for view in views if view is not None]


def in_tree(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Return what a page shows of the findings of a diagnosis, causes before consequences, each with its depth."""
    placed = ((placed.depth, finding_view(as_record(placed.finding))) for placed in tree(findings))
    return [{**view, "depth": min(depth, DEEPEST)} for depth, view in placed if view is not None]


def standing(views: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the findings that were raised and not cleared since, the worst first."""
    raised: dict[tuple[str, str], dict[str, Any]] = {}
    for view in views:
        raised.pop((view["check"], view["cause"]), None)
        if not view["cleared"]:
            raised[view["check"], view["cause"]] = view
    return sorted(raised.values(), key=lambda view: SEVERITIES.index(view["severity"]))


def _is_step(value: Any) -> bool:
    return type(value) is int and 0 <= value < _LATEST


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list | tuple) else []
