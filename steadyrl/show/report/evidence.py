"""Reads a run directory into the records of its report.

Unknown stays unknown: a number that is missing, null or not finite is None in an answer and NaN in a series.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.core.errors import RunError
from steadyrl.core.metrics import finite_number
from steadyrl.core.rundir import RunDir, is_step, read_lines
from steadyrl.core.types import Decoding

MOST_RECORDED = 60  # steps whose rollouts a report reads: a column each, in a picture of 400 pixels


@dataclass(frozen=True)
class Answer:
    """The answer of a policy or baseline to one problem."""

    text: str
    metric: float | None  # the task's metric, the mean of several samples; None if it could not be measured
    measurements: Mapping[str, float]  # every other measurement
    unscored: str | None  # why there is no reward; None if there is one
    note: str  # the scorer's remark
    truncated: bool  # True if the token limit ended it
    samples: tuple[float, ...] = ()  # the task's metric of every sample that has it


@dataclass(frozen=True)
class Evaluation:
    """One file of evaluations; empty if the run has not written it."""

    prompts: Mapping[str, str] = field(default_factory=dict)
    """By problem id, in file order."""
    answers: Mapping[str, Mapping[str, Answer]] = field(default_factory=dict)
    """By name ("sampled", "greedy", or a baseline's), then by problem id."""

    def get(self, name: str) -> Mapping[str, Answer]:
        """Return the answers of a name, by problem id; empty if there are none."""
        return self.answers.get(name, {})


@dataclass(frozen=True)
class Evidence:
    """Everything that the report of a run uses."""

    name: str
    """Of the run directory."""
    info: Mapping[str, Any]
    """run.json."""
    settings: Mapping[str, Any]
    """Every setting of the run; empty if it recorded none."""
    deploy: Decoding
    """The answers that the run is judged by."""
    metrics: Sequence[Mapping[str, Any]]
    """One record per step."""
    actions: Sequence[Mapping[str, Any]]
    """What the autopilot did or advised, in order."""
    findings: Sequence[Mapping[str, Any]]
    """What the doctor raised and cleared while the run went on, in order."""
    recorded: Mapping[int, Sequence[float]]
    """The rewards of the recorded rollouts that have one, by step; of some steps where there are many."""
    before: Evaluation
    after: Evaluation
    """The policy on the held-out problems."""
    baselines: Evaluation
    """Model-free answers to the same problems."""
    best: Evaluation
    """The policy of the best checkpoint on them; empty if none was chosen."""
    sets: Mapping[str, tuple[Evaluation, Evaluation]] = field(default_factory=dict)
    """By name of ``evaluate.sets``, the policy before and after."""

    @property
    def samples(self) -> int:
        """Sampled answers to each held-out problem (``evaluate.samples``); 1 where none is recorded."""
        samples = (self.settings.get("evaluate") or {}).get("samples", 1)
        return samples if type(samples) is int else 1


def read_evidence(path: Path | str) -> Evidence:
    """Read a run directory.

    Raises:
        RunError: It is not a run directory, it has no steps yet, or a file in it is damaged.
    """
    run = RunDir.open(path)
    metrics = run.metrics()
    if not metrics:
        raise RunError(f"the run '{path}' has no steps yet; write the report when its first step is done")
    info = run.info()
    best = best_step(info)
    steps = [record["step"] for record in metrics if run.rollouts_file(record["step"]).is_file()]
    spread = sorted({steps[round(i)] for i in np.linspace(0, len(steps) - 1, MOST_RECORDED)}) if steps else []
    lines = {step: read_lines(run.rollouts_file(step)) for step in spread}
    rewards = {step: [finite_number(line.get("reward")) for line in rollouts] for step, rollouts in lines.items()}
    scored = {step: [reward for reward in values if reward is not None] for step, values in rewards.items()}
    files = {name: [run.evaluation_file(when, name) for when in ("before", "after")] for name in run.heldout_sets()}
    sets = {name: map(read_evaluation, pair) for name, pair in files.items()}
    return Evidence(
        name=run.path.resolve().name,
        info=info,
        settings=run.resolved() if run.resolved_file.is_file() else {},
        deploy=run.deploy,
        metrics=metrics,
        actions=run.actions(),
        findings=run.findings(),
        recorded={step: values for step, values in scored.items() if values},
        before=read_evaluation(run.evaluation_file("before")),
        after=read_evaluation(run.evaluation_file("after")),
        baselines=read_evaluation(run.evaluation_file("baselines")),
        best=read_evaluation(run.evaluation_file(f"{best:06d}")) if best is not None else Evaluation(),
        sets={name: (before, after) for name, (before, after) in sets.items()},
    )


def best_step(info: Mapping[str, Any]) -> int | None:
    """Return the step of the best checkpoint that run.json names; None if it names none."""
    step = (info.get("best") or {}).get("step")
    return step if is_step(step) else None


def read_evaluation(path: Path) -> Evaluation:
    """Read a file of evaluations; empty if it is not there.

    Raises:
        RunError: A line of it is no evaluation.
    """
    prompts: dict[str, str] = {}
    answers: dict[str, dict[str, Answer]] = {}
    for line in read_lines(path):
        if "problem" not in line or not isinstance(line.get("answers"), dict):
            raise RunError(f"'{path}' has a line without 'problem' or 'answers'; evaluate the run again")
        if not all(isinstance(answer, dict) for answer in line["answers"].values()):
            raise RunError(f"'{path}' has an answer that is no object; evaluate the run again")
        problem = str(line["problem"])
        prompts[problem] = str(line.get("prompt", ""))
        for name, answer in line["answers"].items():
            answers.setdefault(name, {})[problem] = _answer(answer)
    return Evaluation(prompts, answers)


def _answer(record: Mapping[str, Any]) -> Answer:
    raw_parts, samples = record.get("parts"), record.get("samples")
    measured = {part: finite_number(value) for part, value in raw_parts.items()} if isinstance(raw_parts, dict) else {}
    scored = [sample for sample in samples if isinstance(sample, dict)] if isinstance(samples, list) else [record]
    metrics = [finite_number(sample.get("metric")) for sample in scored]
    return Answer(
        text=str(record.get("text", "")),
        metric=finite_number(record.get("metric")),
        measurements={part: value for part, value in measured.items() if value is not None},
        unscored=record.get("unscored"),
        note=str(record.get("note") or ""),
        truncated=bool(record.get("truncated")),
        samples=tuple(metric for metric in metrics if metric is not None),
    )
