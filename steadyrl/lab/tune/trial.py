"""One run of a search for settings, and what came of it.

Its score is the mean of many sampled held-out answers, the same problems and draws for every trial. Two rates are often
a few hundredths apart, and the held-out evaluation of a run has one answer to each of a few problems.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path

import numpy as np

from steadyrl.core import config as configs
from steadyrl.core import plugins
from steadyrl.core.config import Config
from steadyrl.core.errors import SteadyError
from steadyrl.core.rundir import RunDir, read_json, write_json
from steadyrl.core.types import Sampling
from steadyrl.core.words import counted
from steadyrl.doctor.examine import diagnose
from steadyrl.lab.compare.answers import Questions, answer
from steadyrl.lab.compare.findings import TOTAL, sample_value
from steadyrl.lab.compare.subject import find_subject, open_policy
from steadyrl.lab.jobs import Follow, Records, find_run, folder_of_job, run_job, share
from steadyrl.lab.study.plan import Job
from steadyrl.loop.evaluate import HeldoutSet, pick_heldout
from steadyrl.loop.rewards.combine import make_terms, planned_updates

QUARTERS = 4  # of a run; candidates are compared at the first and at the second
ANSWERS = 256  # held-out, that make a score; no more than a quarter of a run samples
SURE = 2.0  # standard errors by which a paused run must lead a whole one, which had more steps to learn


@dataclass(frozen=True)
class Trial:
    """One run of the search."""

    settings: Mapping[str, float]  # what was tried, by dotted name
    seed: int
    score: float | None  # held-out score at its end, see ``score_of``; None where there is none
    critical: tuple[str, ...]
    steps: int
    state: str  # "finished", "paused" or "failed"
    error: float = 0.0  # standard error of the score, of the answers that it is the mean of

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """Return what sorts trials: by score, those with a critical finding later and those without a score last."""
        return self.score is None, bool(self.critical), -(self.score or 0.0)


@dataclass(frozen=True)
class Candidate:
    """What a search tries: a job whose settings are chosen while it runs."""

    label: str  # how lines call it
    settings: Mapping[str, float]  # what is tried, by dotted name
    seed: int
    until: int  # steps after which it pauses or ends


@dataclass(frozen=True)
class Search:
    """A search for settings of a config, in a folder."""

    config: Config
    folder: Path
    follow: Follow = field(default_factory=Follow)

    def job(self, candidate: Candidate) -> Job:
        """Return the run of a candidate."""
        fixed = ["evaluate.every=0", "evaluate.patience=0", "run.preflight=off"]  # pauses take the place of both
        fixed += [f"run.checkpoint_every={self.config.run.steps}", f"run.seed={candidate.seed}"]
        overrides = [f"{name}={value}" for name, value in candidate.settings.items()]
        config = configs.resolve(configs.dump(self.config), [*overrides, *fixed])
        return Job(f"rate-{config.update.learning_rate:.3g}", config)


def try_all(search: Search, candidates: Sequence[Candidate]) -> list[Trial] | None:
    """Try candidates that have not been tried, beside other processes; None where the user stopped it."""
    folders = {f"{n}": folder_of_job(search.folder, search.job(candidate)) for n, candidate in enumerate(candidates)}
    files = {key: folder / f"trial-{candidates[int(key)].until:06d}.json" for key, folder in folders.items()}

    def make(key: str) -> None:
        trial = make_trial(search, candidates[int(key)])
        if not search.follow.stop():
            write_json(files[key], asdict(trial))

    if not share(folders, lambda key: files[key].is_file(), make, search.follow):
        return None
    records = map(read_json, files.values())
    return [Trial(**{**record, "critical": tuple(record["critical"])}) for record in records]


def make_trial(search: Search, candidate: Candidate) -> Trial:
    """Make a run of the search, or go on with the one that was paused or cut, and measure it."""
    job, steps, follow = search.job(candidate), search.config.run.steps, search.follow
    before, state = find_run(search.folder, job), "finished"

    def stop(records: Records) -> bool:
        return follow.stop() or len(records) >= candidate.until

    # It may be at its end, or at this pause before it.
    newest = max(before.checkpoints(), default=0) if before is not None else 0
    if before is None or not (before.status == "finished" or candidate.until <= newest < steps):
        try:
            run_job(job, search.folder, before, follow.event, stop)
        except SteadyError:
            state = "failed"
    run = find_run(search.folder, job)
    if run is None:
        return Trial(candidate.settings, candidate.seed, None, (), 0, "failed")
    if state == "finished" and run.status != "finished":
        state = "paused"
    score, error = (None, 0.0) if state == "failed" or follow.stop() else score_of(search.config, run)
    steps_made = len(run.metrics())
    findings = [f for d in (diagnose(run.path) if steps_made else ()) for f in d.findings if f.severity == "critical"]
    checks = tuple(dict.fromkeys(finding.check for finding in findings))
    trial = Trial(candidate.settings, candidate.seed, score, checks, steps_made, state, error)
    if not follow.stop():
        critical = f"; critical: {', '.join(trial.critical)}" if trial.critical else ""
        score_text = "no score" if score is None else f"score {score:.4f}"
        ending = ", failed" if state == "failed" else ""
        progress = f"after {trial.steps} of {counted(steps, 'step')}"
        follow.note(f"{candidate.label}: {score_text} {progress}{ending}{critical}")
    return trial


def score_of(config: Config, run: RunDir) -> tuple[float | None, float]:
    """Return the mean of the task's metric over sampled answers of a run's newest checkpoint, and its standard error.

    Returns:
        Mean and standard error; None and 0 where no answer has a value.
    """
    task = plugins.open_task(config.task.name, config.task.args, config.run.seed)
    sampling = config.sampling.model_dump()
    n_answers = min(ANSWERS, max(1, config.run.steps // QUARTERS) * config.rollout.rollouts)
    problems = pick_heldout(pick_heldout(plugins.problems_of(task, "heldout"), config.evaluate.problems), n_answers)
    if not problems:
        return None, 0.0
    heldout = HeldoutSet("", problems, make_terms(config.rewards, task, planned_updates(config)))
    questions = Questions.build(
        task, config, heldout, samples=max(1, round(n_answers / len(problems))), sampling=Sampling(**sampling)
    )
    policy = cache(partial(open_policy, find_subject(str(run.path), config)))
    answers = answer(policy, questions, None, lambda answers: None)
    del policy
    gc.collect()  # a model can be in a cycle of references, and the next trial needs its memory
    values = [sample_value(record, task.metric or TOTAL) for records in answers.values() for record in records]
    scores = [value for value in values if value is not None]
    if not scores:
        return None, 0.0
    return float(np.mean(scores)), float(np.std(scores, ddof=1) / math.sqrt(len(scores))) if len(scores) > 1 else 0.0


def best_first(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials with a score, best first.

    Those that came to their end are sorted by critical findings, then by score. A trial that was paused goes before
    them only if it leads the best of them beyond the error of both scores and has no critical finding: the rate that
    led half-way collapsed later, and the lower one that was paused for it is the better answer.
    """
    scored = sorted((trial for trial in trials if trial.score is not None), key=lambda trial: trial.rank)
    finished = [trial for trial in scored if trial.state == "finished"]
    paused = [trial for trial in scored if trial.state == "paused" and not trial.critical]
    if finished:
        best, score = finished[0], finished[0].score or 0.0
        paused = [t for t in paused if (t.score or 0.0) - score > SURE * math.hypot(t.error, best.error)]
    return [*paused, *finished]
