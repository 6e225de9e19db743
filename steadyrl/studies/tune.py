"""Finds a learning rate (and a KL coefficient, ...) within a budget of samples: a range test, then Optuna, then seeds.

    FOLDER/range.json       the range test
    FOLDER/search.log       Optuna's own storage: several processes can work on one search
    FOLDER/trials/          the runs, one folder each
    FOLDER/result.json      the config to use, every trial, and how sure it is

The sampler is TPE. The doctor's critical findings are constraints: a trial that has one is not feasible, whatever it
scores. Successive halving ends trials early by their held-out score, which is measured on the same problems with the
same seeds for all. The best few are repeated with other seeds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl import config as configs
from steadyrl import launch, plugins
from steadyrl.config import Config
from steadyrl.doctor.examine import diagnose
from steadyrl.errors import ConfigError, SteadyError
from steadyrl.rundir import RunDir, read_json, write_json
from steadyrl.studies.measure import heldout_mean
from steadyrl.studies.rate_range import Point, Range, range_test
from steadyrl.studies.seeds import difference, interquartile_mean
from steadyrl.train import Watch

BELOW, ABOVE = 30.0, 10.0  # the search reaches from centre / 30 to centre * 10
RUNGS = 4  # held-out evaluations of a trial; the pruner halves at them
FINALISTS = 3
RATE = "update.learning_rate"
RESULT = "result.json"


@dataclass(frozen=True)
class Space:
    """What is searched besides the rate: settings by dotted name, with their bounds, and whether they are whole.

    Numbers are searched on a logarithmic scale.
    """

    bounds: Mapping[str, tuple[float, float, bool]] = field(default_factory=dict)


@dataclass(frozen=True)
class Options:
    """How to search.

    Attributes:
        samples: Completions that the whole search may take, evaluations not counted.
        seeds: Seeds of the finalists.
        space: What is searched besides the rate.
    """

    samples: int
    seeds: int = 3
    space: Space = field(default_factory=Space)


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


@dataclass(frozen=True)
class Follow:
    """How a user interface follows a search: ``note`` is called with lines, ``stop`` asked after every step."""

    note: Callable[[str], None] = field(default=lambda text: None)
    stop: Callable[[], bool] = field(default=lambda: False)


def tune(config: Config, folder: Path, options: Options, follow: Follow | None = None) -> dict[str, Any] | None:
    """Search for the settings of a config; go on with a search that was cut.

    Returns:
        What result.json holds; None where ``follow.stop`` ended the search.

    Raises:
        ConfigError: The budget is less than one run, or the config has no held-out problems.
        MissingExtraError: Optuna is not installed.
    """
    follow = follow or Follow()
    optuna = plugins.require("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    per_run = config.run.steps * config.rollout.prompts_per_step * config.rollout.samples_per_prompt
    found = _range(config, folder, follow)
    if options.samples < found.samples + per_run:
        raise ConfigError(
            f"the budget is {options.samples} samples; the range test took {found.samples} and one run takes "
            f"{per_run}. Give at least {found.samples + (options.seeds + 1) * per_run}, or lower run.steps"
        )
    search = _search(optuna, config, folder)
    reserved = per_run * (options.seeds - 1) * FINALISTS
    if not search.trials:
        search.enqueue_trial({RATE: found.centre})
    while _used(search, config) + per_run + reserved <= options.samples - found.samples or not _done(search):
        if not _one_trial(optuna, search, config, folder, (found, options.space), follow):
            return None
    trials = [_read(trial) for trial in search.trials if "trial" in trial.user_attrs]
    finals = _finals(config, folder, trials, options, follow)
    if finals is None:
        return None
    result = _result(config, found, trials, finals)
    write_json(folder / RESULT, result)
    return result


def _range(config: Config, folder: Path, follow: Follow) -> Range:
    """Return the range test, made now or before."""
    file = folder / "range.json"
    if file.is_file():
        kept = read_json(file)
        return Range(tuple(Point(**p) for p in kept["points"]), kept["centre"], kept["samples"], kept["before"])
    follow.note("range test: one step at each rate")
    found = range_test(
        config,
        lambda p: follow.note(
            f"    rate {p.rate:.1e}: "
            + (
                "the step cannot be made"
                if p.kl is None
                else f"KL of the step {p.kl:.2g}, entropy x {p.entropy:.2f}, reward {p.reward:.3f}"
            )
        ),
    )
    kept = {"points": [p.record() for p in found.points], "centre": found.centre, "samples": found.samples}
    write_json(file, {**kept, "before": found.before})
    return found


def _search(optuna: Any, config: Config, folder: Path) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    backend = optuna.storages.journal.JournalFileBackend(str(folder / "search.log"))
    step = max(1, config.run.steps // RUNGS)
    return optuna.create_study(
        storage=optuna.storages.JournalStorage(backend),
        study_name="tune",
        direction="maximize",
        load_if_exists=True,
        sampler=optuna.samplers.TPESampler(seed=config.run.seed, n_startup_trials=4),
        pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=step, reduction_factor=2),
    )


def _one_trial(
    optuna: Any, search: Any, config: Config, folder: Path, where: tuple[Range, Space], follow: Follow
) -> bool:
    """Make a trial; return False where the user stopped it."""
    found, space = where
    trial = search.ask()
    settings = {RATE: trial.suggest_float(RATE, found.centre / BELOW, min(10.0, found.centre * ABOVE), log=True)}
    for name, (low, high, whole) in space.bounds.items():
        settings[name] = (
            trial.suggest_int(name, int(low), int(high), log=True)
            if whole
            else trial.suggest_float(name, low, high, log=True)
        )
    pruned: list[bool] = []

    def step(record: Mapping[str, Any]) -> None:
        value = record.get(f"heldout/{_metric(folder, trial.number)}")
        if value is not None:
            trial.report(value, record["step"] + 1)
            pruned.append(bool(trial.should_prune()))

    watch = Watch(step=step, stop=lambda: follow.stop() or any(pruned))
    made = _run(config, settings, config.run.seed, folder / "trials" / f"{trial.number:03d}", watch)
    if follow.stop():
        search.tell(trial, state=optuna.trial.TrialState.FAIL)
        return False
    trial.set_constraint("critical", float(len(made.critical)))
    trial.set_user_attr("trial", json.dumps(made.record()))
    if made.score is None:
        search.tell(trial, state=optuna.trial.TrialState.FAIL)
    else:
        search.tell(trial, made.score)
    shown = ", ".join(f"{name.rpartition('.')[2]} {value:.3g}" for name, value in settings.items())
    score = "no score" if made.score is None else f"score {made.score:.4f}"
    why = f"; critical: {', '.join(made.critical)}" if made.critical else ""
    follow.note(f"trial {trial.number}: {shown}: {score}, {made.steps} steps, {made.state}{why}")
    return True


def _run(config: Config, settings: Mapping[str, float], seed: int, place: Path, watch: Watch) -> Trial:
    """Make a run of the search, and measure it."""
    every = max(1, config.run.steps // RUNGS)
    overrides = [*(f"{name}={value}" for name, value in settings.items()), f"run.seed={seed}"]
    plain = configs.dump(configs.resolve(configs.dump(config), [*overrides, f"evaluate.every={every}"]))
    plain["run"] |= {"folder": str(place), "checkpoint_every": config.run.steps, "preflight": "off"}
    try:
        launch.run(plain, watch=watch)
        state = "finished"
    except SteadyError:
        state = "failed"
    runs = sorted(place.iterdir()) if place.is_dir() else []
    if not runs:
        return Trial(settings, seed, None, (), 0, "failed")
    run = RunDir(runs[-1])
    if state == "finished" and run.status != "finished":
        state = "pruned"
    return Trial(settings, seed, _score(run), _critical(run), len(run.metrics()), state)


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


def _metric(folder: Path, number: int) -> str:
    runs = sorted((folder / "trials" / f"{number:03d}").iterdir())
    return str(RunDir(runs[-1]).info().get("metric") or "reward")


def _read(trial: Any) -> Trial:
    kept = json.loads(trial.user_attrs["trial"])
    return Trial(**{**kept, "critical": tuple(kept["critical"])})


def _done(search: Any) -> bool:
    return any("trial" in trial.user_attrs for trial in search.trials)


def _used(search: Any, config: Config) -> int:
    per_step = config.rollout.prompts_per_step * config.rollout.samples_per_prompt
    return sum(_read(trial).steps * per_step for trial in search.trials if "trial" in trial.user_attrs)


def best_first(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that ended with a score: those without critical findings first, then by score."""
    known = [trial for trial in trials if trial.score is not None and trial.state == "finished"]
    return sorted(known, key=lambda trial: (len(trial.critical) > 0, -(trial.score or 0.0)))


def _finals(
    config: Config, folder: Path, trials: Sequence[Trial], options: Options, follow: Follow
) -> list[tuple[Trial, list[Trial]]] | None:
    """Repeat the best trials with other seeds; return each with all its runs, or None where the user stopped."""
    found = []
    for number, best in enumerate(best_first(trials)[:FINALISTS]):
        runs = [best]
        for seed in range(config.run.seed + 1, config.run.seed + options.seeds):
            place = folder / "finals" / f"{number}-s{seed}"
            kept = place / "trial.json"
            if kept.is_file():
                plain = read_json(kept)
                runs.append(Trial(**{**plain, "critical": tuple(plain["critical"])}))
                continue
            made = _run(config, best.settings, seed, place / "runs", Watch(stop=follow.stop))
            if follow.stop():
                return None
            write_json(kept, made.record())
            shown = "no score" if made.score is None else f"{made.score:.4f}"
            follow.note(f"finalist {number + 1}, seed {seed}: {shown}")
            runs.append(made)
        found.append((best, runs))
    return found


def _result(
    config: Config, found: Range, trials: Sequence[Trial], finals: Sequence[tuple[Trial, list[Trial]]]
) -> dict[str, Any]:
    """Return the settings to use, all that was tried, and how sure it is."""
    ranked = sorted(
        ((_level(runs), trial, runs) for trial, runs in finals),
        key=lambda entry: (any(run.critical for run in entry[2]), -entry[0]),
    )
    if not ranked:
        raise ConfigError("no trial ended with a held-out score; see trials/ for why")
    level, best, runs = ranked[0]
    lead = None
    if len(ranked) > 1:
        change = difference(_scores(ranked[1][2]), _scores(runs))
        lead = None if change is None else {"difference": change.change, "low": change.low, "high": change.high}
    per_step = config.rollout.prompts_per_step * config.rollout.samples_per_prompt
    made = [*trials, *(run for _, several in finals for run in several[1:])]
    return {
        "settings": dict(best.settings),
        "score": level,
        "scores": _scores(runs),
        "critical": sorted({name for run in runs for name in run.critical}),
        "lead": lead,
        "samples": found.samples + per_step * sum(trial.steps for trial in made),
        "range": {"centre": found.centre, "points": [point.record() for point in found.points]},
        "trials": [trial.record() for trial in trials],
        "finals": [[run.record() for run in several] for _, several in finals],
    }


def _scores(runs: Sequence[Trial]) -> list[float]:
    return [run.score for run in runs if run.score is not None]


def _level(runs: Sequence[Trial]) -> float:
    scores = _scores(runs)
    return float(interquartile_mean(np.array(scores))) if scores else float("-inf")
