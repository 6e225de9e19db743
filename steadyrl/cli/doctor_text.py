"""A diagnosis in a terminal: findings under their causes, what they rest on, what to do, what could not be told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from steadyrl.cli import text_plot
from steadyrl.doctor.causes import Placed, tree
from steadyrl.doctor.check import Unclear
from steadyrl.doctor.deciding import deciding_series
from steadyrl.doctor.examine import CHECKS, Diagnosis, applies, span
from steadyrl.types import Finding

STYLES = {"critical": "bold red", "warning": "bold yellow", "info": "bold cyan"}
INDENT = 4  # columns per link of a chain
NOT_LOGGED = "the log has no "  # how a check says that it lacks what it needs
MOST_UNKNOWN = 5  # names shown of those that could not be placed


def show(console: Console, diagnosis: Diagnosis) -> None:
    """Print a diagnosis."""
    _line(console, _head(diagnosis), style="bold")
    for text in diagnosis.run.notes:
        _line(console, f"note: {text}", 2)
    if diagnosis.run.unknown:
        _line(console, _unknown(diagnosis.run.unknown), 2)
    if not diagnosis.findings:
        _line(console, f"healthy: {_checked(diagnosis)}")
    shown: set[str] = set()
    for placed in tree(diagnosis.findings):
        _finding(console, diagnosis, placed, shown)
    if diagnosis.findings and diagnosis.healthy:
        _line(console, f"healthy, but for what is worth knowing above: {_checked(diagnosis)}")
    if diagnosis.unclear:
        console.print()
        _line(console, "could not tell:", style="bold")
        for text in _gaps(diagnosis.unclear):
            _line(console, text, 2)
    console.print()


def _head(diagnosis: Diagnosis) -> str:
    run = diagnosis.run
    first, last = span(run)
    who = "an unknown trainer" if run.trainer == "unknown" else run.trainer
    return f"{run.path}: {who}{f', {run.algorithm}' if run.algorithm else ''}, {run.steps} steps ({first} to {last})"


def _checked(diagnosis: Diagnosis) -> str:
    silent = {unclear.check for unclear in diagnosis.unclear}
    names = [check.name for check in CHECKS if applies(check, diagnosis.run) and check.name not in silent]
    return f"{len(names)} of {len(CHECKS)} checks could tell and found no harm ({', '.join(names)})"


def _finding(console: Console, diagnosis: Diagnosis, placed: Placed, shown: set[str]) -> None:
    finding, left = placed.finding, INDENT * placed.depth
    console.print()
    title = Text()
    title.append(f"{finding.severity} ", STYLES[finding.severity])
    title.append(_clean(f"{finding.check} ({finding.cause.replace('_', ' ')}), {_since(finding)}"), "bold")
    if finding.follows:
        title.append(_clean(f", caused by {finding.follows}"))
    console.print(Padding(title, (0, 0, 0, left), expand=False))
    left += 2
    _line(console, finding.message, left)
    for text in finding.evidence:
        if text not in finding.message:
            _line(console, f"- {text}", left)
    _line(console, f"do: {finding.remedy}", left)
    if finding.overrides:
        # Not wrapped: it is there to be pasted.
        console.print(Text(" " * left + _clean(f"set: {' '.join(finding.overrides)}")), soft_wrap=True)
    if finding.source:
        _line(console, f"source: {finding.source}", left, "dim")
    _plot(console, diagnosis, finding, left, shown)


def _since(finding: Finding) -> str:
    return "the run as a whole" if finding.since_step is None else f"since step {finding.since_step}"


def _plot(console: Console, diagnosis: Diagnosis, finding: Finding, left: int, shown: set[str]) -> None:
    """Print the series that decides, once for all findings of the same series and step."""
    series = deciding_series(diagnosis.run, finding, CHECKS)
    if series is None or len(series) < 2 or f"{series.source} {finding.since_step}" in shown:
        return
    shown.add(f"{series.source} {finding.since_step}")
    unicode = console.encoding.lower().startswith("utf")
    _line(console, " ".join(part for part in (series.source or series.quantity, series.unit) if part), left)
    for row in text_plot.draw(series, finding.since_step, unicode):
        console.print(Padding(Text(row, no_wrap=True, overflow="crop"), (0, 0, 0, left), expand=False))


def _gaps(unclear: Sequence[Unclear]) -> Iterator[str]:
    """Yield a line per reason: the checks that it silences, and what would let them tell; what is not logged in one."""
    absent: dict[str, list[str]] = {}
    reasons: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for gap in unclear:
        if gap.why.startswith(NOT_LOGGED):
            absent.setdefault(gap.why.removeprefix(NOT_LOGGED), []).append(gap.check)
        else:
            reasons.setdefault((gap.why, gap.would_tell), []).append(gap.check)
    for (why, would_tell), checks in reasons.items():
        told = f"; {', '.join(would_tell)} would tell" if would_tell else ""
        yield f"{', '.join(checks)}: {why}{told}"
    if absent:
        each = (f"{what.replace('|', ' or ')} ({', '.join(checks)})" for what, checks in absent.items())
        yield f"{NOT_LOGGED}{', '.join(each)}"


def _unknown(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_UNKNOWN} more" if len(names) > MOST_UNKNOWN else ""
    return f"not known, and left out: {', '.join(names[:MOST_UNKNOWN])}{more}"


def _line(console: Console, text: str, left: int = 0, style: str = "") -> None:
    console.print(Padding(Text(_clean(text), style), (0, 0, 0, left), expand=False))


def _clean(text: str) -> str:
    """Return text of a log without what could steer a terminal."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
