"""Compares two subjects on the same held-out problems with the same seeds, one after the other."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from steadyrl.core import config as configs
from steadyrl.core import plugins
from steadyrl.core.config import Config
from steadyrl.core.counting.count import tell
from steadyrl.core.errors import DataError
from steadyrl.core.protocols import Task
from steadyrl.core.rundir import write_json
from steadyrl.core.types import DECODINGS, Decoding
from steadyrl.core.words import counted, did_you_mean
from steadyrl.doctor.examine import diagnose
from steadyrl.lab.compare.answers import Answers, AnswersFile, Questions, answer, has_all_answers
from steadyrl.lab.compare.findings import MEASURED, TOTAL, findings, metric_row, part_names, sample_value
from steadyrl.lab.compare.subject import Subject, find_subject, open_policy
from steadyrl.lab.compare.verdict import conclude, with_doubts
from steadyrl.lab.jobs import Follow
from steadyrl.loop.evaluate import (
    HeldoutSet,
    evaluation_sampling,
    greedy_sampling,
    open_sets,
    pick_heldout,
    solved_from,
)
from steadyrl.loop.launch import digest, scoring_parts
from steadyrl.loop.rewards.combine import make_terms, planned_updates

SAMPLES = 4  # answers to a problem: the noise of sampling is halved, at the price of four evaluations
RECORD = "comparison.json"
QuestionsOf = Mapping[str, Questions]  # by way of decoding, and by set of ``evaluate.sets``
Files = Mapping[str, AnswersFile]  # empty where nothing is kept


@dataclass(frozen=True)
class Options:
    """How to compare."""

    samples: int | None = None
    """Answers to each problem, of those that are judged; None for 1 greedy one, or for 4 sampled ones (or
    evaluate.samples, if that is more)."""
    problems: int | None = None
    """Held-out problems; None for as many as the config's evaluations use, 0 for all."""
    decoding: Decoding | None = None
    """The answers that are judged; None for evaluate.deploy. One of the other kind stands beside them."""
    metric: str | None = None
    """A reward part, or "reward" for the total; None for the task's own."""
    margin: float | None = None
    """Differences smaller than this do not matter; None for no margin."""


def compare(
    names: tuple[str, str], config: Config, options: Options, folder: Path | None = None, follow: Follow | None = None
) -> dict[str, Any]:
    """Compare two subjects, the second with the first; docs/compare.md describes the record that is returned.

    Args:
        names: Of the first and of the second, see ``find_subject``.
        config: Determines the task, the rewards, the sampling, the seed, and where the models run.
        options: How.
        folder: Answers are kept here as soon as they are there, and the record at the end; None keeps nothing.
        follow: Its ``note`` is called with a line when a subject begins.

    Raises:
        SteadyError: A subject cannot be loaded, there are no held-out problems, or nothing could be measured.
    """
    subjects = [find_subject(name, config) for name in names]  # both, before any time is spent
    labels = (f"A ({subjects[0].name})", f"B ({subjects[1].name})")
    harms = _harms(dict(zip(labels, subjects, strict=True)))
    task = plugins.open_task(config.task.name, config.task.args, config.run.seed)
    deploy = options.decoding or config.evaluate.deploy
    questions_of = _all_questions(task, config, options, deploy)
    metric = (options.metric or "").removeprefix("reward/") or task.metric or TOTAL  # as metrics.jsonl calls it, too
    _require_metric(metric, questions_of[deploy], _recorded_parts(subjects, questions_of[deploy]))
    files: list[Files] = [
        {
            decoding: _answers_file(folder / f"answers-{side}{suffix}.jsonl", subject, questions_of[decoding], config)
            for decoding, suffix in ((deploy, ""), *((name, f"-{name}") for name in questions_of if name != deploy))
            if folder is not None
        }
        for side, subject in zip("ab", subjects, strict=True)
    ]
    if not any(all(has_all_answers(questions_of[name], side.get(name)) for name in questions_of) for side in files):
        open_policy(subjects[1])  # and release it: an error is reported before the other one has answered anything
        gc.collect()
    note = (follow or Follow()).note
    answers = [
        _answers(f"{label} = {subject.name} ({subject.kind})", subject, questions_of, side, note, metric)
        for label, subject, side in zip("AB", subjects, files, strict=True)
    ]
    solved = solved_from(config, "" if metric == TOTAL else metric)
    judged = {
        name: findings(questions.problems, (answers[0][name], answers[1][name]), metric, options.margin, labels, solved)
        for name, questions in questions_of.items()
    }
    record = {
        "task": config.task.name,
        "metric": metric,
        "decoding": deploy,
        "samples": questions_of[deploy].samples,
        "seed": config.run.seed,
        "a": _subject_record(subjects[0], answers[0][deploy], metric),
        "b": _subject_record(subjects[1], answers[1][deploy], metric),
        **_judgement(judged, deploy, metric, harms),
    }
    if folder is not None:
        write_json(folder / RECORD, record)
    return record


def _harms(subjects: Mapping[str, Subject]) -> dict[str, tuple[str, ...]]:
    """Return the checks of the doctor that found harm in the runs that subjects come from, by label."""
    return {
        label: diagnose(subject.run.path)[0].harmful
        for label, subject in subjects.items()
        if subject.run is not None and subject.run.metrics_file.is_file()
    }


def _judgement(
    judged: Mapping[str, Any], deploy: Decoding, metric: str, harms: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Return the results of the answers that count, with what the others and the doctor say beside them."""
    verdicts = {decoding: judged[decoding]["verdict"] for decoding in DECODINGS}
    decided = {str(decoding): (verdict["word"], verdict["reason"]) for decoding, verdict in verdicts.items()}
    doubts, second = conclude(decided, deploy, harms).doubts, _other_decoding(deploy)
    sets = {name: results for name, results in judged.items() if name not in DECODINGS}
    headline, *details = judged[deploy]["sentences"]
    return {
        **judged[deploy],
        "parts": [
            *judged[deploy]["parts"],
            *(
                {**row, "name": f"{name}: {row['name']}"}
                for name, results in sets.items()
                for row in (metric_row(results, metric), *results["parts"])
            ),
        ],
        "sets": sets,
        "doubts": list(doubts),
        "beside": {"decoding": second, "verdict": verdicts[second]},
        "sentences": [
            with_doubts(headline, doubts),
            *details,
            f"{second} answers, one to each problem: {judged[second]['sentences'][0]}",
            *(f"on {name}: {results['sentences'][0]}" for name, results in sets.items()),
        ],
    }


def _other_decoding(deploy: Decoding) -> Decoding:
    return next(decoding for decoding in DECODINGS if decoding != deploy)


def _all_questions(task: Task, config: Config, options: Options, deploy: Decoding) -> dict[str, Questions]:
    count = config.evaluate.problems if options.problems is None else options.problems
    if count == 1:
        setting = "evaluate.problems" if options.problems is None else "--problems"
        raise DataError(f"{setting} is 1, and one problem has no spread; expected 2 or more, or 0 for all")
    problems = pick_heldout(plugins.problems_of(task, "heldout"), count)
    if len(problems) < 2:
        raise DataError(
            f"the task '{config.task.name}' has {counted(len(problems), 'held-out problem')}, expected at least 2; see "
            "task.args for how many are held out"
        )
    heldout = HeldoutSet("", problems, make_terms(config.rewards, task, planned_updates(config)))
    evaluated = config.evaluate.model_copy(update={"problems": count})
    sets = open_sets(config.model_copy(update={"evaluate": evaluated}))
    second = _other_decoding(deploy)
    return {
        deploy: _questions(task, heldout, config, options, deploy),
        second: _questions(task, heldout, config, replace(options, samples=1), second),
        **{extra.name: _questions(task, extra, config, options, deploy) for extra in sets},
    }


def _questions(task: Task, heldout: HeldoutSet, config: Config, options: Options, decoding: Decoding) -> Questions:
    greedy, sampling = decoding == "greedy", evaluation_sampling(config)
    samples = options.samples or (1 if greedy else max(SAMPLES, config.evaluate.samples))
    sampling = greedy_sampling(sampling) if greedy else sampling
    return Questions.build(task, config, heldout, samples=samples, sampling=sampling)


def _answers_file(path: Path, subject: Subject, questions: Questions, config: Config) -> AnswersFile:
    settings = configs.dump(config)
    request = {
        "subject": subject.identity(),
        "samples": questions.samples,
        "sampling": asdict(questions.sampling),
        "seed": questions.seed,
        "problems": [problem.id for problem in questions.problems],
        "contents": digest(questions.problems),
        "code": plugins.own_code(scoring_parts(config)),
        **{name: settings[name] for name in ("task", "rewards", "rollout")},
    }
    return AnswersFile(path, json.loads(json.dumps(request)))


def _answers(
    title: str, subject: Subject, questions_of: QuestionsOf, files: Files, note: Callable[[str], None], metric: str
) -> dict[str, Answers]:
    """Return a subject's answers by way of decoding and by set.

    Its policy is loaded once, and not at all if all are known.

    Raises:
        DataError: Nothing was measured.
    """
    policy = cache(partial(open_policy, subject))
    answers: dict[str, Answers] = {}
    for decoding, questions in questions_of.items():
        note(f"answering {counted(len(questions.problems), 'problem')}: {title}, {decoding}")
        progress = partial(_report_progress, metric, questions)
        answers[decoding] = answer(policy, questions, files.get(decoding), progress)
        records = [record for samples in answers[decoding].values() for record in samples]
        if all(sample_value(record, metric) is None for record in records):
            reason = next((record["unscored"] for record in records if record["unscored"]), "it was never measured")
            raise DataError(
                f"none of {counted(len(records), 'answer')} could be scored for '{metric}'; the first reason: {reason}"
            )
    del policy
    gc.collect()  # a model can be in a cycle of references, and the next one needs its memory
    return answers


def _report_progress(metric: str, questions: Questions, answers: Answers) -> None:
    """Report a subject's progress, and refuse a metric that no answer can have."""
    tell("problems answered", len(answers), len(questions.problems))
    _require_metric(metric, questions, part_names(record for samples in answers.values() for record in samples))


def _recorded_parts(subjects: Sequence[Subject], questions: Questions) -> set[str]:
    """Return the parts of rewards that the subjects' runs recorded, if all of these questions' rewards are in them."""
    files = [
        line for subject in subjects if subject.run for lines in subject.run.evaluations().values() for line in lines
    ]
    answers = [line["answers"].values() for line in files if isinstance(line.get("answers"), dict)]
    records = [record for of_line in answers for record in of_line if isinstance(record, dict)]
    names = {name for record in records for name in record.get("parts") or ()}
    return names if names >= {term.name for term in questions.terms} else set()


def _require_metric(metric: str, questions: Questions, measured: Collection[str]) -> None:
    """Refuse (DataError) a metric that is neither a reward nor, where the answers' parts are known, one of these."""
    names = {TOTAL, *MEASURED, *measured}
    if measured and metric not in names and metric not in {term.name for term in questions.terms}:
        hint = did_you_mean(metric, names, f"there are: {', '.join(sorted(names))}")
        raise DataError(f"no reward part is called '{metric}'; {hint}")


def _subject_record(subject: Subject, answers: Answers, metric: str) -> dict[str, Any]:
    records = [record for samples in answers.values() for record in samples]
    unknown = sum(sample_value(record, metric) is None for record in records)
    return {"name": subject.name, "what": subject.kind, "answers": len(records), "unscored": unknown}
