"""A diagnosis in a terminal: the verdict, the leading cause and what to change on one screen; all else on request."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import takewhile

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from steadyrl.cli import text_plot
from steadyrl.core.types import Finding
from steadyrl.doctor.causes import Placed, tree
from steadyrl.doctor.check import in_words
from steadyrl.doctor.deciding import deciding_series
from steadyrl.doctor.examine import BY_NAME, CHECKS, Diagnosis
from steadyrl.doctor.readers.tables import OTHERS
from steadyrl.doctor.series import NUMBERED, Run
from steadyrl.doctor.statistics.readings import ends, goals, number
from steadyrl.show.page.records import TONES
from steadyrl.show.page.terminal import STYLES

INDENT = 4  # columns per link of a chain
NOT_LOGGED = "the log has no "  # how a check says that it lacks what it needs
COURSE = ("reward", "kl_ref", "entropy", "length", "truncated", "grad_norm")  # what a reader looks at first
MOST_HELD_OUT = 2
MOST_OTHERS = 6  # further findings named in the short answer


def show(console: Console, diagnosis: Diagnosis, full: bool = True) -> None:
    """Print a diagnosis: all of it, or what fits on a screen."""
    _line(console, f"{diagnosis.run.path}: {diagnosis.run.facts}", style="bold")
    # Which rows a text's are counts in the short answer, too.
    for text in diagnosis.run.notes if full else (note for note in diagnosis.run.notes if note.startswith(OTHERS)):
        _line(console, f"note: {text}", 2)
    # Of a loop of somebody's own, what was left out may be what would have shown the fault.
    if (names := diagnosis.run.unknown) and (full or diagnosis.run.trainer == "unknown"):
        hint = f"--name {shlex.quote(f'{names[0]}=OURS')} says what one is"
        _line(console, f"{diagnosis.run.left_out}; {hint}", 2)
    _line(console, _verdict(diagnosis, full), style=_style(diagnosis.verdict))
    if diagnosis.judgement:
        unknown = {} if diagnosis.judgement.supervised else {"not known": "; ".join(diagnosis.missing)}
        for heading, text in {**diagnosis.judgement.reasons, **unknown}.items():
            _line(console, f"{heading}: {text}", 2)
    if not full:
        _show_short(console, diagnosis)
        return
    _show_course(console, diagnosis.run)
    printed: set[str] = set()
    for node in tree(diagnosis.findings):
        _show_finding(console, diagnosis, node, printed)
    if diagnosis.unknown:
        console.print()
        _line(console, "could not tell:", style="bold")
        for text in _unknown_lines(diagnosis.unknown):
            _line(console, text, 2)
    console.print()


def _show_course(console: Console, run: Run) -> None:
    """Print how the first things to look at went, under the log's own names; nothing of a single row."""
    scores = {series.values.tobytes(): series for series in goals(run, "heldout/").values() if np.ptp(series.values)}
    courses = [*scores.values()][:MOST_HELD_OUT]
    courses += [series for name in COURSE if (series := run.get(name)) is not None]
    if text := ", ".join(
        f"{s.source or s.quantity} {' -> '.join(map(number, ends(s)))}" for s in courses if len(s) > 1
    ):
        _line(console, f"course, first rows to last: {text}", 2)


def _show_short(console: Console, diagnosis: Diagnosis) -> None:
    """Print the leading cause with its evidence and what to change; the others by name."""
    harmful = [finding for finding in diagnosis.findings if finding.harms]
    if harmful:
        # The first link of the worst chain is its root, which may itself be worth knowing only.
        lead = diagnosis.findings[0]
        _line(console, f"{_name(diagnosis, lead)}: {lead.message}", 2, _style(lead.severity))
        evidence = next((text for text in lead.evidence if text not in lead.message), "")
        if evidence:  # what the message holds already is not said twice
            _line(console, f"seen: {evidence}", 2)
        _line(console, f"do: {lead.remedy}", 2)
        for text in diagnosis.run.changes(lead):
            _line(console, f"change: {text}", 2)
        # A check may find several things, of which its name is said once.
        further = [node for node in tree(diagnosis.findings)[1:] if node.finding.check != lead.check]
        chain = [node.finding.check for node in takewhile(lambda node: node.depth, further)]
        roots = [node.finding.check for node in further if node.finding.harms and not node.depth]
        for word, names in (("caused by it", list(dict.fromkeys(chain))), ("also found", list(dict.fromkeys(roots)))):
            if names:
                surplus = f" and {len(names) - MOST_OTHERS} more" if len(names) > MOST_OTHERS else ""
                _line(console, f"{word}: {', '.join(names[:MOST_OTHERS])}{surplus}", 2)
    notable = [finding for finding in diagnosis.findings if finding.severity == "info" and not finding.follows]
    for finding in notable[:MOST_OTHERS]:
        _line(console, f"worth knowing: {finding.check} ({finding.cause.replace('_', ' ')}): {finding.message}", 2)
    _show_course(console, diagnosis.run)
    _line(console, "everything else: --full", 2, "dim")
    console.print()


def show_difference(console: Console, reasons: Sequence[str]) -> None:
    """Print what differs between two runs, or two sets of them."""
    _line(console, "what differs, and why:", style="bold")
    for text in reasons:
        _line(console, text, 2)
    console.print()


def _style(word: str) -> str:
    return STYLES[TONES[word]]


def _verdict(diagnosis: Diagnosis, full: bool) -> str:
    if diagnosis.judgement:
        return diagnosis.judgement.sentence
    if diagnosis.verdict == "sick":
        return "sick"
    names = f" ({', '.join(finding.check for finding in diagnosis.fine)})" if full else ""
    minor = f"; not known, and of minor weight {diagnosis.rise}: {'; '.join(diagnosis.minor)}"
    summary = f"healthy: {len(diagnosis.fine)} of {len(CHECKS)} checks could tell and found no harm{names}"
    return summary + (minor if diagnosis.minor else "")


def _show_finding(console: Console, diagnosis: Diagnosis, node: Placed, printed: set[str]) -> None:
    """Print a finding without what others have said: evidence, advice, and charts that were shown."""
    finding, indent = node.finding, INDENT * node.depth
    console.print()
    title = Text()
    title.append(f"{finding.severity} ", _style(finding.severity))
    title.append(_clean(_name(diagnosis, finding)), "bold")
    if finding.follows:
        title.append(_clean(f", caused by {finding.follows}"))
    console.print(Padding(title, (0, 0, 0, indent), expand=False))
    indent += 2
    _line(console, finding.message, indent)
    for text in finding.evidence:
        if text not in finding.message and text not in printed:
            _line(console, f"- {text}", indent)
    _line(console, f"do: {'as above' if finding.remedy in printed else finding.remedy}", indent)
    if finding.overrides:
        # Not wrapped: it is there to be pasted.
        console.print(Text(" " * indent + _clean(f"set: {' '.join(finding.overrides)}")), soft_wrap=True)
    if finding.source:
        _line(console, f"source: {finding.source}", indent, "dim")
    series = deciding_series(diagnosis.run, finding, BY_NAME)  # shown once for all findings of the same step
    printed |= {*finding.evidence, finding.remedy}
    if series is None or len(series) < 2 or f"{series.source} {finding.since_step}" in printed:
        return
    printed.add(f"{series.source} {finding.since_step}")
    source, unit = series.source or series.quantity, series.unit
    _line(console, source if unit in source else f"{source} ({unit})", indent)
    for row in text_plot.draw(series, finding.since_step, console.encoding.lower().startswith("utf")):
        console.print(Padding(Text(row, no_wrap=True, overflow="crop"), (0, 0, 0, indent), expand=False))


def _name(diagnosis: Diagnosis, finding: Finding) -> str:
    """Return a check with its cause and where the finding begins."""
    unit = "row" if NUMBERED in diagnosis.run.notes else "step"
    onset = "the run as a whole" if finding.since_step is None else f"since {unit} {finding.since_step}"
    return f"{finding.check} ({finding.cause.replace('_', ' ')}), {onset}"


def _unknown_lines(unknown: Sequence[Finding]) -> Iterator[str]:
    """Yield a line per reason: the checks that it silences, and what would let them tell; what is not logged in one."""
    by_quantity: dict[str, list[str]] = {}
    by_reason: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for finding in unknown:
        if finding.message.startswith(NOT_LOGGED):
            by_quantity.setdefault(finding.message.removeprefix(NOT_LOGGED), []).append(finding.check)
        else:
            by_reason.setdefault((finding.message, finding.would_tell), []).append(finding.check)
    for (reason, would_tell), checks in by_reason.items():
        unnamed = [words for words in map(in_words, would_tell) if words not in reason]  # what is lacking is said once
        hint = f"; {', '.join(unnamed)} would tell" if unnamed else ""
        yield f"{', '.join(checks)}: {reason}{hint}"
    if by_quantity:
        quantities = (f"{quantity} ({', '.join(checks)})" for quantity, checks in by_quantity.items())
        yield f"{NOT_LOGGED}{'; '.join(quantities)}"


def _line(console: Console, text: str, indent: int = 0, style: str = "") -> None:
    console.print(Padding(Text(_clean(text), style), (0, 0, 0, indent), expand=False))


def _clean(text: str) -> str:
    """Return text of a log without what could steer a terminal."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
