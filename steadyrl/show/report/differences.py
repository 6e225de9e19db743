"""How several runs differ: in their settings, in what the doctor reads in them, in held-out answers and in numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from steadyrl.core.errors import RunError
from steadyrl.core.rundir import RunDir
from steadyrl.core.types import DECODINGS, Decoding
from steadyrl.core.words import counted
from steadyrl.doctor.differ import differ, sentences
from steadyrl.doctor.readers.spelling import flat_settings
from steadyrl.doctor.series import Run
from steadyrl.lab.measure import heldout_mean, measure
from steadyrl.lab.study.file import HELDOUT, Rule
from steadyrl.show.page import records
from steadyrl.show.page.markup import interval, number, shorten, signed
from steadyrl.show.report.evidence import Answer, Evaluation, read_evaluation
from steadyrl.show.report.figures import change, conclusion_of, metric_samples, metric_values
from steadyrl.show.report.topics import COMPARED, TAKES

RULE = Rule()  # how many steps are the start and the end: as in a study that says nothing else
SHOWN_PROBLEMS = 8  # gained, and as many lost
NOT_EXPLAINED_ABOVE = 64 << 20  # bytes of metrics; `steadyrl doctor A B` explains larger runs
_OF_THE_PLACE = ("run.folder",)
_OF_NO_INTEREST = ("run.seed", "run.steps", "run.checkpoint_every", "run.keep_checkpoints", "run.rollouts_every")


@dataclass(frozen=True)
class Compared:
    """A run that is compared with others."""

    name: str  # on the page
    run: RunDir | None  # its directory; None for another trainer's log
    read: Callable[[], Run]  # returns what the doctor reads of it
    harms: Sequence[str] = ()  # the checks of the doctor that found harm in it

    @cached_property
    def settings(self) -> dict[str, str]:
        """Its settings by dotted names, as JSON."""
        if self.run is None:
            return {name: str(value) for name, value in self.read().settings.items()}
        resolved = self.run.resolved() if self.run.resolved_file.is_file() else {}
        return {name: json.dumps(v, ensure_ascii=False, default=str) for name, v in flat_settings(resolved).items()}

    @cached_property
    def after(self) -> dict[str, Evaluation]:
        """Its evaluations after training: "" for the task's own problems, and those of ``evaluate.sets`` by name."""
        if self.run is None:
            return {"": Evaluation()}
        names = ("", *self.run.heldout_sets())
        return {name: read_evaluation(self.run.evaluation_file("after", name)) for name in names}


def differences(runs: Sequence[Compared]) -> list[records.Record]:
    """Return how some runs differ from the first one.

    Raises:
        RunError: A file of a run is damaged.
    """
    return [
        *_settings(runs),
        records.Heading("Why the first two differ" if len(runs) > 2 else "Why they differ"),
        records.Items(_explanation(runs[:2])),
        records.Heading("Held-out answers"),
        *(record for run in runs[1:] for record in _answers(runs[0], run)),
        records.Note("Another seed can differ by more. `steadyrl compare` asks both models again.", "soft"),
        *_numbers(runs),
    ]


def conclusions(runs: Sequence[Compared]) -> list[records.Record]:
    """Return the verdict on the held-out answers of each run against those of the first, where there is one."""
    notes: list[records.Record] = []
    for run in runs[1:]:
        by_decoding, harms = _changes(runs[0], run), {side.name: side.harms for side in (runs[0], run)}
        conclusion = conclusion_of(by_decoding, _deploy(run), harms)
        if conclusion and by_decoding[_deploy(run)]["n"]:
            judged = records.strong(conclusion.word) if conclusion.doubts else records.word(conclusion.word)
            against, reason = f" against {runs[0].name}: ", f"{conclusion.sentence.removeprefix(conclusion.word)}."
            notes.append(records.Note((records.strong(run.name), against, judged, reason)))
    return notes


def _settings(runs: Sequence[Compared]) -> Iterator[records.Record]:
    """Yield the settings that differ, and those that not every run has."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    rows = {name: [run.settings.get(name) for run in runs] for name in sorted(names, key=_OF_NO_INTEREST.__contains__)}
    rows = {name: row for name, row in rows.items() if len(set(row)) > 1 and name not in _OF_THE_PLACE}
    columns = ("setting", *(run.name for run in runs))
    different: list[Sequence[records.Text]] = [
        (records.Span(name, "code"), *map(str, row)) for name, row in rows.items() if None not in row
    ]
    one_sided: list[Sequence[records.Text]] = [
        (records.Span(name, "code"), *(value or "–" for value in row)) for name, row in rows.items() if None in row
    ]
    yield records.Heading("Settings that differ")
    yield records.Table(columns, different) if different else records.Note("None of those that every run has.")
    if one_sided:
        yield records.Fold(f"Settings that not every run has ({len(one_sided)})", [records.Table(columns, one_sided)])


def _explanation(runs: Sequence[Compared]) -> list[str]:
    files = [run.run.metrics_file for run in runs if run.run]
    if any(file.is_file() and file.stat().st_size > NOT_EXPLAINED_ABOVE for file in files):
        return ["these runs are too long to be explained here: `steadyrl doctor A B` does it"]
    try:
        first, second = (run.read() for run in runs)
    except RunError as error:
        return [str(error)]
    return sentences(differ(first, second))


def _deploy(run: Compared) -> Decoding:
    return DECODINGS[0] if run.run is None else run.run.deploy


def _shared_answers(first: Compared, second: Compared, decoding: Decoding, name: str = "") -> list[dict[str, Answer]]:
    """Return the answers to problems that both have measured, of the first and of the second."""
    sides = [run.after[name] for run in (first, second)]
    measured = [metric_values(side.get(decoding)) for side in sides]
    # Two tasks may give one name to different problems.
    same = [p for p in measured[0] if p in measured[1] and sides[0].prompts[p] == sides[1].prompts[p]]
    return [{problem: side.get(decoding)[problem] for problem in same} for side in sides]


def _changes(first: Compared, second: Compared) -> dict[str, dict[str, Any]]:
    sides = {decoding: _shared_answers(first, second, decoding) for decoding in DECODINGS}
    return {decoding: change(*map(metric_samples, answers)) for decoding, answers in sides.items()}


def _answers(first: Compared, second: Compared) -> Iterator[records.Record]:
    """Yield how the held-out answers of two runs differ, problem by problem, as the second will be used."""
    deploy = _deploy(second)
    unevaluated = [run.name for run in (first, second) if not metric_values(run.after[""].get(deploy))]
    answers = _shared_answers(first, second, deploy)
    if unevaluated or not answers[0]:
        missing = f"there is no evaluation after training of {' and '.join(unevaluated)}"
        reason = missing if unevaluated else "they have no held-out problem in common"
        yield records.Note(f"{second.name} and {first.name} cannot be compared problem by problem: {reason}.", "soft")
        return
    gains = {problem: (answers[1][problem].metric or 0.0) - (a.metric or 0.0) for problem, a in answers[0].items()}
    gained, lost = (sorted((p for p in gains if sign * gains[p] > 0), key=lambda p: -abs(gains[p])) for sign in (1, -1))
    counts = f"; {len(gained)} gained, {len(lost)} lost, {len(gains) - len(gained) - len(lost)} equal"
    sets = {name: _shared_answers(first, second, deploy, name) for name in first.after if name and name in second.after}
    lines: dict[str, dict[str, Any]] = {
        **_changes(first, second),
        **{f"{name}: {deploy}": change(*map(metric_samples, sides)) for name, sides in sets.items()},
    }
    yield records.Items(
        [
            (
                f"{name} answers: ",
                records.strong(second.name),
                f" {number(row['after'])}, {first.name} {number(row['before'])}: {signed(row['difference'])} "
                f"{interval(row['interval'])} (95 %, paired over {counted(row['n'], 'problem')})"
                f"{counts * (name == deploy)}",
            )
            for name, row in lines.items()
            if row["n"]
        ]
    )
    prompts = first.after[""].prompts
    for title, problems in (("Gained", gained), ("Lost", lost)):
        largest = problems[:SHOWN_PROBLEMS]
        samples = []
        for problem in largest:
            texts = [
                records.Answer(f"{run.name}: {number(a.metric)}", shorten(a.text), shorten(a.note))
                for run, a in zip((first, second), (side[problem] for side in answers), strict=True)
            ]
            samples.append(records.Sample(f"{problem} ({signed(gains[problem])})", shorten(prompts[problem]), texts))
        if samples:
            yield records.Fold(f"{title} ({len(largest)} shown)", samples)


def _numbers(runs: Sequence[Compared]) -> Iterator[records.Record]:
    """Yield the numbers by topic, a column for each run; the held-out scores first."""
    directories = [run.run for run in runs]
    metrics = [run.metrics() if run else [] for run in directories]
    rows: list[Sequence[records.Text] | str] = []

    def add(topic: str, values: Mapping[str, Sequence[float | None]]) -> None:
        measured = [(name, *map(number, row)) for name, row in values.items() if any(v is not None for v in row)]
        rows.extend([topic, *measured] if measured else [])

    scores = {when: [heldout_mean(run, when, "metric") if run else None for run in directories] for when in HELDOUT}
    add("Held-out problems", {f"held-out score, {when} training": values for when, values in scores.items()})
    for topic, measures in COMPARED.items():
        values = {
            f"{metric}, {TAKES[take]}": [
                measure(run, lines, metric, take, RULE) if run and lines else None
                for run, lines in zip(directories, metrics, strict=True)
            ]
            for metric, take in measures
        }
        add(topic, values)
    if rows:
        yield records.Heading("Numbers")
        yield records.Table(("measured", *records.numbers(*(run.name for run in runs))), rows)
        yield records.Note(
            "One run of each kind says nothing about the kind: seeds differ by as much as settings do. "
            "`steadyrl study` compares with seeds and intervals.",
            "soft",
        )
