"""A diagnosis as a page: findings with their causes, pictures, what to set and to expect, measurements and checks."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from steadyrl.core.rundir import write_text
from steadyrl.core.types import Finding
from steadyrl.doctor.causes import tree
from steadyrl.doctor.check import Check, in_words
from steadyrl.doctor.examine import BY_NAME, TOPICS, Diagnosis
from steadyrl.doctor.series import Run
from steadyrl.doctor.statistics.signals import head, tail
from steadyrl.show.page import html, markdown, records
from steadyrl.show.page.markup import number
from steadyrl.show.report.topics import DIAGNOSED

STATES = ("fail", "info", "not throughout", "unknown", "pass")  # of the checks, in the order of their counts


def write_diagnosis(diagnoses: Sequence[Diagnosis], folder: Path | str) -> Path:
    """Write diagnosis.md, diagnosis.html and the pictures of some runs, and return the HTML page's path.

    Args:
        diagnoses: At least one; a section each.
        folder: Made if it is not there; an earlier diagnosis in it is replaced.

    Raises:
        AccessError: The folder cannot be written.
    """
    from steadyrl.show.report.pictures.diagnosis import pictures  # matplotlib takes a second to load

    folder = Path(folder)
    page: list[records.Record] = [records.Heading("Diagnosis", 1)]
    for i, diagnosis in enumerate(diagnoses, 1):
        run_pictures = pictures(diagnosis, f"run{i}")
        for picture in run_pictures:
            write_text(folder / picture.file, picture.panels[0])
        page += diagnosis_view(diagnosis, run_pictures)
    write_text(folder / "diagnosis.md", markdown.page(page))
    write_text(folder / "diagnosis.html", html.page(f"{diagnoses[0].run.path}: diagnosis", page))
    return folder / "diagnosis.html"


def diagnosis_view(diagnosis: Diagnosis, pictures: Sequence[records.Picture] = ()) -> list[records.Record]:
    """Return what every page shows of a diagnosis, with pictures of the series that decide its findings."""
    run, roots = diagnosis.run, harmful_roots(diagnosis)
    settings = [(records.Span(name, "code"), f"{run.settings[name]}") for name in sorted(run.settings)]
    settings_table = records.Table(("setting", "value"), settings)
    rows: list[Sequence[records.Text] | str] = []  # the level at the start and at the end, and the range
    for topic, quantities in DIAGNOSED.items():
        rows.append(f"{topic}: {_topic_word(diagnosis, TOPICS.get(topic, ()))}")
        logged = (series.finite() for quantity in quantities for series in diagnosis.run.series.get(quantity, ()))
        rows += [
            (
                series.source or series.quantity,
                series.unit,
                *map(number, (head(series), tail(series), float(series.values.min()), float(series.values.max()))),
                f"{len(series)}",
            )
            for series in logged
            if len(series)
        ]
    return [
        records.Heading((f"{run.path} ", records.word(diagnosis.verdict))),
        records.Note(run.facts, "soft"),
        records.Note(headline(diagnosis), "headline"),
        *(records.Note(text, "note") for text in run.notes),
        *_judgement(diagnosis),
        records.Heading("Findings", 3),
        records.Findings(tree(diagnosis.findings))
        if diagnosis.findings
        else records.Note(f"No check found harm{'' if diagnosis.judgement else ', and there is nothing to do'}."),
        *pictures,
        *_remedies(roots),
        *_expected(roots, diagnosis.findings),
        records.Heading("Measurements", 3),
        records.Table(("measured", "unit", *records.numbers("start", "end", "least", "greatest", "points")), rows),
        records.Heading("Monitoring checklist", 3),
        checks_table(diagnosis),
        *([records.Fold(f"Settings that the log holds ({len(settings)})", [settings_table])] if settings else []),
        *([records.Note(f"Metrics that are not known: {', '.join(run.unknown)}", "soft")] if run.unknown else []),
    ]


def headline(diagnosis: Diagnosis) -> str:
    """Return the verdict in a sentence, with the finding that leads to it or with what is open."""
    if diagnosis.judgement:
        return f"{diagnosis.judgement.sentence[:1].upper()}{diagnosis.judgement.sentence[1:]}."
    if diagnosis.verdict == "healthy":
        count = len(diagnosis.findings)
        minor = (
            f" Not known, of minor weight {diagnosis.rise}: {'; '.join(diagnosis.minor)}." if diagnosis.minor else ""
        )
        return f"Healthy: no harmful finding{f'; {count} for information only' if count else ''}.{minor}"
    worst, *milder = harmful_roots(diagnosis)
    further = f" ({len(milder)} further root cause{'s' * (len(milder) > 1)})" if milder else ""
    return f"{worst.check}: {worst.message}{further}"


def harmful_roots(diagnosis: Diagnosis) -> list[Finding]:
    """Return the root causes that harm, by themselves or by what they cause, the most urgent first."""
    placed = tree(diagnosis.findings)
    roots = (node.finding for node in placed if node.depth == 0)
    return [root for root in roots if any(finding.harms for finding in _chain(root, diagnosis.findings))]


def _chain(root: Finding, findings: Sequence[Finding]) -> list[Finding]:
    """Return a root and every finding that it causes, at any distance."""
    reached = {root.check}
    for _ in findings:  # no chain is longer than there are findings
        reached |= {finding.check for finding in findings if finding.follows in reached}
    return [root, *(finding for finding in findings if finding.check in reached and finding.follows)]


def overrides(findings: Sequence[Finding]) -> tuple[list[str], list[str]]:
    """Return the settings to paste of findings, the most urgent first, and those that contradict a more urgent one."""
    by_key: dict[str, str] = {}
    conflicts = []
    for text in dict.fromkeys(text for finding in findings for text in finding.overrides):
        key, _, value = text.partition("=")
        if by_key.setdefault(key, value) != value:
            conflicts.append(text)
    return [f"{key}={value}" for key, value in by_key.items()], conflicts


def _judgement(diagnosis: Diagnosis) -> Iterator[records.Record]:
    if diagnosis.judgement:
        yield records.Items([f"{heading}: {text}" for heading, text in diagnosis.judgement.reasons.items()])
    if diagnosis.missing:
        yield records.Note("A run is called healthy for certain only where this is known, and here it is not:", "soft")
        yield records.Items(diagnosis.missing)


def _remedies(roots: Sequence[Finding]) -> Iterator[records.Record]:
    settings, conflicts = overrides(roots)
    if settings:
        yield records.Heading("Overrides", 3)
        yield records.Note("The remedies of the root causes as settings that can be pasted:", "soft")
        yield records.Code(" ".join(shlex.quote(text) for text in settings))
    if conflicts:
        yield records.Note(
            f"Left out, because a more urgent remedy changes the same settings: {', '.join(conflicts)}", "soft"
        )


def _expected(roots: Sequence[Finding], findings: Sequence[Finding]) -> Iterator[records.Record]:
    checks = dict.fromkeys(finding.check for root in roots for finding in _chain(root, findings))
    texts = [BY_NAME[check].healthy for check in checks if check in BY_NAME]
    if texts:
        yield records.Heading("Expected outcome", 3)
        yield records.Items(texts)


def _topic_word(diagnosis: Diagnosis, checks: Sequence[Check[Run]]) -> str:
    names = {check.name for check in checks}
    severities = {finding.severity for finding in diagnosis.findings if finding.check in names}
    if severities:
        return next(severity for severity in ("critical", "warning", "info") if severity in severities)
    if any(finding.check in names for finding in diagnosis.uneven):
        return "not throughout"
    unmeasured = {gap.check for gap in diagnosis.unknown} & names
    return "not judged" if not checks else "not measured" if len(unmeasured) == len(checks) else "fine"


def checks_table(diagnosis: Diagnosis) -> records.Fold:
    """Return every check that applies, by topic: what it expects, whether that holds, and why or why not."""
    results = {finding.check: ("unknown", finding) for finding in reversed(diagnosis.unknown)}
    results |= {finding.check: ("not throughout", finding) for finding in reversed(diagnosis.uneven)}
    results |= {
        finding.check: ("fail" if finding.harms else "info", finding) for finding in reversed(diagnosis.findings)
    }
    rows: list[Sequence[records.Text] | str] = []
    states = []
    for topic, checks in TOPICS.items():
        applying = [check for check in checks if check.applies(diagnosis.run)]
        rows += [topic] if applying else []
        for check in applying:
            state, finding = results.get(check.name, ("pass", None))
            states.append(state)
            remark = "" if finding is None else finding.message
            if finding is not None and state == "not throughout":
                remark = "; ".join(finding.evidence)
            elif finding is not None and state == "unknown" and finding.would_tell:
                remark += f"; this would show it: {', '.join(map(in_words, finding.would_tell))}"
            rows.append((records.word(state), check.healthy, check.name, remark))
    counts = ", ".join(f"{states.count(state)} {state}" for state in STATES if state in states)
    return records.Fold(f"{len(states)} checks: {counts}", [records.Table(("", "expected", "check", "remark"), rows)])
