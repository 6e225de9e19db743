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
    weighed, suspected = _weighed(_merged(findings), checks)
    # One after the other: a link that closed a circle with those before it is not made.
    linked: list[Finding] = []
    for finding in weighed:
        linked.append(replace(finding, follows=_cause(finding, weighed, linked, tolerance, checks, suspected)))
    order = [*checks, *{finding.check for finding in linked} - checks.keys()]
    ordered = sorted(linked, key=lambda f: (SEVERITIES.index(f.severity), _start(f), order.index(f.check), f.cause))
    return tuple(_with_slowing_roots([placed.finding for placed in tree(_by_worst(ordered))], checks))


def _with_slowing_roots(findings: Sequence[Finding], checks: Mapping[str, Check[Run]]) -> Sequence[Finding]:
    """Return findings of which the first harmful advice takes along that of other roots that slow a run down.

    What may only show that something is wrong, as a suspicion has it, is no such root.
    """
    shows = {name for check in checks.values() for name in check.explains}
    lead = next((f for f in findings if f.harms and f.overrides), None)
    if lead is None:
        return findings
    advice = lead
    for root in findings:
        slows = root.check in checks and checks[root.check].slows and root.check not in shows
        new = tuple(override for override in root.overrides if override not in advice.overrides)
        agrees = new and {*map(_changed, new)}.isdisjoint(map(_changed, advice.overrides))
        if agrees and slows and root.harms and not root.follows:
            remedy = f"{advice.remedy} Beside it, {root.check} asks for {', '.join(new)}."
            advice = replace(advice, remedy=remedy, overrides=advice.overrides + new)
    return [advice if finding is lead else finding for finding in findings]


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
        new_evidence = tuple(line for line in finding.evidence if line not in worst.evidence)
        merged[finding.check, finding.cause] = replace(worst, evidence=worst.evidence + new_evidence)
    return list(merged.values())


def _weighed(findings: Sequence[Finding], checks: Mapping[str, Check[Run]]) -> tuple[Sequence[Finding], dict[str, str]]:
    """Weigh a suspicion against the measured advice, which it does not explain.

    Returns:
        Without such advice the findings, the suspicion being as bad as what it explains; with it the findings without
        the suspicion, whose settings that advice takes along. And what brings about each explained "check:cause": the
        suspicion, or the advice that changes one of its settings.
    """
    suspicion = next((f for f in findings if f.check in checks and checks[f.check].explains), None)
    if suspicion is None or checks[suspicion.check].cause(suspicion.cause).apart:
        return findings, {}
    check = checks[suspicion.check]
    causes = {*check.explains, *check.cause(suspicion.cause).explains}
    suspects = {_changed(override): override for override in suspicion.overrides}
    remaining = [finding for finding in findings if finding is not suspicion]
    harms = any(finding.harms for finding in findings)
    explained, measured, leads = [], [], []
    for finding in remaining:
        on_suspect = not suspects.keys().isdisjoint(map(_changed, finding.overrides))
        if not on_suspect and not causes.isdisjoint((finding.check, f"{finding.check}:{finding.cause}")):
            explained.append(finding)
        elif finding.overrides and finding.harms == harms:
            measured.append(finding)
            leads += [finding.check] if on_suspect else []
    if not measured:
        worst = min((suspicion, *explained), key=lambda finding: SEVERITIES.index(finding.severity)).severity
        remaining.append(replace(suspicion, severity=worst))
        leads = [suspicion.check]
    remaining = [_with_suspects(f, suspects) if f in measured else f for f in remaining]
    return remaining, {f"{f.check}:{f.cause}": leads[0] for f in explained if leads}


def _changed(override: str) -> str:
    return override.partition("=")[0]


def _with_suspects(finding: Finding, suspects: Mapping[str, str]) -> Finding:
    """Return measured advice that takes along what else lies far from usual."""
    added = sorted(suspects[name] for name in suspects.keys() - set(map(_changed, finding.overrides)))
    remedy = f"{finding.remedy} Set back what else lies far from usual: {', '.join(added)}."
    return replace(finding, remedy=remedy, overrides=(*finding.overrides, *added)) if added else finding


def _cause(
    finding: Finding,
    findings: Sequence[Finding],
    linked: Sequence[Finding],
    tolerance: int,
    checks: Mapping[str, Check[Run]],
    suspected: Mapping[str, str],
) -> str:
    """Return the check that brings a finding about, or "" where none of those that could was found in time."""
    check = checks.get(finding.check)
    if check is None:
        return ""
    by_cause = next((cause.follows for cause in check.causes if cause.name == finding.cause), ())
    for follows in (*by_cause, *check.follows, suspected.get(f"{finding.check}:{finding.cause}", "")):
        name, _, cause = follows.partition(":")
        # What is merely worth knowing, and needs nothing done, explains no harm.
        able = [f for f in findings if f.check == name and cause in ("", f.cause) and (f.harms or not finding.harms)]
        in_time = finding.since_step is None or any(_start(f) <= finding.since_step + tolerance for f in able)
        if able and in_time and not _leads_to(name, finding.check, linked):
            return name
    return ""


def _leads_to(check: str, ancestor: str, linked: Sequence[Finding]) -> bool:
    """Return True if ``check`` is ``ancestor``, or follows it already, directly or through others."""
    follows = {check}
    while True:
        parents = {finding.follows for finding in linked if finding.check in follows} - {"", *follows}
        if not parents:
            return ancestor in follows
        follows |= parents


def _by_worst(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings with those first whose chain of consequences holds the worst; else as they were."""
    worst = {id(finding): SEVERITIES.index(finding.severity) for finding in findings}
    for _ in findings:  # as many rounds as the longest chain could have links
        for finding in findings:
            if cause := next((candidate for candidate in findings if candidate.check == finding.follows), None):
                worst[id(cause)] = min(worst[id(cause)], worst[id(finding)])
    return sorted(findings, key=lambda finding: worst[id(finding)])


def _start(finding: Finding) -> int:
    return NO_STEP if finding.since_step is None else finding.since_step
