"""Writes the report of a study: report.md, a picture per experiment, and one page with curves that can be explored.

Both pages show the pictures that lie beside them: twenty of them inside the page would be megabytes.
Every number in the text comes from the run directories. The same runs give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steadyrl.core.metrics import describe
from steadyrl.core.rundir import write_json, write_text
from steadyrl.lab.seeds import LEAST_SEEDS, interval
from steadyrl.lab.study.file import ABSOLUTE, Take
from steadyrl.lab.study.outcome import Claim, Judged, Made, Outcome, Verdict, claims, meets, middle, outcomes, values_of
from steadyrl.lab.study.plan import Study, jobs
from steadyrl.lab.study.study import DONE, require_runs
from steadyrl.show.page import markup
from steadyrl.show.report.criteria import criteria
from steadyrl.show.report.curves import Records, curves, script, style
from steadyrl.show.report.study_pictures import Topic, overlay
from steadyrl.show.report.write import page

# The topics of the founding documents: what each is told by.
TOPICS: Mapping[str, tuple[tuple[str, Take], ...]] = {
    "Reward": (("reward/mean", "first"), ("reward/mean", "last"), ("completion/length", "last")),
    "KL control": (
        ("kl_ref_k1_seq", "last"),
        ("kl_ref_k1_seq", "max"),
        ("kl_ref_k1_seq", "below_zero"),
        ("kl_ref_k1_seq", "lowest_z"),
        ("algorithm/kl_coef", "ratio"),
    ),
    "Value function": (("loss/value", "last"), ("loss/value", "spike"), ("value/explained_variance", "last")),
    "Policy behaviour": (
        ("loss/policy", "last"),
        ("loss/nll", "last"),
        ("clip_fraction", "mean"),
        ("kl_old_k3", "max"),
        ("grad_norm", "max"),
    ),
    "Entropy": (("entropy", "first"), ("entropy", "last"), ("entropy", "ratio")),
    "Advantages": (("advantage/mean", "mean"), ("advantage/std", "first"), ("advantage/std", "last")),
}
TAKES: Mapping[Take, str] = {
    "last": "at the end",
    "first": "at the start",
    "mean": "mean",
    "min": "lowest step",
    "max": "highest step",
    "gain": "end minus start",
    "ratio": "end as a share of the start",
    "spike": "highest step over the level before it",
    "below_zero": "share of steps below 0",
    "lowest_z": "lowest tenth of the run, in standard errors",
}
ENOUGH_SEEDS = 5  # of each arm: with so many, a difference of two standard deviations is found in 60 % of studies
MOST_CAUSES = 3  # of the doctor's, in an experiment's section


@dataclass(frozen=True)
class Row:
    """One line of the summary."""

    name: str
    word: Verdict
    finding: str


def write_study(study: Study, root: Path, to: Path | None = None) -> tuple[Path, list[Row]]:
    """Write the report of a study into its folder, or into ``to``.

    Args:
        study: As it was run.
        root: Where the folders of studies are.
        to: Another folder for the report.

    Returns:
        The page, and the summary.

    Raises:
        ConfigError: No run of it is there.
        RunError: The rule by which the study is judged is another one than before its first run.
        AccessError: The folder cannot be written.
    """
    folder = require_runs(study, root)
    arm_outcomes = outcomes(study, folder)
    to = to or folder / "report"
    records = {outcome.arm.name: [run.records for run in outcome.runs] for outcome in arm_outcomes}
    sections = [_section(study, outcome, arm_outcomes, records) for outcome in arm_outcomes]
    for section in sections:
        if section["svg"] is not None:
            write_text(to / section["picture"], section["svg"])
    rows = [
        Row(outcome.arm.name, outcome.word, section["finding"])
        for outcome, section in zip(arm_outcomes, sections, strict=True)
    ]
    answer = _answer_picture(study, records)
    if answer is not None:
        write_text(to / "answer.svg", answer)
    view = {
        "answer": None if answer is None else markup.inline_svg(answer, "answer"),
        "study": study.file,
        "file": study.path.name,
        "command": _command(study),
        "quick": study.quick,
        "seeds": list(study.seeds),
        "sections": sections,
        "rows": rows,
        "claims": [_claim(claim) for claim in claims(arm_outcomes)],
        "criteria": criteria(study, arm_outcomes),
        "weak": _weak(study, arm_outcomes),
        "open": _open(study, arm_outcomes),
        "confidence": round(100 * study.file.rule.confidence),
        "share": f"{100 * study.file.rule.share:g}",
        "start": f"{100 * study.file.rule.start:g}",
    }
    write_json(to / "summary.json", _summary(arm_outcomes, rows))
    write_text(to / "report.md", page("study.md.j2", view, markup.markdown))
    shown = [name for name, runs in records.items() if runs][:4]
    more = {"data": curves(records, shown), "script": script(), "style": style()}
    write_text(to / "report.html", page("study.html.j2", {**view, **more}, markup.clean))
    return to / "report.html", rows


def _answer_picture(study: Study, records: Mapping[str, Sequence[Records]]) -> str | None:
    """Draw the metric that the study is judged by, all experiments over one another, as SVG text."""
    metric = study.file.metric
    return overlay({name: runs for name, runs in records.items() if runs}, (Topic(metric, (metric,)),))


def _section(
    study: Study, outcome: Outcome, every: Sequence[Outcome], records: Mapping[str, Sequence[Records]]
) -> dict[str, Any]:
    """Return what the report says of one experiment."""
    experiment = outcome.arm.experiment
    base = next((candidate for candidate in every if candidate.arm.name == experiment.base), None)
    groups = {base.arm.name: records[base.arm.name]} if base else {}
    groups |= {experiment.name: records[experiment.name]}
    judged = [_judged(judgement) for judgement in outcome.judged]
    return {
        "name": experiment.name,
        "title": experiment.title,
        "base": experiment.base,
        "why": experiment.why,
        "hypothesis": experiment.hypothesis,
        "concluded": experiment.concluded,
        "changed": [(key, _value(a), _value(b)) for key, (a, b) in outcome.arm.changed.items()],
        "word": outcome.word,
        "judged": judged,
        "finding": _finding(study, outcome, judged),
        "topics": _topics(study, outcome, base),
        "causes": [_cause(cause.finding, cause.seeds, len(outcome.runs)) for cause in outcome.causes[:MOST_CAUSES]],
        "status": _status(study, outcome),
        "next": experiment.next or _next(outcome),
        "picture": f"{experiment.name}.svg",
        "svg": overlay(groups) if records[experiment.name] else None,
        "done": f"{sum(run.state in DONE for run in outcome.runs)} of {len(study.seeds)}",
    }


def _command(study: Study) -> str:
    usual = study.file.quick.seeds if study.quick else study.file.seeds
    seeds = "" if list(study.seeds) == usual else f" --seeds {len(study.seeds)}"
    return f"steadyrl study run {study.path.name}{' --quick' if study.quick else ''}{seeds}"


def _weak(study: Study, arm_outcomes: Sequence[Outcome]) -> str:
    """Return what a reader must know of how little the runs say; "" where every experiment has its seeds."""
    seeds = [sum(run.state in DONE for run in outcome.runs) for outcome in arm_outcomes]
    text = "This is the quick version, with fewer steps or problems than the study asks for. " if study.quick else ""
    single = sum(count < LEAST_SEEDS for count in seeds)
    if single:
        who = "Every experiment has" if single == len(seeds) else f"{single} of {len(seeds)} experiments have"
        text += (
            f"{who} one run at most, which is weak evidence. One run cannot tell an effect from chance, so comparisons "
            'with it are undecided. Where its number is compared with a bound, "supported" and "refuted" mean only '
            "that this run met it or missed it. "
        )
    if LEAST_SEEDS <= max(seeds) < ENOUGH_SEEDS:
        text += f"{max(seeds)} seeds decide only large differences: many comparisons stay undecided."
    return text.strip()


def _claim(claim: Claim) -> dict[str, Any]:
    """Return an earlier conclusion beside what was measured."""
    parts = [{"name": name, **_judged(judged)} for name, judged in claim.parts]
    return {"text": claim.text, "word": claim.word, "parts": parts}


def _judged(judged: Judged) -> dict[str, Any]:
    return {"says": judged.expect.says, "word": judged.word, "numbers": numbers(judged)}


def numbers(judged: Judged) -> str:
    """Return the numbers that decide an expectation, as one sentence."""
    expect = judged.expect
    what = f"{judged.metric}, {TAKES[expect.take]}"
    if expect.be in ABSOLUTE:
        if not judged.values:
            return f"{what}: not measured."
        met = sum(meets(expect, value) for value in judged.values)
        shown = ", ".join(markup.number(value) for value in judged.values)
        seeds = "seed" if len(judged.values) == 1 else "seeds"
        return f"{what}: {shown}; {expect.be} {expect.value:g} in {met} of {len(judged.values)} {seeds}."
    if judged.change is None:
        return f"{what}: not measured in both."
    change = judged.change
    text = (
        f"{what}: {markup.number(change.second)} against {markup.number(change.first)} of {judged.than}, "
        f"difference {markup.signed(change.change)}"
    )
    if change.low is None or change.high is None or change.smallest is None:
        return f"{text}; one seed, so there is no interval."
    bounds = markup.interval([change.low, change.high])
    over = f"{change.seeds[1]} pairs of equal" if change.paired else f"{change.seeds[1]} and {change.seeds[0]}"
    return (
        f"{text} {bounds} over {over} seeds; so few seeds show a true difference of "
        f"{markup.number(change.smallest)} in 4 of 5 studies."
    )


def _finding(study: Study, outcome: Outcome, judged: Sequence[Mapping[str, Any]]) -> str:
    if not outcome.runs:
        return "not run yet"
    if judged:  # what decided: of a verdict that is not "supported", the first expectation that is not
        deciding = next((judgement for judgement in judged if judgement["word"] == outcome.word), judged[0])
        return f"{deciding['says']} {deciding['numbers']}"
    values = values_of(outcome.runs, study.file.metric, "last", study.file.rule)
    level = middle(values)
    if level is None:
        return f"{study.file.metric} was not measured"
    bounds = interval(values, study.file.rule.confidence)
    shown = f" {markup.interval(list(bounds))}" if bounds else ""
    return f"{study.file.metric}, at the end: {markup.number(level)}{shown}, {len(values)} of {len(study.seeds)} seeds."


def _topics(study: Study, outcome: Outcome, base: Outcome | None) -> list[dict[str, Any]]:
    rule, topics = study.file.rule, []
    for topic, measures in TOPICS.items():
        rows = []
        for metric, take in measures:
            own = middle(values_of(outcome.runs, metric, take, rule))
            base_level = middle(values_of(base.runs, metric, take, rule)) if base else None
            if own is None and base_level is None:
                continue
            description = describe(metric)
            unit = description.unit if description and take not in ("ratio", "spike", "below_zero", "lowest_z") else ""
            rows.append({"what": f"{metric}, {TAKES[take]}", "unit": unit, "base": base_level, "own": own})
        if rows:
            topics.append({"name": topic, "rows": rows})
    return topics


def _cause(finding: Any, seeds: int, runs: int) -> str:
    since = "" if finding.since_step is None else f" from step {finding.since_step}"
    of = "" if runs == 1 else f" in {seeds} of {runs} runs"
    return f"{finding.severity} {finding.check}{of}{since}: {finding.message}"


def _status(study: Study, outcome: Outcome) -> str:
    if not outcome.runs:
        return f"not run; {len(study.seeds)} runs are missing"
    done = [run for run in outcome.runs if run.state in DONE]
    text = f"{len(done)} of {len(study.seeds)} runs are done, with {_steps(outcome.runs)} steps"
    for run in outcome.runs:
        if run.ended:
            text += f"; seed {run.seed} was ended by the rule {run.ended}"
        elif run.state == "failed":
            text += f"; seed {run.seed} failed after {run.steps} steps: {run.error}"
        elif run.state not in DONE:
            text += f"; seed {run.seed} is unfinished, {run.steps} steps so far"
    return text


def _steps(runs: Sequence[Made]) -> str:
    least, most = min(run.steps for run in runs), max(run.steps for run in runs)
    return f"{most}" if least == most else f"{least} to {most}"


def _next(outcome: Outcome) -> str:
    """Return the next step where the file names none: what the verdict itself asks for, or ""."""
    if not outcome.runs:
        return "Run it."
    if outcome.word == "undecided":
        compared = [judged for judged in outcome.judged if judged.than]
        if compared and all(judged.change and judged.change.low is None for judged in compared):
            return "Run more seeds: one seed has no interval."
        return "Run more seeds, or take a margin of what would matter."
    if outcome.causes and outcome.causes[0].finding.remedy:
        return outcome.causes[0].finding.remedy
    return ""


def _open(study: Study, arm_outcomes: Sequence[Outcome]) -> list[str]:
    """Return what the study does not answer: what the file says, and what was not run or not measured."""
    missing = len(jobs(study)) - sum(run.state in DONE for outcome in arm_outcomes for run in outcome.runs)
    lines = [f"{missing} of {len(jobs(study))} runs are not done."] if missing else []
    if len(study.seeds) == 1:
        lines.append(
            "There is one seed: differences have no interval, and all comparisons of experiments are undecided."
        )
    lines += [
        f"{outcome.arm.name}: {judged.metric} was not measured."
        for outcome in arm_outcomes
        for judged in outcome.judged
        if outcome.runs and not judged.values
    ]
    return [*lines, *study.file.not_tested]


def _summary(arm_outcomes: Sequence[Outcome], rows: Sequence[Row]) -> dict[str, Any]:
    return {
        row.name: {
            "verdict": row.word,
            "finding": row.finding,
            "expectations": [
                {"says": j.expect.says, "verdict": j.word, "values": list(j.values), "others": list(j.others)}
                for j in outcome.judged
            ],
            "runs": [{"seed": m.seed, "state": m.state, "steps": m.steps} for m in outcome.runs],
        }
        for row, outcome in zip(rows, arm_outcomes, strict=True)
    }


def _value(value: object) -> str:
    return "not set" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
