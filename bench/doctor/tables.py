"""The report of the fault benchmark: figures to Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scoring import HEALTHY, Judged, Right, confusion, fault_row, first_said, healthy_row, totals

HALVES = {
    "last": "made last, after the rules were final",
    "fresh": "held out at first, false alarms learned from after one look",
    "heldout": "held out at first, its misses learned from since",
    "checked": "held out at first, learned from after one look",
    "tune": "what the rules were made with",
}
NOT_COMPARED = (
    "microsoft/post-training-toolkit is not compared. PyPI has one version under its name, "
    "0.0.1, whose only module is 22 bytes long, so it cannot be installed from there. If we "
    "wrote its rules anew, they would not be its own."
)
HOW = (
    "Runs are split by whole tasks. The doctor's rules and thresholds were tuned on one part, so "
    "its figures there are those of the runs that taught the rules. A second part was held out "
    "and examined once, with an earlier version: 81 of its 84 faulty runs were named correctly, "
    "and its 18 healthy ones had 9 warnings and 2 critical findings. These faults were fixed, so "
    "this part has also taught the rules. The part that was held out longest was made after the "
    "last change of that time, with other tasks and rewards, and was examined once. Logs that "
    "other people published taught the rules since (doctor_wild.md), with its figures in sight. "
    "Then came two more tasks, with other learning rates and schedules, batches of half the size "
    "and three more faults, whose right answers were written down before. Of their 31 faulty and 18 "
    "healthy runs the first 10 and 3 of a random order were examined once: all 10 faults were named, "
    "and one of the healthy runs had two warnings. These were fixed, and a quarter of the doctor's "
    "code was taken out, by its figures on all runs that it knew. The next 4 and 5 were examined once: "
    "all 4 faults were named first, no healthy run had an alarm at its end, and 4 had one in passing, of "
    "which two kinds were fixed. These parts were examined again with the rules as they are then; of the "
    "others it was seen that nothing changed at the end of any run. Runs that are made after that, the next "
    "of a random order, are called made last; there are none yet. On 2026-11-27 rules for rates that are far too "
    "low and for the order of findings were changed with the misses of all parts in sight, so that the part that "
    "was held out has taught rules, too. At first sight 28 of its 29 faulty runs were named, and 8 of the 11 of "
    "TRL. One healthy run of TRL has a warning since a share cut off that grows beyond a quarter is one whatever "
    "the reward does. That run has no KL penalty. Trained on to step 160, it has no answer from step 70 on that "
    "ends, and its answers are unrelated words, while its reward rises from 1.30 to 1.41, of 1.5 at most. "
    "With another seed the answers end by themselves. It stays labelled healthy, for nothing was injected. The "
    "machine was shared with other work. The logs therefore contain no times, and throughput is not judged. rlwatch "
    "was run unchanged."
)
MAPPING = (
    "rlwatch {version} was given these metrics step by step, with its default settings: entropy "
    "= `entropy` (exact, nats per token), kl_divergence = `kl_ref_k1` (nats per token), "
    "reward_mean, reward_std, advantage_std, loss = `loss/total`, grad_norm, clip_fraction and "
    "learning_rate. For TRL's logs the same quantities were given under TRL's names. Its "
    "detectors warm up for 20 to 50 steps, which favours long runs. It names symptoms, not "
    "causes. Here 'named' therefore counts detectors that fit the fault's effect on the log, "
    "interpreted generously (`bench/doctor/expected.py`), and 'precision' takes each of its "
    "alerts as a claim of every fault that it fits."
)


def half(runs: Sequence[Judged], right: Right) -> dict[str, Any]:
    """Return the figures of one part of the runs."""
    rows = [fault_row(fault, runs, right) for fault in sorted({run.fault for run in runs} - {HEALTHY})]
    return {
        "faults": rows,
        "totals": totals(rows),
        "healthy": healthy_row(runs),
        "confusion": confusion([run for run in runs if run.fault != HEALTHY], first_said),
    }


def document(report: Mapping[str, Any]) -> str:
    """Return the whole report."""
    machine = report["machine"]
    where = f"{machine['system']} {machine['processor']}, {machine['cores']} cores"
    parts = [
        "# Faults injected into real runs: what the doctor says",
        f"{report['date']}, {where}; `{report['command']}`",
        HOW,
        _legend(),
    ]
    for who, corpora in (("The doctor", report["doctor"]), ("rlwatch", report.get("rlwatch", {}))):
        if corpora:
            parts += [f"## {who}", *([MAPPING.format(version=report["rlwatch_version"])] if who == "rlwatch" else [])]
        for corpus, halves in corpora.items():
            for name in HALVES:
                parts += _half(f"Logs of {corpus}, {HALVES[name]}", halves[name])
    parts += ["## Others", NOT_COMPARED, *_single_runs(report["runs"])]
    return "\n\n".join(parts) + "\n"


def short(report: Mapping[str, Any]) -> str:
    """Return the figures that count, a line for each part."""
    lines = []
    for who in ("doctor", "rlwatch"):
        for corpus, halves in report.get(who, {}).items():
            for name, found in halves.items():
                lines.append(f"{who}, {corpus}, {name}: {_summary(found)}")
    return "\n".join(lines)


def _legend() -> str:
    return (
        "*detected*: there is a warning or worse that is not dated well before the fault. *named*: "
        "one of these alarms names the right cause (the right answers were written down beforehand, "
        "`bench/doctor/expected.py`). *first*: the alarm that is shown first names it. *precision*: "
        "among the runs for which this fault is claimed, the share where the claim is right. "
        "*dated*: number of steps from the onset to the step to which the right alarm is dated in "
        "hindsight (median). *reported*: number of steps of the fault before the right alarm was "
        "raised for the first time (median). *early*: alarms that are dated before the fault."
    )


def _summary(found: Mapping[str, Any]) -> str:
    total, healthy = found["totals"], found["healthy"]
    text = f"{total['runs']} faulty runs, detected {_share(total, 'detected')}, named {_share(total, 'named')}"
    if healthy["runs"]:
        text += (
            f"; {healthy['runs']} healthy runs, {healthy['warnings']} warnings, {healthy['criticals']} critical, "
            f"{healthy['alarms_per_1000_steps']:.2g} alarms per 1000 steps"
        )
    return text


def _share(total: Mapping[str, Any], name: str) -> str:
    return f"{total[name]} ({total[f'{name}_share']:.0%})" if total["runs"] else "0"


def _half(title: str, found: Mapping[str, Any]) -> list[str]:
    if not found["totals"]["runs"] and not found["healthy"]["runs"]:
        return []
    rows = [
        [
            row["fault"],
            row["runs"],
            row["detected"],
            row["named"],
            row["first"],
            _number(row["precision"], ".2f"),
            _number(row["dated"], "g"),
            _number(row["told"], "g"),
            row["early"],
        ]
        for row in found["faults"]
    ]
    names = ["fault", "runs", "detected", "named", "first", "precision", "dated", "reported", "early"]
    confused = [
        [fault, "; ".join(f"{said} ({count})" for said, count in counts.items())]
        for fault, counts in found["confusion"].items()
    ]
    healthy = found["healthy"]
    alarmed = ", ".join(f"{name} ({count})" for name, count in healthy["by_check"].items()) or "none"
    at_any_time = healthy["runs_with_alarms_at_any_time"]
    return [
        f"### {title}",
        _summary(found) + ".",
        _table(names, rows),
        f"Healthy runs with an alarm: {healthy['runs_with_alarms']} at the end, {at_any_time} at any time while they "
        f"ran. What was raised: {alarmed}.",
        "What was said first of each fault:",
        _table(["fault", "said first"], confused),
    ]


def _single_runs(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [[run["run"], run["onset"], run["steps"], "; ".join(run["alarms"]) or "-"] for run in runs]
    return [
        "## Single runs that the rules were made with",
        "w: warning, c: critical; check/cause@step.",
        _table(["run", "onset", "steps", "alarms in order"], rows),
    ]


def _table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join('-' if cell is None else str(cell) for cell in line)} |" for line in lines)


def _number(value: float | None, form: str) -> str | None:
    return None if value is None else format(value, form)
