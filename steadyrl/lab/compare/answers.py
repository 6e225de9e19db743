"""The answers of a subject to the held-out problems, a part at a time, kept on disk if a folder is given.

Sample s of problem p has a seed that is derived only from (seed, p, s). All subjects therefore have the same draws, and
a killed comparison continues as if it had not been interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steadyrl.core.config import Config
from steadyrl.core.protocols import Backend, PromptLimit, Task
from steadyrl.core.rundir import append_line, read_lines, write_lines
from steadyrl.core.types import Problem, Sampling
from steadyrl.loop.evaluate import HeldoutSet, answer_record
from steadyrl.loop.rewards.combine import Term, score_groups
from steadyrl.loop.rollout.collect import collect
from steadyrl.loop.rollout.episode import Environment, environment_of
from steadyrl.loop.rollout.prompts import fit_prompts, limit_of

PART = 64  # problems answered together: enough to fill a batch, and all that a kill can cost
# Neither training (which counts from 0) nor its evaluations draw with this key.
_COMPARISON_KEY = 2**31 + 3

Answers = Mapping[str, Sequence[Mapping[str, Any]]]  # by problem id, a record per sample


@dataclass(frozen=True)
class Questions:
    """The questions that all subjects answer, and how they answer them."""

    problems: Sequence[Problem]
    """Held-out ones."""
    samples: int
    """Answers to each."""
    sampling: Sampling
    terms: Sequence[Term]
    """What scores them."""
    seed: int
    environment: Environment | None
    """The environment of multi-turn problems; None for single-turn problems."""
    limit: PromptLimit = field(default_factory=PromptLimit)
    """How long prompts may be; a problem whose prompt is too long for a subject's model has no answers."""

    @classmethod
    def build(cls, task: Task, config: Config, heldout: HeldoutSet, *, samples: int, sampling: Sampling) -> Questions:
        """Return the questions of a set of held-out problems, with the seed of a config."""
        environment = environment_of(task, sampling, config.rollout)
        return cls(heldout.problems, samples, sampling, heldout.terms, config.run.seed, environment, limit_of(task))


class AnswersFile:
    """A file of answers. Its first line says what was asked of which model; then there is a line per problem."""

    def __init__(self, path: Path, request: Mapping[str, Any]):
        self._path = path
        lines = list(read_lines(path))
        # Through JSON and back, for tuples become lists there.
        if lines and lines[0].get("asked") == request:
            self.answers = {line["problem"]: line["answers"] for line in lines[1:] if "problem" in line}
        else:
            self.answers = {}
            write_lines(path, [{"asked": dict(request)}])

    def add(self, answers: Answers) -> None:
        """Append the answers to some problems."""
        for problem, records in answers.items():
            append_line(self._path, {"problem": problem, "answers": list(records)})
            self.answers[problem] = records


def answer(
    policy: Callable[[], Backend],
    questions: Questions,
    answers_file: AnswersFile | None,
    progress: Callable[[Answers], None],
) -> dict[str, Sequence[Mapping[str, Any]]]:
    """Answer all problems; the policy is asked for only where an answer is missing, and every part is told."""
    answers: dict[str, Sequence[Mapping[str, Any]]] = {}
    for start in range(0, len(questions.problems), PART):
        part = questions.problems[start : start + PART]
        saved = answers_file.answers if answers_file else {}
        if all(problem.id in saved for problem in part):
            answers |= {problem.id: saved[problem.id] for problem in part}
        else:
            sampled = _sample(policy(), questions, part, start)
            if answers_file is not None:
                answers_file.add({problem: records for problem, records in sampled.items() if problem not in saved})
            answers |= sampled
        progress(answers)
    return answers


def has_all_answers(questions: Questions, answers_file: AnswersFile | None) -> bool:
    """Return whether all answers are known already."""
    return answers_file is not None and all(problem.id in answers_file.answers for problem in questions.problems)


def _sample(backend: Backend, questions: Questions, part: Sequence[Problem], start: int) -> dict[str, Any]:
    key = (questions.seed, _COMPARISON_KEY, start)
    fitting = fit_prompts(part, backend, questions.sampling, questions.limit).problems
    if not fitting:
        return {problem.id: [] for problem in part}
    groups = collect(backend, fitting, questions.samples, questions.sampling, key, environment=questions.environment)
    scored = score_groups(groups, questions.terms)
    records: dict[str, Any] = {problem.id: [] for problem in part}
    for group in scored:
        for rollout in group.rollouts:
            record = {**answer_record(rollout, ""), "tokens": rollout.length}
            del record["metric"]  # which one is asked for may change; the parts are all here
            records[group.problem.id].append(record)
    return records
