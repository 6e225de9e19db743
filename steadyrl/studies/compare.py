"""Compares two subjects on the same held-out problems with the same seeds, one after the other."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from steadyrl import config as configs
from steadyrl import plugins
from steadyrl.config import Config
from steadyrl.errors import DataError
from steadyrl.evaluate import greedy_sampling, pick_heldout
from steadyrl.launch import digest
from steadyrl.protocols import Task
from steadyrl.rewards.combine import make_terms, planned_updates
from steadyrl.rollout.episode import environment_of
from steadyrl.rollout.prompts import limit_of
from steadyrl.rundir import write_json
from steadyrl.studies.answers import Answers, Kept, Questions, all_known, answer
from steadyrl.studies.findings import MEASURED, TOTAL, findings, part_names, sample_value
from steadyrl.studies.subject import Subject, find_subject, open_policy
from steadyrl.types import Sampling

SAMPLES = 4  # answers to a problem: the noise of sampling is halved, at the price of four evaluations
RECORD = "comparison.json"
Progress = Callable[[Answers], None]


@dataclass(frozen=True)
class Options:
    """How to compare.

    Attributes:
        samples: Answers to each problem; None for 4 sampled ones, or 1 greedy one.
        problems: Held-out problems; None for as many as the config's evaluations use, 0 for all.
        decoding: "sampled" as in training, or "greedy".
        metric: A reward part, or "reward" for the total; None for the task's own.
        margin: Differences smaller than this do not matter; None for no margin.
    """

    samples: int | None = None
    problems: int | None = None
    decoding: Literal["sampled", "greedy"] = "sampled"
    metric: str | None = None
    margin: float | None = None


@dataclass(frozen=True)
class Watch:
    """How a user interface follows a comparison.

    Attributes:
        begin: Called with a line and the number of problems when a subject begins.
        problems: Called with how many of them are answered.
    """

    begin: Callable[[str, int], None] = field(default=lambda text, problems: None)
    problems: Callable[[int], None] = field(default=lambda done: None)


def compare(
    names: tuple[str, str], config: Config, options: Options, folder: Path | None = None, watch: Watch | None = None
) -> dict[str, Any]:
    """Compare two subjects, the second with the first; docs/compare.md describes the record that is returned.

    Args:
        names: Of the first and of the second, see ``find_subject``.
        config: Determines the task, the rewards, the sampling, the seed, and where the models run.
        options: How.
        folder: Answers are kept here as soon as they are there, and the record at the end; None keeps nothing.
        watch: Follows it.

    Raises:
        SteadyError: A subject cannot be loaded, there are no held-out problems, or nothing could be measured.
    """
    watch = watch or Watch()
    subjects = [find_subject(name, config) for name in names]  # both, before any time is spent
    task = plugins.open_task(config.task.name, config.task.args, config.run.seed)
    questions = _questions(task, config, options)
    metric = (options.metric or "").removeprefix("reward/") or task.metric or TOTAL  # as metrics.jsonl calls it, too
    files = [
        None if folder is None else _answers_file(folder / f"answers-{side}.jsonl", subject, questions, config)
        for side, subject in zip("ab", subjects, strict=True)
    ]
    if not any(all_known(questions, answers_file) for answers_file in files):
        _require_policy(subjects[1])
    answers = []
    for number, (subject, answers_file) in enumerate(zip(subjects, files, strict=True)):
        watch.begin(f"{'AB'[number]} = {subject.name} ({subject.what})", len(questions.problems))
        answers.append(_answers(subject, questions, answers_file, partial(_follow, watch, metric, questions)))
        _require_values(metric, answers[-1])
    record = {
        "task": config.task.name,
        "metric": metric,
        "decoding": options.decoding,
        "samples": questions.samples,
        "seed": config.run.seed,
        "a": _about(subjects[0], answers[0], metric),
        "b": _about(subjects[1], answers[1], metric),
        **findings(questions.problems, (answers[0], answers[1]), metric, options.margin, _called(subjects)),
    }
    if folder is not None:
        write_json(folder / RECORD, record)
    return record


def _questions(task: Task, config: Config, options: Options) -> Questions:
    count = config.evaluate.problems if options.problems is None else options.problems
    if count == 1:
        setting = "evaluate.problems" if options.problems is None else "--problems"
        raise DataError(f"{setting} is 1, and one problem has no spread; expected 2 or more, or 0 for all")
    problems = pick_heldout(plugins.problems_of(task, "heldout"), count)
    if len(problems) < 2:
        raise DataError(
            f"the task '{config.task.name}' has {len(problems)} held-out problems, expected at least 2; see task.args "
            "for how many are held out"
        )
    greedy = options.decoding == "greedy"
    sampling = Sampling(**config.sampling.model_dump())
    return Questions(
        problems=problems,
        samples=options.samples or (1 if greedy else SAMPLES),
        sampling=greedy_sampling(sampling) if greedy else sampling,
        terms=make_terms(config.rewards, task, planned_updates(config)),
        seed=config.run.seed,
        environment=environment_of(task, sampling, config.rollout),
        limit=limit_of(task),
    )


def _answers_file(path: Path, subject: Subject, questions: Questions, config: Config) -> Kept:
    settings = configs.dump(config)
    request = {
        "subject": subject.identity(),
        "samples": questions.samples,
        "sampling": asdict(questions.sampling),
        "seed": questions.seed,
        "problems": [problem.id for problem in questions.problems],
        "contents": digest(questions.problems),
        "code": plugins.own_code([("task", config.task.name), *(("reward", name) for name in config.rewards)]),
        **{name: settings[name] for name in ("task", "rewards", "rollout")},
    }
    return Kept(path, json.loads(json.dumps(request)))


def _require_policy(subject: Subject) -> None:
    """Load a policy and release it again, so that an error is reported before the other one has answered anything.

    Raises:
        SteadyError: It cannot be loaded.
    """
    open_policy(subject)
    gc.collect()


def _answers(subject: Subject, questions: Questions, answers_file: Kept | None, progress: Progress) -> Answers:
    if all_known(questions, answers_file):
        assert answers_file is not None, "nothing is known without a file"
        return {problem.id: answers_file.answers[problem.id] for problem in questions.problems}
    backend = open_policy(subject)
    answers = answer(backend, questions, answers_file, progress)
    del backend
    gc.collect()  # a model can be in a cycle of references, and the next one needs its memory
    return answers


def _follow(watch: Watch, metric: str, questions: Questions, answers: Answers) -> None:
    """Report a subject's progress to the watch, and refuse a metric that no answer can have.

    Raises:
        DataError: No term gives the metric, and no answer so far has such a part, though some have parts.
    """
    watch.problems(len(answers))
    parts = part_names(record for samples in answers.values() for record in samples)
    if parts and metric not in {TOTAL, *MEASURED, *(term.name for term in questions.terms), *parts}:
        raise DataError(
            f"no reward part is called '{metric}'; there are: {', '.join(sorted({TOTAL, *MEASURED, *parts}))}"
        )


def _require_values(metric: str, answers: Answers) -> None:
    """Refuse a subject for which nothing was measured.

    Raises:
        DataError: With the first reason.
    """
    records = [record for samples in answers.values() for record in samples]
    if all(sample_value(record, metric) is None for record in records):
        reason = next((record["unscored"] for record in records if record["unscored"]), "it was never measured")
        raise DataError(f"none of {len(records)} answers could be scored for '{metric}'; the first reason: {reason}")


def _about(subject: Subject, answers: Answers, metric: str) -> dict[str, Any]:
    records = [record for samples in answers.values() for record in samples]
    unknown = sum(sample_value(record, metric) is None for record in records)
    return {"name": subject.name, "what": subject.what, "answers": len(records), "unscored": unknown}


def _called(subjects: Sequence[Subject]) -> tuple[str, str]:
    return f"A ({subjects[0].name})", f"B ({subjects[1].name})"
