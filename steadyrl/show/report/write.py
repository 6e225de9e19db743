"""Writes the report of a run: summary.json, pictures, report.md and report.html, from the run directory only.

Both pages are made of the same figures in the same order. The same run directory gives the same bytes.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from steadyrl.core.arguments import checked
from steadyrl.core.rundir import RunDir, write_bytes, write_json, write_text
from steadyrl.core.types import DECODINGS
from steadyrl.core.words import counted
from steadyrl.doctor.causes import as_record, tree
from steadyrl.doctor.examine import Diagnosis, examine
from steadyrl.doctor.names.identify import identify
from steadyrl.doctor.readers.rundir import read as read_log
from steadyrl.show.page import html, markdown, markup, records
from steadyrl.show.report import figures
from steadyrl.show.report import rows as views
from steadyrl.show.report.diagnosis import checks_table
from steadyrl.show.report.evidence import Evidence, read_evidence
from steadyrl.show.report.pictures import plots, reward_histogram
from steadyrl.show.review.epochs import epoch_table

FORM_ONLY = frozenset({"length", "boolean_format", "structure"})  # rewards that look at the written form alone
EPOCHS: tuple[records.Record, ...] = (
    records.Heading("Epoch by epoch"),
    records.Note(
        "Means over the steps of each pass over the training problems. Losses are the parts before their "
        'coefficients; "within" and "between" are the reward\'s variance among the rollouts of a problem and among '
        "problems. An interval that contains 0 may be noise.",
        "soft",
    ),
)
FIRST_COLUMNS = ("recall", "precision", "f1", "results")  # of the ranking, in the order search people expect


@dataclass(frozen=True)
class Report:
    """What the report of a run is made of."""

    evidence: Evidence
    diagnosis: Diagnosis
    summary: Mapping[str, Any]  # the numbers of summary.json


@checked
def write_report(path: PathLike[str] | str) -> Path:
    """Write the report of a run into its ``report`` folder and return that folder.

    A running or interrupted run gets a report of what there is so far. An earlier report is replaced.

    Raises:
        RunError: There is no run directory, it has no steps yet, or a file in it is damaged.
        AccessError: The folder cannot be written.
    """
    run = RunDir.open(fspath(path))
    report, folder = read_report(run.path), run.report_folder
    write_json(folder / "summary.json", report.summary)
    pictures = plots.draw(*pictured(report))
    if rewards := reward_histogram.draw(report.evidence.metrics, report.evidence.recorded):
        pictures["rewards"] = rewards
    for name, picture in pictures.items():
        write_text(folder / f"{name}.svg", picture.svg)
        write_bytes(folder / f"{name}.png", picture.png)
    panels = {name: picture.panels for name, picture in pictures.items()}
    page = [records.Heading(report.summary["run"], 1), *report_view(report, panels)]
    write_text(folder / "report.md", markdown.page(page))
    write_text(folder / "report.html", html.page(f"{report.summary['run']}: report", page))
    return folder


def write_summary(path: Path | str) -> None:
    """Write the numbers of a run's report alone, ``report/summary.json``, which tables and pages of runs read.

    Raises:
        RunError: There is no run directory, it has no steps yet, or a file in it is damaged.
        AccessError: The folder cannot be written.
    """
    run = RunDir.open(path)
    write_json(run.report_folder / "summary.json", read_report(run.path).summary)


def read_report(path: Path | str) -> Report:
    """Read what the report of a run is made of; nothing is written.

    Raises:
        RunError: There is no run directory, it has no steps yet, or a file in it is damaged.
    """
    evidence = read_evidence(path)
    diagnosis = examine(identify(read_log(Path(path))))
    summary = {**figures.summarise(evidence, diagnosis.harmful), "best": figures.best_figures(evidence)}
    summary |= {
        "epochs": epoch_table(evidence.metrics, diagnosis.findings, evidence.findings),
        "doctor": {
            "verdict": diagnosis.verdict,
            "findings": [as_record(finding) for finding in diagnosis.findings],
            "fine": [finding.check for finding in diagnosis.fine],
            "not_throughout": {finding.check: "; ".join(finding.evidence) for finding in diagnosis.uneven},
            "unknown": {finding.check: finding.message for finding in diagnosis.unknown},
        },
    }
    return Report(evidence, diagnosis, summary)


def report_view(report: Report, panels: Mapping[str, Sequence[str]] | None = None) -> list[records.Record]:
    """Return what every page shows of a run; ``panels`` are SVG texts of each picture, None for no pictures."""
    evidence, summary, info = report.evidence, report.summary, report.evidence.info
    pictures: dict[str, records.Picture] = {}
    training: list[records.Record] = []
    if panels is not None:  # with what to look for in each
        texts = plots.captions(*pictured(report))
        texts["rewards"] = " ".join(reward_histogram.sentences(evidence.metrics, evidence.recorded))
        pictures = {
            name: records.Picture(f"{name}.png", plots.LABELS[name], texts[name], svgs) for name, svgs in panels.items()
        }
        absent = plots.absences(evidence.metrics)
        if "rewards" not in pictures:
            absent = [texts["rewards"], *absent]
        later = [pictures[name] for name in plots.LABELS if name in pictures and name != "overview"]
        training = [records.Heading("Training"), *later, *([records.Note(" ".join(absent), "soft")] if absent else [])]
    seeds = "The interval is over held-out problems; another training seed can differ by more."
    verdict = f"The verdict in full: {summary['conclusion']}. {seeds}"
    command = info.get("command") or "steadyrl train <the run's config.toml>"
    lines = [command if isinstance(command, str) else shlex.join(map(str, command))]
    if info.get("commit"):
        lines.insert(0, f"git checkout {info['commit']}")
    facts = [(key, f"{info[key]}") for key in ("seed", "status", "python") if info.get(key) is not None]
    facts += [(key, views.moment(info[key])) for key in ("started", "ended") if info.get(key) is not None]
    for key in ("packages", "machine"):
        entries = [f"{name} {value}" for name, value in (info.get(key) or {}).items() if value is not None]
        if entries:
            facts.append((key, ", ".join(entries)))
    return [
        records.Note(headline(summary), "headline"),
        records.Facts(views.overview(evidence, summary, report.diagnosis)),
        *([pictures["overview"]] if pictures else []),
        *([records.Note(verdict, "soft")] if summary["conclusion"] else []),
        *(records.Note(text, "note") for text in _notes(evidence, summary)),
        *_before_and_after(changes(summary, reward_weights(evidence.settings)), summary["metric"]),
        *views.forms_view(evidence),
        *_ranking(evidence, summary),
        records.Heading("Health"),
        records.Note(("The doctor's verdict: ", records.word(report.diagnosis.verdict))),
        *([records.Findings(tree(report.diagnosis.findings))] if report.diagnosis.findings else []),
        checks_table(report.diagnosis),
        *views.actions_view(evidence.actions),
        *(EPOCHS if summary["epochs"] else ()),
        *views.epochs_view(summary["epochs"]),
        *training,
        *views.samples_view(evidence, summary["metric"] or "metric"),
        records.Heading("Settings"),
        *views.settings_view(evidence.settings),
        records.Facts(facts),
        records.Heading("How to repeat it"),
        records.Code("\n".join([*lines, "steadyrl report <the new run directory>"])),
        records.Note(_repeatable(info.get("policy") or {}), "soft"),
    ]


def _before_and_after(rows: Mapping[str, Sequence[Mapping[str, Any]]], metric: str | None) -> Iterator[records.Record]:
    yield records.Heading("Before and after")
    yield records.Note(
        "Means over the held-out problems that both evaluations could measure (n), the paired difference, and its "
        "95 % interval. The metric comes first, then the rewards that the config gives a weight.",
        "soft",
    )
    yield _comparison(rows["main"], metric)
    for row in rows["main"]:
        if reason := figures.why_undecided(row):
            yield records.Note(f"{row['name']}, {row['decoding']}: {row['word']}{reason}.")
    if rows["other"]:
        count, meaning = len(rows["other"]), "which no reward counts: more of them is neither better nor worse"
        yield records.Fold(f"{count} other measurements, {meaning}", [_comparison(rows["other"], None)])


def _comparison(rows: Sequence[Mapping[str, Any]], metric: str | None) -> records.Table:
    columns = records.numbers("n", "before", "after", "difference", "95 % interval")
    return records.Table(
        ("measurement", "decoding", *columns, "means"),
        [
            (
                row["name"],
                row["decoding"],
                f"{row['n']}",
                *map(markup.number, (row["before"], row["after"])),
                markup.signed(row["difference"]),
                markup.interval(row["interval"]),
                records.Span(row["word"], "word" if row["word"] in records.TONES else ""),
            )
            for row in rows
        ],
        frozenset(i for i, row in enumerate(rows) if row["name"] == metric),
    )


def pictured(report: Report) -> tuple[Sequence[Mapping[str, Any]], dict[str, float], str | None, dict[int, float]]:
    """Return what the pictures are of, with the scores before and after training at the first and at the last step."""
    evidence, summary = report.evidence, report.summary
    steps = (evidence.metrics[0]["step"], evidence.metrics[-1]["step"])
    scores = zip(steps, (summary["before"], summary["after"]), strict=True)
    heldout = {step: score for step, score in scores if score is not None}
    return evidence.metrics, reward_weights(evidence.settings), summary["metric"], heldout


def reward_weights(settings: Mapping[str, Any]) -> dict[str, float]:
    """Return the weight of every reward that has a constant one, by its name."""
    entries = settings.get("rewards", {}).items()
    weights = {name: entry.get("weight") if isinstance(entry, Mapping) else entry for name, entry in entries}
    return {name.rpartition(":")[2]: weight for name, weight in weights.items() if isinstance(weight, int | float)}


def headline(summary: Mapping[str, Any]) -> str:
    """Return the verdict in one sentence, with its numbers."""
    metric, n = f"held-out {summary['metric'] or 'metric'}", summary["n"]
    if summary["before"] is None:
        missing = "has not been measured" if summary["verdict"] is None else "could not be compared on any problem"
        return f"{metric} {missing}"
    before = markup.number(summary["before"])
    if summary["after"] is None:
        return f"{metric} {before} before training, n = {n}; there is no evaluation after training yet"
    after, difference = markup.number(summary["after"]), markup.signed(summary["difference"])
    bounds = "" if summary["interval"] is None else f" {markup.interval(summary['interval'])}"
    sick = ["the doctor calls the run sick"] if summary["doctor"]["verdict"] == "sick" else []
    contradictions = figures.contradictions(summary)
    joined = "and" if summary["verdict"] == "worse" and not contradictions else "but"
    doubts = f", {joined} {', and '.join([*contradictions, *sick])}" if contradictions or sick else ""
    return f"{metric} {before} → {after}, {difference}{bounds}, n = {n}: {summary['verdict']}{doubts}"


def _gap_notes(steps: Sequence[int]) -> Iterator[str]:
    """Say which steps up to the last have no record, for curves and counts of epochs are without them."""
    missing = steps[-1] + 1 - len(steps)
    if missing:
        gaps = ((a + 1, b - 1) for a, b in pairwise([-1, *steps]) if b > a + 1)
        ranges = [f"{first}" if first == last else f"{first} to {last}" for first, last in gaps]
        listed = ", ".join(ranges[:5]) + (" and others" if len(ranges) > 5 else "")
        yield (
            f"metrics.jsonl has no record of {missing} of {counted(steps[-1] + 1, 'step')} ({listed}). "
            "Curves, means and epochs are without them."
        )


def _notes(evidence: Evidence, summary: Mapping[str, Any]) -> list[str]:
    notes = [figures.target_sentence(summary["target"])] if summary["target"] else []
    notes += figures.best_sentences(summary, evidence.info)
    status, error = evidence.info.get("status"), evidence.info.get("error")
    if not evidence.after.answers:
        notes.append(
            f'The run\'s status is "{status or "unknown"}", and there is no evaluation after training: '
            "this report shows what there is."
        )
    if error:
        notes.append(f"The run ended with an error: {error}")
    notes += _gap_notes([record["step"] for record in evidence.metrics])
    unscored = {when: count for when, count in summary["unscored"].items() if count}
    if unscored:
        counts = " and ".join(f"{count} {when} training" for when, count in unscored.items())
        notes.append(f"Problems that could not be scored: {counts}. They are left out of the comparison.")
    notes += _form_notes(evidence, summary)
    alone = set(evidence.before.get(evidence.deploy)) ^ set(evidence.after.get(evidence.deploy))
    if evidence.after.answers and alone:
        notes.append(f"Left out, because only one of the two evaluations has them: {counted(len(alone), 'problem')}.")
    return notes


def _form_notes(evidence: Evidence, summary: Mapping[str, Any]) -> Iterator[str]:
    """Say of each reward that looks at the form alone how much of the reward it was."""
    weights = {
        name: weight
        for name, weight in reward_weights(evidence.settings).items()
        if weight and name in summary["parts"]
    }
    for name in sorted(FORM_ONLY.intersection(weights)):
        for when in ("after", "before"):
            means = {part: summary["parts"][part][when] for part in weights}
            if None not in means.values():
                total = sum(weights[part] * mean for part, mean in means.items())
                yield (
                    f"The reward {name} looks at the written form alone. {when.capitalize()} training it was "
                    f"{markup.number(weights[name] * means[name])} of the mean reward {markup.number(total)}; "
                    f"{summary['metric'] or 'the metric'} was {markup.number(summary[when])}."
                )
                break


def changes(summary: Mapping[str, Any], weights: Mapping[str, float]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the comparison: what the run was for, the metric twice and the reward's parts; and the others.

    Only the metric and the parts with a weight have a direction in which they are better.
    """
    metric, deploy = summary["metric"] or "metric", summary["decoding"]
    average = f"sampled, avg@{summary['samples']}" if summary["samples"] > 1 else "sampled"
    called = {"sampled": average, "greedy": "greedy"}
    rows: dict[str, list[dict[str, Any]]] = {"main": [], "other": []}
    for prefix, compared in (("", summary), *((f"{name}: ", of_set) for name, of_set in summary["sets"].items())):
        scores = [(metric, called[decoding], 1.0, compared[decoding]) for decoding in DECODINGS]
        for part, comparison in compared["parts"].items():
            pass_at = part.startswith("pass@")
            sign = 1.0 if pass_at else weights.get(part, 0.0)
            if part != metric:
                scores.append((part, "sampled" if pass_at else called[deploy], sign, comparison))
        for name, decoding, sign, comparison in scores:
            row = {"name": f"{prefix}{name}", "decoding": decoding, "sign": sign, **comparison}
            rows["main" if sign else "other"].append({**row, "word": _word(row)})
    return rows


def _word(row: Mapping[str, Any]) -> str:
    """Return what a change means; of a measurement that has no direction, which way it went."""
    verdict: str | None = row["verdict"]
    if verdict not in ("better", "worse"):
        return verdict or "–"
    if row["sign"] < 0:
        return {"better": "worse", "worse": "better"}[verdict]
    return verdict if row["sign"] > 0 else {"better": "higher", "worse": "lower"}[verdict]


def _ranking(evidence: Evidence, summary: Mapping[str, Any]) -> list[records.Record]:
    """Return the model beside the baselines, best first: part columns, and rows of means over their own answers."""
    if not summary["baselines"]:
        return []
    measured = {*summary["parts"], *(key for part_means in summary["baselines"].values() for key in part_means)}
    weighted = [name for name in reward_weights(evidence.settings) if name != summary["metric"]]
    columns = [name for name in dict.fromkeys((*FIRST_COLUMNS, *weighted)) if name in measured]
    metric, rows = summary["metric"] or "metric", []
    for when, evaluation in (("before", evidence.before), ("after", evidence.after)):
        answers = evaluation.get(evidence.deploy)
        if scored := figures.metric_values(answers):
            rows.append((f"this model, {when} training", True, len(scored), figures.means(answers)))
    for name, part_means in summary["baselines"].items():
        rows.append((name, False, len(figures.metric_values(evidence.baselines.get(name))), part_means))
    rows.sort(key=lambda row: (row[3]["metric"] is None, -(row[3]["metric"] or 0.0)))
    return [
        records.Heading("Compared with answers that need no model"),
        *([records.Note(summary["against_rules"])] if summary["against_rules"] else []),
        records.Note(f"Sorted by {metric}; this model stands out.", "soft"),
        records.Table(
            ("answers", *records.numbers("n", metric, *columns)),
            [
                (name, f"{n}", *(markup.number(part_means.get(column)) for column in ("metric", *columns)))
                for name, _, n, part_means in rows
            ],
            frozenset(i for i, (_, ours, *_) in enumerate(rows) if ours),
        ),
    ]


def _repeatable(policy: Mapping[str, Any]) -> str:
    elsewhere = "On another machine rounding differs, and so do single completions. Compare means over several seeds."
    if policy.get("deterministic") is False:
        return (
            f"On {policy.get('device')} the run was not deterministic: another run of the same seed, or of a "
            "checkpoint, is rounded differently, and so its completions differ after some steps. "
            f"backend.args.deterministic = true makes runs equal on one machine. {elsewhere}"
        )
    give = "give" if policy.get("deterministic") else "should give"
    return f"The same code, packages, machine and seed {give} the same metrics, also after a resume. {elsewhere}"
