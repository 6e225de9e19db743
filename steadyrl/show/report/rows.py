"""The autopilot's actions in words: for the report's table and for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from steadyrl.show.review.epochs import finite_number

Line = Mapping[str, Any]


def describe_action(line: Line) -> str:
    """Return what was done and why, one sentence."""
    return f"{_what(line)} ({line.get('why', 'no reason recorded')})"


def action_rows(lines: Sequence[Line]) -> list[dict[str, str]]:
    """Return the rows of the report's table."""
    return [
        {
            "step": f"{line.get('step', '')}",
            "what": _what(line),
            "why": f"{line.get('why', '')}",
            "evidence": "; ".join(str(text) for text in line.get("evidence") or ()),
        }
        for line in lines
    ]


def _what(line: Line) -> str:
    kind, knob = line.get("kind"), _name(line)
    before, after = _number(line.get("before")), _number(line.get("after"))
    if kind == "kept":
        return f"{knob} stays at {after}"
    what = f"{knob} {before} → {after}"
    if kind == "undo":
        what = f"undone: {what}"
    if "back_to" in line:
        what = f"back to step {line['back_to']}; {what}"
    return what if line.get("done") else f"advice: {what}"


def _name(line: Line) -> str:
    knob = f"{line.get('knob')}"
    return "rate multiplier" if knob in ("rate_multiplier", "ease") else knob  # "ease" in runs of earlier versions


def _number(value: Any) -> str:
    number = finite_number(value)
    return "unknown" if number is None else f"{number:.3g}"
