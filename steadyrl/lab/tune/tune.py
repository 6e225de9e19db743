"""Finds a learning rate (and a KL coefficient, ...) within a budget of samples: a range test, then Optuna, then seeds.

    FOLDER/range.json       the range test
    FOLDER/halving/         the opening: rates around the centre of the range test, halved at a quarter and a half
    FOLDER/search.log       Optuna's own storage
    FOLDER/trials/          its runs, one folder each
    FOLDER/claims/          which process makes what, as locks
    FOLDER/result.json      the config to use, every trial, and how sure it is

The sampler is TPE. The doctor's critical findings are constraints: a trial that has one is not feasible, whatever it
scores. Successive halving ends trials early by their held-out score, which is measured on the same problems with the
same seeds for all. The best few are repeated with other seeds.

Several processes may work on one search, also on several machines that share the folder. One makes the range test. Then
each makes trials of its own, and repeats of the best ones, until there is nothing left to do. What a process had begun
when it was lost is free for the others.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.core import config as configs
from steadyrl.core import plugins
from steadyrl.core.config import Config
from steadyrl.core.errors import ConfigError
from steadyrl.core.rundir import RunDir, read_json, write_json
from steadyrl.lab.seeds import difference, interquartile_mean
from steadyrl.lab.study.plan import flat
from steadyrl.lab.tune.claim import awaited, claimed
from steadyrl.lab.tune.halving import halve, rates_around, shared
from steadyrl.lab.tune.rate_range import Point, Range, range_test
from steadyrl.lab.tune.trial import RUNGS, Trial, best_first, make_trial
from steadyrl.loop.train import Watch

BELOW, ABOVE = 30.0, 10.0  # the search reaches from centre / 30 to centre * 10
FINALISTS = 3
RATE = "update.learning_rate"
OPENING = "opening"  # marks its trials in Optuna's storage, with their number
RESULT = "result.json"
CLAIMS = "claims"
_POLL_S = 0.5  # between looks at what other processes have done


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
class Follow:
    """How a user interface follows a search: ``note`` is called with lines, ``stop`` asked after every step."""

    note: Callable[[str], None] = field(default=lambda text: None)
    stop: Callable[[], bool] = field(default=lambda: False)


def tune(config: Config, folder: Path, options: Options, follow: Follow | None = None) -> dict[str, Any] | None:
    """Search for the settings of a config; go on with a search that was cut.

    Returns:
        What result.json holds; None where ``follow.stop`` ended the search.

    Raises:
        ConfigError: The budget is less than one run, a setting cannot be searched, the config has no held-out problems,
            or the folder holds the search of another one.
        MissingExtraError: Optuna is not installed.
    """
    follow = follow or Follow()
    _require_searchable(config, options.space)
    optuna = plugins.require("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    per_run = config.run.steps * _samples(config)
    rate_range = _range(config, folder, options.space, follow)
    if rate_range is None:
        return None
    if options.samples < rate_range.samples + per_run:
        raise ConfigError(
            f"the budget is {options.samples} samples; the range test took {rate_range.samples} and one run takes "
            f"{per_run}. Give at least {rate_range.samples + (options.seeds + 1) * per_run}, or lower run.steps"
        )
    budget = options.samples - rate_range.samples - per_run * (options.seeds - 1) * FINALISTS
    bounds = _bounds(rate_range)
    rates = rates_around(rate_range.centre, bounds, config.run.steps, budget // _samples(config))
    opening = halve(config, RATE, rates, folder / "halving", folder / CLAIMS, follow.note, follow.stop)
    if opening is None:
        return None
    with awaited(folder / CLAIMS / "trials"):
        search = _Search(optuna, _study(optuna, config, folder), config, folder, bounds, options.space, follow)
        _add_opening(search, opening)
    if not _all_trials(search, budget):
        return None
    study = search.study
    trials = [_read(trial) for trial in study.trials if "trial" in trial.user_attrs]
    finals = _finals(config, folder, trials, options, follow)
    if finals is None:
        return None
    result = _result(config, rate_range, trials, finals)
    with awaited(folder / CLAIMS / "result"):
        write_json(folder / RESULT, result)
    return result


def _range(config: Config, folder: Path, space: Space, follow: Follow) -> Range | None:
    """Return the range test, made now, before, or by another process; None where the user stopped the wait for it."""
    file = folder / "range.json"
    while not file.is_file():
        with claimed(folder / CLAIMS / "range") as mine:
            if mine and not file.is_file():
                _make_range(config, file, space, follow)
        if follow.stop():
            return None
        if not mine:
            time.sleep(_POLL_S)
    saved, settings = read_json(file), _settings(config, space)
    before = saved.get("settings", settings)
    if changed := sorted(name for name in {**before, **settings} if before.get(name) != settings.get(name)):
        raise ConfigError(
            f"'{folder}' holds a search with other settings ({', '.join(changed)}); go on with those that it began "
            "with, or give another --folder"
        )
    return Range(tuple(Point(**p) for p in saved["points"]), saved["centre"], saved["samples"], saved["before"])


def _make_range(config: Config, file: Path, space: Space, follow: Follow) -> None:
    follow.note("range test: one step at each rate")
    rate_range = range_test(config, lambda point: follow.note(f"    rate {point.rate:.1e}: {_shown(point)}"))
    record = {
        "points": [p.record() for p in rate_range.points],
        "centre": rate_range.centre,
        "samples": rate_range.samples,
    }
    write_json(file, {**record, "before": rate_range.before, "settings": _settings(config, space)})


def _settings(config: Config, space: Space) -> dict[str, Any]:
    """Return what makes a search another one, by dotted name; what is at its default is left out, as in ``Job.key``."""
    plain = flat(config.model_dump(mode="json", exclude_defaults=True))
    searched = {f"--also {name}": list(bounds) for name, bounds in space.bounds.items()}
    return {name: value for name, value in (plain | searched).items() if name not in ("run.folder", RATE)}


def _require_searchable(config: Config, space: Space) -> None:
    """Refuse a setting that no trial could have, before the first of them."""
    for name, (low, high, integer) in space.bounds.items():
        if name in (RATE, "run.seed"):
            raise ConfigError(f"--also {name}: the search itself sets it; remove it")
        for value in (low, high):
            configs.resolve(configs.dump(config), [f"{name}={int(value) if integer else value}"])


def _shown(point: Point) -> str:
    if point.kl is None:
        return "the step cannot be made"
    after = "" if point.reward is None else f", entropy x {point.entropy:.2f}, reward {point.reward:.3f}"
    return f"KL of the step {point.kl:.2g}{after}"


def _study(optuna: Any, config: Config, folder: Path) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    backend = optuna.storages.journal.JournalFileBackend(str(folder / "search.log"))
    step = max(1, config.run.steps // RUNGS)
    return optuna.create_study(
        storage=optuna.storages.JournalStorage(backend),
        study_name="tune",
        direction="maximize",
        load_if_exists=True,
        pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=step, reduction_factor=2),
    )


def _sampler(optuna: Any, config: Config, number: int) -> Any:
    """Return a sampler that no other process has: with equal seeds two of them would try the same rates."""
    return optuna.samplers.TPESampler(seed=config.run.seed + number, n_startup_trials=4, constant_liar=True)


@dataclass(frozen=True)
class _Search:
    """What all trials share: Optuna and its study, the config and the folder, the rates and other settings to try."""

    optuna: Any
    study: Any
    config: Config
    folder: Path
    bounds: tuple[float, float]
    space: Space
    follow: Follow


def _bounds(rate_range: Range) -> tuple[float, float]:
    """Return the lowest and the highest rate of the search."""
    return rate_range.centre / BELOW, min(10.0, rate_range.centre * ABOVE)


def _add_opening(search: _Search, opening: Sequence[Trial]) -> None:
    """Let the sampler know what became of the rates of the opening."""
    added_numbers = {trial.user_attrs.get(OPENING) for trial in search.study.trials if "trial" in trial.user_attrs}
    for number, outcome in enumerate(opening):
        if number not in added_numbers:
            search.study.enqueue_trial(dict(outcome.settings))
            trial = search.study.ask()
            trial.suggest_float(RATE, *search.bounds, log=True)
            trial.set_user_attr(OPENING, number)
            _tell(search, trial, outcome)


def _tell(search: _Search, trial: Any, outcome: Trial) -> None:
    trial.set_constraint("critical", float(len(outcome.critical)))
    trial.set_user_attr("trial", json.dumps(outcome.record()))
    if outcome.score is None:
        search.study.tell(trial, state=search.optuna.trial.TrialState.FAIL)
    else:
        search.study.tell(trial, outcome.score)


def _all_trials(search: _Search, budget: int) -> bool:
    """Make trials, beside other processes, until the budget is spent; return False where the user stopped it."""
    per_run = _samples(search.config) * search.config.run.steps
    while not search.follow.stop():
        with ExitStack() as stack:
            trial = None
            with awaited(search.folder / CLAIMS / "trials"):
                running_elsewhere = _made_by_others(search)
                spent = _used(search.study, search.config) + (running_elsewhere + 1) * per_run > budget
                if not spent or not (running_elsewhere or _done(search.study)):
                    search.study.sampler = _sampler(search.optuna, search.config, len(search.study.trials))
                    trial = search.study.ask()
                    stack.enter_context(claimed(_claim(search.folder, trial.number)))
            if trial is not None:
                if not _one_trial(search, trial):
                    return False
            elif not running_elsewhere:
                return True
            else:  # one of them may be pruned, and leave a part of the budget
                time.sleep(_POLL_S)
    return False


def _claim(folder: Path, number: int) -> Path:
    return folder / CLAIMS / f"trial-{number:03d}"


def _made_by_others(search: _Search) -> int:
    """Return how many trials other processes are making, and give up those whose process was lost."""
    count, states = 0, search.optuna.trial.TrialState
    for trial in search.study.get_trials(deepcopy=False, states=(states.RUNNING,)):
        with claimed(_claim(search.folder, trial.number)) as lost:
            if lost:
                search.study.tell(trial.number, state=states.FAIL)
            else:
                count += 1
    return count


def _one_trial(search: _Search, trial: Any) -> bool:
    """Make a trial; return False where the user stopped it."""
    config, folder, follow = search.config, search.folder, search.follow
    settings = {RATE: trial.suggest_float(RATE, *search.bounds, log=True)}
    for name, (low, high, integer) in search.space.bounds.items():
        settings[name] = (
            trial.suggest_int(name, int(low), int(high), log=True)
            if integer
            else trial.suggest_float(name, low, high, log=True)
        )
    pruned: list[bool] = []

    def step(record: Mapping[str, Any]) -> None:
        value = record.get(f"heldout/{_metric(folder, trial.number)}")
        if value is not None:
            trial.report(value, record["step"] + 1)
            pruned.append(bool(trial.should_prune()))

    watch = Watch(step=step, stop=lambda: follow.stop() or any(pruned))
    outcome = make_trial(config, settings, config.run.seed, folder / "trials" / f"{trial.number:03d}", watch)
    if follow.stop():
        search.study.tell(trial, state=search.optuna.trial.TrialState.FAIL)
        return False
    _tell(search, trial, outcome)
    shown = ", ".join(f"{name.rpartition('.')[2]} {value:.3g}" for name, value in settings.items())
    score = "no score" if outcome.score is None else f"score {outcome.score:.4f}"
    why = f"; critical: {', '.join(outcome.critical)}" if outcome.critical else ""
    follow.note(f"trial {trial.number}: {shown}: {score}, {outcome.steps} steps, {outcome.state}{why}")
    return True


def _metric(folder: Path, number: int) -> str:
    runs = sorted((folder / "trials" / f"{number:03d}").iterdir())
    return str(RunDir(runs[-1]).info().get("metric") or "reward")


def _read(trial: Any) -> Trial:
    return Trial.read(json.loads(trial.user_attrs["trial"]))


def _done(study: Any) -> bool:
    return any("trial" in trial.user_attrs for trial in study.trials)


def _used(study: Any, config: Config) -> int:
    return sum(_read(trial).steps * _samples(config) for trial in study.trials if "trial" in trial.user_attrs)


def _samples(config: Config) -> int:
    """Return the completions of a step."""
    return config.rollout.prompts_per_step * config.rollout.samples_per_prompt


def _finals(
    config: Config, folder: Path, trials: Sequence[Trial], options: Options, follow: Follow
) -> list[tuple[Trial, list[Trial]]] | None:
    """Repeat the best trials with other seeds, beside other processes.

    Returns:
        Each of the best with all its runs, or None where the user stopped.
    """
    best = best_first(trials)[:FINALISTS]
    seeds = range(config.run.seed + 1, config.run.seed + options.seeds)
    # By what they try: with more samples other trials may be the best.
    names = [
        hashlib.sha256(json.dumps(dict(trial.settings), sort_keys=True).encode()).hexdigest()[:8] for trial in best
    ]
    places = {
        (n, seed): folder / "finals" / f"{name}-s{seed}" / "trial.json"
        for n, name in enumerate(names)
        for seed in seeds
    }

    def make(key: tuple[int, int], file: Path) -> Trial:
        number, seed = key
        trial = make_trial(config, best[number].settings, seed, file.parent / "runs", Watch(stop=follow.stop))
        if not follow.stop():
            shown = "no score" if trial.score is None else f"{trial.score:.4f}"
            follow.note(f"finalist {number + 1}, seed {seed}: {shown}")
        return trial

    if not shared(places, folder / CLAIMS, make, follow.stop):
        return None
    return [
        (trial, [trial, *(Trial.read(read_json(places[n, seed])) for seed in seeds)]) for n, trial in enumerate(best)
    ]


def _result(
    config: Config, rate_range: Range, trials: Sequence[Trial], finals: Sequence[tuple[Trial, list[Trial]]]
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
    all_trials = [*trials, *(run for _, several in finals for run in several[1:])]
    return {
        "settings": dict(best.settings),
        "score": level,
        "scores": _scores(runs),
        "critical": sorted({name for run in runs for name in run.critical}),
        "paused": best.steps if best.state == "pruned" else None,
        "lead": lead,
        "samples": rate_range.samples + _samples(config) * sum(trial.steps for trial in all_trials),
        "range": {"centre": rate_range.centre, "points": [point.record() for point in rate_range.points]},
        "trials": [trial.record() for trial in trials],
        "finals": [[run.record() for run in several] for _, several in finals],
    }


def _scores(runs: Sequence[Trial]) -> list[float]:
    return [run.score for run in runs if run.score is not None]


def _level(runs: Sequence[Trial]) -> float:
    scores = _scores(runs)
    return float(interquartile_mean(np.array(scores))) if scores else float("-inf")
