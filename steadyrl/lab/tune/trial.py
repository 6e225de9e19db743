"""One run of a search for settings, and what came of it.

Its score is the mean of many sampled held-out answers, the same problems and draws for every trial. Two rates are often
a few hundredths apart, and the held-out evaluation of a run has one answer to each of a few problems.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.core import config as configs
from steadyrl.core import plugins
from steadyrl.core.config import Config
from steadyrl.core.errors import SteadyError
from steadyrl.core.rundir import RunDir
from steadyrl.core.types import Sampling
from steadyrl.doctor.examine import diagnose
from steadyrl.lab.compare.answers import Questions, answer
from steadyrl.lab.compare.findings import TOTAL, sample_value
from steadyrl.lab.compare.subject import find_subject, open_policy
from steadyrl.loop import launch
from steadyrl.loop.evaluate import pick_heldout
from steadyrl.loop.rewards.combine import make_terms, planned_updates
from steadyrl.loop.rollout.episode import environment_of
from steadyrl.loop.rollout.prompts import limit_of
from steadyrl.loop.train import Watch

RUNGS = 4  # held-out evaluations of a trial; the pruner halves at them
ANSWERS = 256  # held-out, that make a score; no more than a trial samples between two rungs
SURE = 2.0  # standard errors by which a paused run must lead a whole one, which had more steps to learn


@dataclass(frozen=True)
class Trial:
    """One run of the search.

    Attributes:
        settings: What was tried, by dotted name.
        seed: Its seed.
        score: Held-out score at its end, see ``score_of``; None where there is none.
        critical: The doctor's critical findings.
        steps: Made.
        state: "finished", "pruned" or "failed".
        error: Standard error of the score, of the answers that it is the mean of.
    """

    settings: Mapping[str, float]
    seed: int
    score: float | None
    critical: tuple[str, ...]
    steps: int
    state: str
    error: float = 0.0

    def record(self) -> dict[str, Any]:
        """Return plain data."""
        return {**self.__dict__, "settings": dict(self.settings), "critical": list(self.critical)}

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Trial:
        """Return the trial of a record."""
        return cls(**{**record, "critical": tuple(record["critical"])})


def make_trial(
    config: Config,
    settings: Mapping[str, float],
    seed: int,
    place: Path,
    watch: Watch,
    until: int | None = None,
) -> Trial:
    """Make a run of the search, or go on with the one that was paused or cut in its folder, and measure it.

    Args:
        config: Of the search.
        settings: What is tried, by dotted name.
        seed: Of the run.
        place: The folder of its run directory.
        watch: Follows it.
        until: Steps after which it pauses; None for its end.
    """
    every = max(1, config.run.steps // RUNGS) if until is None else 0  # of a pause, the score is all that counts
    overrides = [*(f"{name}={value}" for name, value in settings.items()), f"run.seed={seed}"]
    plain = configs.dump(configs.resolve(configs.dump(config), [*overrides, f"evaluate.every={every}"]))
    plain["run"] |= {"folder": str(place), "checkpoint_every": config.run.steps, "preflight": "off"}
    begun, done = _newest(place), 0
    saved = begun.checkpoints() if begun is not None else []

    def step(record: Mapping[str, Any]) -> None:
        nonlocal done
        done = record["step"] + 1
        watch.step(record)

    follow = replace(watch, step=step, stop=lambda: watch.stop() or (until is not None and done >= until))
    state, paused = "finished", bool(saved) and until is not None and until < config.run.steps and saved[-1] >= until
    if not paused and (begun is None or begun.status != "finished"):
        try:
            launch.run(None if saved else plain, resume=begun if saved else None, watch=follow)
        except SteadyError:
            state = "failed"
    run = _newest(place)
    if run is None:
        return Trial(settings, seed, None, (), 0, "failed")
    if state == "finished" and run.status != "finished":
        state = "pruned"
    ended = state == "failed" or watch.stop()
    score, error = (_last_measured(run), 0.0) if ended else score_of(config, run)
    return Trial(settings, seed, score, _critical(run), len(run.metrics()), state, error)


def score_of(config: Config, run: RunDir) -> tuple[float | None, float]:
    """Return the mean of the task's metric over sampled answers of a run's newest checkpoint, and its standard error.

    Args:
        config: Of the search; its seed, problems and sampling are the same for all trials.
        run: With a checkpoint.

    Returns:
        Mean and standard error; None and 0 where no answer has a value.
    """
    task = plugins.open_task(config.task.name, config.task.args, config.run.seed)
    sampling = Sampling(**config.sampling.model_dump())
    per_step = config.rollout.prompts_per_step * config.rollout.samples_per_prompt
    wanted = min(ANSWERS, max(1, config.run.steps // RUNGS) * per_step)
    problems = pick_heldout(pick_heldout(plugins.problems_of(task, "heldout"), config.evaluate.problems), wanted)
    if not problems:
        return None, 0.0
    questions = Questions(
        problems=problems,
        samples=max(1, round(wanted / len(problems))),
        sampling=sampling,
        terms=make_terms(config.rewards, task, planned_updates(config)),
        seed=config.run.seed,
        environment=environment_of(task, sampling, config.rollout),
        limit=limit_of(task),
    )
    backend = open_policy(find_subject(str(run.path), config))
    answers = answer(backend, questions, None, lambda answers: None)
    del backend
    gc.collect()  # a model can be in a cycle of references, and the next trial needs its memory
    values = [sample_value(record, task.metric or TOTAL) for several in answers.values() for record in several]
    scores = [value for value in values if value is not None]
    if not scores:
        return None, 0.0
    return float(np.mean(scores)), float(np.std(scores, ddof=1) / math.sqrt(len(scores))) if len(scores) > 1 else 0.0


def _newest(place: Path) -> RunDir | None:
    runs = sorted(path for path in place.iterdir() if path.is_dir()) if place.is_dir() else []
    return RunDir(runs[-1]) if runs else None


def _last_measured(run: RunDir) -> float | None:
    """Return the last score that a run measured itself, of one that did not come to its end."""
    name = f"heldout/{run.info().get('metric') or 'reward'}"
    scores = [record[name] for record in run.metrics() if isinstance(record.get(name), int | float)]
    return float(scores[-1]) if scores else None


def _critical(run: RunDir) -> tuple[str, ...]:
    if not run.metrics():
        return ()
    checks = (f.check for diagnosis in diagnose(run.path) for f in diagnosis.findings if f.severity == "critical")
    return tuple(dict.fromkeys(checks))


def best_first(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials with a score, best first.

    Those that came to their end are sorted by critical findings, then by score. A trial that was paused goes before
    them only if it leads the best of them beyond the error of both scores and has no critical finding: the rate that
    led half-way collapsed later, and the lower one that was paused for it is the better answer.
    """
    scored = [trial for trial in trials if trial.score is not None]
    finished = sorted((t for t in scored if t.state == "finished"), key=lambda t: (bool(t.critical), -(t.score or 0.0)))
    paused = [trial for trial in scored if trial.state == "pruned" and not trial.critical]
    if finished:
        paused = [trial for trial in paused if _leads(trial, finished[0])]
    return [*sorted(paused, key=lambda trial: -(trial.score or 0.0)), *finished]


def _leads(paused: Trial, finished: Trial) -> bool:
    return (paused.score or 0.0) - (finished.score or 0.0) > SURE * math.hypot(paused.error, finished.error)
