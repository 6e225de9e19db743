"""One run of a search for settings, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from steadyrl import config as configs
from steadyrl import launch
from steadyrl.config import Config
from steadyrl.doctor.examine import diagnose
from steadyrl.errors import SteadyError
from steadyrl.rundir import RunDir
from steadyrl.studies.measure import heldout_mean
from steadyrl.train import Watch

RUNGS = 4  # held-out evaluations of a trial; the pruner halves at them


@dataclass(frozen=True)
class Trial:
    """One run of the search.

    Attributes:
        settings: What was tried, by dotted name.
        seed: Its seed.
        score: Held-out score at its end; None where there is none.
        critical: The doctor's critical findings.
        steps: Made.
        state: "finished", "pruned" or "failed".
    """

    settings: Mapping[str, float]
    seed: int
    score: float | None
    critical: tuple[str, ...]
    steps: int
    state: str

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
    every = max(1, config.run.steps // RUNGS)
    overrides = [*(f"{name}={value}" for name, value in settings.items()), f"run.seed={seed}"]
    plain = configs.dump(configs.resolve(configs.dump(config), [*overrides, f"evaluate.every={every}"]))
    plain["run"] |= {"folder": str(place), "checkpoint_every": config.run.steps, "preflight": "off"}
    begun, done = _newest(place), 0
    kept = begun.checkpoints() if begun is not None else []

    def step(record: Mapping[str, Any]) -> None:
        nonlocal done
        done = record["step"] + 1
        watch.step(record)

    follow = replace(watch, step=step, stop=lambda: watch.stop() or (until is not None and done >= until))
    state, paused = "finished", bool(kept) and until is not None and until < config.run.steps and kept[-1] >= until
    if not paused and (begun is None or begun.status != "finished"):
        try:
            launch.run(None if kept else plain, resume=begun if kept else None, watch=follow)
        except SteadyError:
            state = "failed"
    run = _newest(place)
    if run is None:
        return Trial(settings, seed, None, (), 0, "failed")
    if state == "finished" and run.status != "finished":
        state = "pruned"
    return Trial(settings, seed, _score(run), _critical(run), len(run.metrics()), state)


def _newest(place: Path) -> RunDir | None:
    runs = sorted(path for path in place.iterdir() if path.is_dir()) if place.is_dir() else []
    return RunDir(runs[-1]) if runs else None


def _score(run: RunDir) -> float | None:
    """Return the score at the end; of a run that was pruned the last one that was measured."""
    after = heldout_mean(run, "after", "metric")
    if after is not None:
        return after
    name = f"heldout/{run.info().get('metric') or 'reward'}"
    known = [record[name] for record in run.metrics() if isinstance(record.get(name), int | float)]
    return float(known[-1]) if known else None


def _critical(run: RunDir) -> tuple[str, ...]:
    if not run.metrics():
        return ()
    found = (f.check for one in diagnose(run.path) for f in one.findings if f.severity == "critical")
    return tuple(dict.fromkeys(found))


def best_first(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that ended with a score: those without critical findings first, then by score."""
    known = [trial for trial in trials if trial.score is not None and trial.state == "finished"]
    return sorted(known, key=lambda trial: (len(trial.critical) > 0, -(trial.score or 0.0)))
