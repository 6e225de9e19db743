"""Writes a diagnosis as pages: analysis by topic, root causes, priorities, overrides, expected outcome, checklist."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from steadyrl.core.rundir import write_text
from steadyrl.core.types import Finding
from steadyrl.doctor.causes import SEVERITIES, tree
from steadyrl.doctor.check import Check
from steadyrl.doctor.examine import BY_NAME, TOPICS, Diagnosis
from steadyrl.doctor.series import Run
from steadyrl.doctor.statistics.signals import head, tail
from steadyrl.show.report import markup
from steadyrl.show.report.diagnosis_pictures import draw
from steadyrl.show.report.write import page

# What a topic's table shows besides what its checks need; families with a "/" are left to the checks.
SHOWN: Mapping[str, tuple[str, ...]] = {
    "Sampling and numbers": ("sampler_gap", "kl_sampler", "importance", "staleness"),
    "KL": ("kl_ref", "kl_coef", "reward_kl", "loss_kl"),
    "Policy": (
        "kl_old",
        "ratio_mean",
        "ratio_max",
        "clip_fraction",
        "loss_policy",
        "loss",
        "grad_norm",
        "learning_rate",
    ),
    "Value": (
        "loss_value",
        "value_error",
        "clip_fraction_value",
        "explained_variance",
        "value_mean",
        "return_mean",
        "return_std",
        "advantage_mean",
    ),
    "Entropy": ("entropy",),
    "Reward": ("reward", "reward_std", "reward_std_within", "reward_min", "reward_max", "no_signal", "reward_unscored"),
    "Length and text": ("length", "truncated", "empty", "repetition"),
    "Speed": ("time_step", "tokens_per_second"),
}


def write_diagnosis(diagnoses: Sequence[Diagnosis], folder: Path | str) -> Path:
    """Write diagnosis.md, diagnosis.html and the pictures of some runs, and return the HTML page's path.

    Args:
        diagnoses: At least one; a section each.
        folder: Made if it is not there; an earlier diagnosis in it is replaced.

    Raises:
        AccessError: The folder cannot be written.
    """
    folder = Path(folder)
    runs = [_section(diagnosis, number) for number, diagnosis in enumerate(diagnoses, 1)]
    for run in runs:
        for picture in run["pictures"]:
            write_text(folder / picture["file"], picture["svg"])
    view = {"runs": runs}
    write_text(folder / "diagnosis.md", page("diagnosis.md.j2", view, markup.markdown))
    write_text(folder / "diagnosis.html", page("diagnosis.html.j2", view, markup.clean))
    return folder / "diagnosis.html"


def overrides(findings: Sequence[Finding]) -> tuple[list[str], list[str]]:
    """Return the settings to paste, and those that contradict a setting of a more urgent finding.

    Args:
        findings: The most urgent first.
    """
    chosen: dict[str, str] = {}
    conflicts = []
    for text in dict.fromkeys(text for finding in findings for text in finding.overrides):
        key, _, value = text.partition("=")
        if chosen.setdefault(key, value) != value:
            conflicts.append(text)
    return [f"{key}={value}" for key, value in chosen.items()], conflicts


def _section(diagnosis: Diagnosis, number: int) -> dict[str, Any]:
    """Return the values of one run that the templates use."""
    run = diagnosis.run
    placed = tree(diagnosis.findings)
    roots = [entry.finding for entry in placed if entry.depth == 0]
    harmful = [finding for finding in roots if _harms(finding, diagnosis.findings)]
    settings, conflicts = overrides(harmful)
    first, last = run.span
    return {
        "path": run.path,
        "facts": f"{run.trainer}{f', {run.algorithm}' if run.algorithm else ''}, {run.steps} steps ({first} to {last})",
        "headline": _headline(diagnosis, harmful),
        "notes": run.notes,
        "topics": [_topic(diagnosis, topic, TOPICS.get(topic, ())) for topic in SHOWN],
        "chains": _chains(diagnosis),
        "priorities": [{"finding": finding, "brings": _brings(finding, diagnosis.findings)} for finding in harmful],
        "overrides": " ".join(shlex.quote(text) for text in settings),
        "others": conflicts,
        "expected": _expected(harmful, diagnosis.findings),
        "checklist": [_item(diagnosis, check) for checks in TOPICS.values() for check in checks if check.applies(run)],
        "unclear": [_gap(gap) for gap in diagnosis.unknown],
        "pictures": _pictures(diagnosis, number),
        "unknown": run.unknown,
    }


def _headline(diagnosis: Diagnosis, harmful: Sequence[Finding]) -> str:
    if not harmful:
        if diagnosis.missing:
            first = f" Look first for {diagnosis.suspicion}." if diagnosis.suspicion else ""
            return f"Too little to judge. Not known: {'; '.join(diagnosis.missing)}.{first}"
        healthy, count = "Healthy: no harmful finding", len(diagnosis.findings)
        minor = f" Not known, of minor weight: {'; '.join(diagnosis.minor)}." if diagnosis.minor else ""
        return (f"{healthy}; {count} for information only." if count else f"{healthy}.") + minor
    worst = harmful[0]
    more = f" ({len(harmful) - 1} further root causes)" if len(harmful) > 1 else ""
    return f"{worst.severity}: {worst.message}{more}"


def _chains(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    """Return every finding with its depth below its root cause, in order."""
    return [{"depth": placed.depth, "finding": placed.finding} for placed in tree(diagnosis.findings)]


def _brings(root: Finding, findings: Sequence[Finding]) -> list[str]:
    """Return the checks whose findings a root causes, at any distance."""
    reached = {root.check}
    for _ in findings:
        reached |= {finding.check for finding in findings if finding.follows in reached}
    return [check for check in dict.fromkeys(finding.check for finding in findings) if check in reached - {root.check}]


def _harms(root: Finding, findings: Sequence[Finding]) -> bool:
    chain = {root.check, *_brings(root, findings)}
    return root.harms or any(f.harms and f.check in chain and f.follows for f in findings)


def _topic(diagnosis: Diagnosis, topic: str, checks: Sequence[Check[Run]]) -> dict[str, Any]:
    names = {check.name for check in checks}
    findings = [finding for finding in diagnosis.findings if finding.check in names]
    silent = [gap for gap in diagnosis.unknown if gap.check in names]
    word = "not judged" if not checks else "not measured" if len(silent) == len(checks) else "fine"
    if any(finding.check in names for finding in diagnosis.uneven):
        word = "not throughout"
    if findings:
        word = SEVERITIES[min(SEVERITIES.index(finding.severity) for finding in findings)]
    rows = _rows(diagnosis.run, SHOWN[topic])
    return {"name": topic, "word": word, "rows": rows, "findings": findings, "unclear": silent}


def _rows(run: Run, quantities: Sequence[str]) -> list[dict[str, Any]]:
    """Return the level at the start and at the end, and the range, of each logged series."""
    logged = [series.finite() for quantity in quantities for series in run.series.get(quantity, ())]
    return [
        {
            "name": series.source or series.quantity,
            "unit": series.unit,
            "start": head(series),
            "end": tail(series),
            "low": float(series.values.min()),
            "high": float(series.values.max()),
            "points": len(series),
        }
        for series in logged
        if len(series)
    ]


def _expected(harmful: Sequence[Finding], findings: Sequence[Finding]) -> list[str]:
    """Return what should be seen once the root causes are fixed."""
    checks = [check for finding in harmful for check in (finding.check, *_brings(finding, findings))]
    return [BY_NAME[check].healthy for check in dict.fromkeys(checks) if check in BY_NAME]


def _item(diagnosis: Diagnosis, check: Check[Run]) -> dict[str, str]:
    """Return a line of the checklist: pass, fail, not throughout, or unknown."""
    findings = [finding for finding in diagnosis.findings if finding.check == check.name]
    gaps = [_gap(gap)["why"] for gap in diagnosis.unknown if gap.check == check.name]
    if any(finding.harms for finding in findings):
        word, why = "fail", findings[0].message
    elif findings:
        word, why = "info", findings[0].message
    elif uneven := [finding for finding in diagnosis.uneven if finding.check == check.name]:
        word, why = "not throughout", "; ".join(uneven[0].evidence)
    elif gaps:
        word, why = "unknown", gaps[0]
    else:
        word, why = "pass", ""
    return {"check": check.name, "word": word, "expected": check.healthy, "why": why}


def _gap(gap: Finding) -> dict[str, str]:
    """Return what could not be told, with alternatives in words."""
    would_tell = ", ".join(gap.would_tell).replace("|", " or ")
    return {"check": gap.check, "why": gap.message.replace("|", " or "), "would_tell": would_tell}


def _pictures(diagnosis: Diagnosis, number: int) -> list[dict[str, Any]]:
    pictures = []
    for place, picture in enumerate(draw(diagnosis), 1):
        name = f"run{number}-{place}"
        pictures.append(
            {
                "file": f"{name}.svg",
                "svg": picture.svg,
                "inline": markup.inline_svg(picture.svg, name),
                "source": picture.source,
                "shows": ", ".join(dict.fromkeys(finding.check for finding in picture.findings)),
            }
        )
    return pictures
