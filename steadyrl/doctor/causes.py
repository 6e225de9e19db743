"""Which finding brings which about, and the order that follows: causes before consequences, the worst first.

Which checks a cause follows from stands in its record (``check.Cause.follows``, ``check.Check.follows``). A finding is
linked to the nearest of them that was found and began in time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from steadyrl.core.types import Finding
from steadyrl.doctor.check import Check
from steadyrl.doctor.series import Run

SEVERITIES = ("critical", "warning", "info")
NO_STEP = -1  # of a finding that holds for the run as a whole: before every step


@dataclass(frozen=True)
class Placed:
    """A finding and its depth: 0 for a root, 1 for what a root brings about, and so on."""

    depth: int
    finding: Finding


def arrange(findings: Sequence[Finding], tolerance: int, checks: Mapping[str, Check[Run]]) -> tuple[Finding, ...]:
    """Return findings with ``follows`` filled in, each cause before its consequences, the worst chain first.

    Args:
        findings: As the checks gave them; what says the same twice is put together.
        tolerance: Steps by which a consequence may show before its cause does: both are dated by blocks of noisy steps.
        checks: By name, in the order of findings that are equally bad and equally old.
    """
    single, taken_along = _weighed(_merged(findings), checks)
    linked: list[Finding] = []
    for finding in single:
        linked.append(replace(finding, follows=_cause(finding, single, linked, tolerance, checks)))
    ranks = {name: rank for rank, name in enumerate(checks)}
    ordered = sorted(linked, key=lambda finding: _rank(finding, ranks))
    placed = [placed.finding for placed in tree(_by_worst(ordered))]
    return tuple(placed if taken_along is None else _with_suspects(placed, taken_along, checks))


def as_record(finding: Finding) -> dict[str, Any]:
    """Return what findings.jsonl and ``--json`` hold of a finding: all that a found one can have."""
    return {name: value for name, value in asdict(finding).items() if name not in ("state", "would_tell")}


def tree(findings: Sequence[Finding]) -> list[Placed]:
    """Return findings with their depths, each after the first finding of the check that it follows.

    Args:
        findings: Among equals in the order wanted; ``follows`` leads round in no circle.
    """
    placed: list[Placed] = []

    def place(finding: Finding, depth: int) -> None:
        placed.append(Placed(depth, finding))
        if finding is first[finding.check]:
            for consequence in findings:
                if consequence.follows == finding.check:
                    place(consequence, depth + 1)

    first = {finding.check: finding for finding in reversed(findings)}
    for finding in findings:
        if finding.follows not in first:
            place(finding, 0)
    return placed


def _merged(findings: Sequence[Finding]) -> list[Finding]:
    """Return one finding per check and cause: the worst and earliest, with the evidence of all."""
    merged: dict[tuple[str, str], Finding] = {}
    for finding in sorted(findings, key=lambda f: (SEVERITIES.index(f.severity), _start(f))):
        worst = merged.setdefault((finding.check, finding.cause), finding)
        more = tuple(line for line in finding.evidence if line not in worst.evidence)
        merged[finding.check, finding.cause] = replace(worst, evidence=worst.evidence + more)
    return list(merged.values())


def _explains(suspicion: Finding, finding: Finding, checks: Mapping[str, Check[Run]]) -> bool:
    """Return whether a finding is a suspicion that explains another one."""
    if (check := checks.get(suspicion.check)) is None or not check.explains:
        return False
    own = next((cause.explains for cause in check.causes if cause.name == suspicion.cause), ())
    return not {finding.check, f"{finding.check}:{finding.cause}"}.isdisjoint((*check.explains, *own))


def _weighed(findings: Sequence[Finding], checks: Mapping[str, Check[Run]]) -> tuple[Sequence[Finding], Finding | None]:
    """Return findings with a suspicion as bad as what it explains.

    Where advice is measured, which the suspicion does not explain, that leads: the suspicion is returned apart.
    """
    suspicion = next((f for f in findings if f.check in checks and checks[f.check].explains), None)
    if suspicion is None:
        return findings, None
    others = [finding for finding in findings if finding is not suspicion]
    if _measured(findings, suspicion, checks):
        return others, suspicion
    explained = [finding.severity for finding in others if _explains(suspicion, finding, checks)]
    worst = min((suspicion.severity, *explained), key=SEVERITIES.index)
    return [*others, replace(suspicion, severity=worst)], None


def _measured(findings: Sequence[Finding], suspicion: Finding, checks: Mapping[str, Check[Run]]) -> list[Finding]:
    """Return the findings that advise what a suspicion does not explain: those that harm, if any does."""
    harms = any(finding.harms for finding in findings)
    advised = [finding for finding in findings if finding.overrides and finding.harms == harms]
    return [f for f in advised if f.check != suspicion.check and not _explains(suspicion, f, checks)]


def _with_suspects(findings: Sequence[Finding], suspicion: Finding, checks: Mapping[str, Check[Run]]) -> list[Finding]:
    """Return findings whose first measured advice takes along what else lies far from usual."""
    lead = _measured([*findings, suspicion], suspicion, checks)[0]
    named = {override.partition("=")[0] for override in lead.overrides}
    more = tuple(override for override in suspicion.overrides if override.partition("=")[0] not in named)
    if not more:
        return list(findings)
    remedy = f"{lead.remedy} Set back what else lies far from usual: {', '.join(more)}."
    together = replace(lead, remedy=remedy, overrides=lead.overrides + more)
    return [together if finding is lead else finding for finding in findings]


def _cause(
    finding: Finding,
    every: Sequence[Finding],
    linked: Sequence[Finding],
    tolerance: int,
    checks: Mapping[str, Check[Run]],
) -> str:
    """Return the check that brings a finding about, or "" where none of those that could was found in time."""
    check = checks.get(finding.check)
    if check is None:
        return ""
    own = next((cause.follows for cause in check.causes if cause.name == finding.cause), ())
    for follows in (*own, *check.follows, *(f.check for f in every if _explains(f, finding, checks))):
        name, _, cause = follows.partition(":")
        if name == finding.check:
            continue
        # What is merely worth knowing, and needs nothing done, explains no harm.
        able = [f for f in every if f.check == name and cause in ("", f.cause) and (f.harms or not finding.harms)]
        in_time = finding.since_step is None or any(_start(f) <= finding.since_step + tolerance for f in able)
        if able and in_time and not _leads_to(name, finding.check, linked):
            return name
    return ""


def _leads_to(check: str, ancestor: str, linked: Sequence[Finding]) -> bool:
    """Return True if ``check`` already follows ``ancestor``, directly or through others."""
    follows = {check}
    while True:
        more = {finding.follows for finding in linked if finding.check in follows} - {"", *follows}
        if not more:
            return ancestor in follows
        follows |= more


def _by_worst(ordered: Sequence[Finding]) -> list[Finding]:
    """Return findings with those first whose chain of consequences holds the worst; else as they were."""
    worst = {id(finding): SEVERITIES.index(finding.severity) for finding in ordered}
    for _ in ordered:  # as many rounds as the longest chain could have links
        for finding in ordered:
            if cause := next((candidate for candidate in ordered if candidate.check == finding.follows), None):
                worst[id(cause)] = min(worst[id(cause)], worst[id(finding)])
    return sorted(ordered, key=lambda finding: worst[id(finding)])


def _rank(finding: Finding, ranks: Mapping[str, int]) -> tuple[int, int, int, str]:
    place = ranks.get(finding.check, len(ranks))
    return SEVERITIES.index(finding.severity), _start(finding), place, finding.cause


def _start(finding: Finding) -> int:
    return NO_STEP if finding.since_step is None else finding.since_step
