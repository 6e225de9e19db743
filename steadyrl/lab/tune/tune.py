"""Finds a learning rate (and a KL coefficient, ...) within a budget of samples: a range test, then Optuna, then seeds.

    FOLDER/range.json           the range test
    FOLDER/runs/KEY/            a run, and in trial-000020.json what it was after so many steps
    FOLDER/search.log           Optuna's own storage
    FOLDER/result.json          the config to use, every trial, and how sure it is

The opening tries rates around the centre of the range test and halves them at a quarter and a half: the run of a rate
pauses there, and the better half goes on. A budget of a few runs holds many quarters of runs. Two whole runs say which
of two rates is better, and four quarters which of four rates over a decade and a half. Then Optuna's TPE chooses. The
doctor's critical findings are constraints: a trial that has one is not feasible, whatever it scores. Successive halving
ends trials early by their held-out score, which is measured on the same problems with the same seeds for all. The best
few are repeated with other seeds.

All runs are jobs as those of a study are, only that they are chosen on the way, so several processes may work on one
search (see ``jobs``), also equal commands that a launcher starts. Optuna's storage says which trials there are, and the
locks of their jobs which of them are lost.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.core import config as configs
from steadyrl.core import plugins
from steadyrl.core.config import Config
from steadyrl.core.errors import ConfigError, RunError
from steadyrl.core.rundir import DONE, read_json, write_json
from steadyrl.doctor.readers.spelling import flat_settings
from steadyrl.lab.elsewhere import End, make_elsewhere
from steadyrl.lab.jobs import POLL_S, Follow, awaited, claimed, find_run, folder_of_job, share
from steadyrl.lab.launchers.command import Command, Ended, Launcher, our_command
from steadyrl.lab.seeds import difference, interquartile_mean
from steadyrl.lab.tune.rate_range import RATE, Point, Range, range_test
from steadyrl.lab.tune.trial import RUNGS, Candidate, Search, Trial, best_first, make_trial, samples_per_step, try_all

BELOW, ABOVE = 30.0, 10.0  # the search reaches from centre / 30 to centre * 10
FINALISTS = 3
OPENING = "opening"  # marks its trials in Optuna's storage, with their number
RESULT = "result.json"


# Settings by dotted name: lowest and highest value on a logarithmic scale, and whether the setting is a whole number.
Space = Mapping[str, tuple[float, float, bool]]
PER_DECADE = 2  # rates
TRIED = (0, 1, 2, -1)  # rates above the centre: on three tasks the best rate was 2, 5 and 18 times that of the centre
WIDTHS = (4, 3, 1)  # rates to begin with: as many as the budget holds
INTERRUPTED = 130  # exit status of `steadyrl tune` after a signal


@dataclass(frozen=True)
class Options:
    """How to search."""

    samples: int
    """Completions that the whole search may take, evaluations not counted."""
    seeds: int = 3
    """Seeds of the finalists."""
    space: Space = field(default_factory=dict)
    """What is searched besides the rate."""


def tune(config: Config, folder: Path, options: Options, follow: Follow | None = None) -> dict[str, Any] | None:
    """Search for the settings of a config; go on with a search that was cut.

    Returns:
        What result.json holds; None where ``follow.stop`` ended the search.

    Raises:
        ConfigError: The budget is less than one run, a setting cannot be searched, the config has no held-out problems,
            or the folder holds the search of another one.
        MissingExtraError: Optuna is not installed.
    """
    search = Search(config, folder, follow or Follow())
    optuna = require_searchable(config, options.space)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    per_run = config.run.steps * samples_per_step(config)
    rate_range = _range(search, options.space)
    if rate_range is None:
        return None
    if options.samples < rate_range.samples + per_run:
        raise ConfigError(
            f"the budget is {options.samples} samples; the range test took {rate_range.samples} and one run takes "
            f"{per_run}. Give at least {rate_range.samples + (options.seeds + 1) * per_run}, or lower run.steps"
        )
    budget = options.samples - rate_range.samples - per_run * (options.seeds - 1) * FINALISTS
    bounds = _bounds(rate_range)
    rates = rates_around(rate_range.centre, bounds, config.run.steps, budget // samples_per_step(config))
    opening = halve(search, rates)
    if opening is None:
        return None
    with awaited(folder):
        sampler = _Sampler(optuna, _study(optuna, config, folder), search, bounds, options.space)
        _add_opening(sampler, opening)
    if not _all_trials(sampler, budget):
        return None
    trials = _tried(sampler.study)
    finals = _finals(search, trials, options.seeds)
    if finals is None:
        return None
    result = _result(config, rate_range, trials, finals)
    with awaited(folder):
        write_json(folder / RESULT, result)
    return result


def _range(search: Search, space: Space) -> Range | None:
    """Return the range test, made now, before, or by another process; None where the user stopped the wait for it."""
    config, file, note = search.config, search.folder / "range.json", search.follow.note

    def make(key: str) -> None:
        note("range test: one step at each rate")
        measured = range_test(config, lambda point: note(f"    rate {point.rate:.1e}: {_shown(point)}"))
        write_json(file, {**asdict(measured), "settings": _settings(config, space)})

    if not share({"range": search.folder}, lambda key: file.is_file(), make, search.follow):
        return None
    saved, settings = read_json(file), _settings(config, space)
    before = saved.get("settings", settings)
    if changed := sorted(name for name in {**before, **settings} if before.get(name) != settings.get(name)):
        raise ConfigError(
            f"'{search.folder}' holds a search with other settings ({', '.join(changed)}); go on with those that it "
            "began with, or give another --folder"
        )
    return Range(tuple(Point(**p) for p in saved["points"]), saved["centre"], saved["samples"], saved["before"])


def _settings(config: Config, space: Space) -> dict[str, Any]:
    """Return what makes a search another one, by dotted name; what is at its default is left out, as in ``Job.key``."""
    plain = flat_settings(config.model_dump(mode="json", exclude_defaults=True))
    searched = {f"--also {name}": list(bounds) for name, bounds in space.items()}
    return {name: value for name, value in (plain | searched).items() if name not in ("run.folder", RATE)}


def _bounds(rate_range: Range) -> tuple[float, float]:
    """Return the lowest and the highest rate of the search."""
    return rate_range.centre / BELOW, min(10.0, rate_range.centre * ABOVE)


def require_searchable(config: Config, space: Space) -> Any:
    """Refuse a setting that no trial could have, before the first of them; return Optuna.

    Raises:
        ConfigError: A setting cannot be searched.
        MissingExtraError: Optuna is not installed.
    """
    for name, (low, high, integer) in space.items():
        if name in (RATE, "run.seed"):
            raise ConfigError(f"--also {name}: the search itself sets it; remove it")
        for value in (low, high):
            configs.resolve(configs.dump(config), [f"{name}={int(value) if integer else value}"])
    return plugins.require("optuna")


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


@dataclass(frozen=True)
class _Sampler:
    """What chooses the trials of a search: Optuna and its study, the bounds of the rate and of other settings."""

    optuna: Any
    study: Any
    search: Search
    bounds: tuple[float, float]
    space: Space

    def candidate(self, trial: Any) -> Candidate:
        """Return what a trial of Optuna's tries."""
        shown = ", ".join(f"{name.rpartition('.')[2]} {value:.3g}" for name, value in trial.params.items())
        return Candidate(f"trial {trial.number}: {shown}", trial.params, self.search.config.run.seed)


def _add_opening(sampler: _Sampler, opening: Sequence[Trial]) -> None:
    """Let the sampler know what became of the rates of the opening."""
    distributions, states = sampler.optuna.distributions, sampler.optuna.trial.TrialState
    added_numbers = {trial.user_attrs.get(OPENING) for trial in sampler.study.trials}
    for number, outcome in enumerate(opening):
        if number not in added_numbers:
            trial = sampler.optuna.trial.create_trial(
                state=states.FAIL if outcome.score is None else states.COMPLETE,
                value=outcome.score,
                params=dict(outcome.settings),
                distributions={RATE: distributions.FloatDistribution(*sampler.bounds, log=True)},
                constraints={"critical": len(outcome.critical)},
                user_attrs={OPENING: number, "trial": json.dumps(asdict(outcome))},
            )
            sampler.study.add_trial(trial)


def _all_trials(sampler: _Sampler, budget: int) -> bool:
    """Make trials, beside other processes, until the budget is spent; return False where the user stopped it."""
    search = sampler.search
    per_step = samples_per_step(search.config)
    per_run = per_step * search.config.run.steps
    while not search.follow.stop():
        with ExitStack() as stack:
            trial = None
            with awaited(search.folder):
                running_elsewhere = _running_elsewhere(sampler)
                tried = _tried(sampler.study)
                used = sum(trial.steps for trial in tried) * per_step
                if used + (running_elsewhere + 1) * per_run <= budget or not (running_elsewhere or tried):
                    trial = _chosen(sampler)
                    stack.enter_context(claimed(search.place(sampler.candidate(trial))))
            if trial is not None:
                _one_trial(sampler, trial)
            elif not running_elsewhere:
                return True
            else:  # one of them may be pruned, and leave a part of the budget
                time.sleep(POLL_S)
    return False


def _chosen(sampler: _Sampler) -> Any:
    """Return the next trial of Optuna's, with its settings."""
    study, log = sampler.study, {"log": True}
    # With equal seeds two processes would try the same rates.
    study.sampler = sampler.optuna.samplers.TPESampler(
        seed=sampler.search.config.run.seed + len(study.trials), n_startup_trials=4, constant_liar=True
    )
    trial = study.ask()
    trial.suggest_float(RATE, *sampler.bounds, **log)
    for name, (low, high, integer) in sampler.space.items():
        if integer:
            trial.suggest_int(name, int(low), int(high), **log)
        else:
            trial.suggest_float(name, low, high, **log)
    return trial


def _running_elsewhere(sampler: _Sampler) -> int:
    """Return how many trials other processes are making, and give up those whose process was lost.

    One that has a checkpoint is tried again, and goes on from there. Without one it would only be cut again.
    """
    search, count, states = sampler.search, 0, sampler.optuna.trial.TrialState
    for trial in sampler.study.get_trials(deepcopy=False, states=(states.RUNNING,)):
        job = search.job(sampler.candidate(trial))
        with claimed(folder_of_job(search.folder, job)) as lost:
            if lost:
                sampler.study.tell(trial.number, state=states.FAIL)
                run = find_run(search.folder, job)
                if run is not None and run.checkpoints():
                    sampler.study.enqueue_trial(trial.params)
            else:
                count += 1
    return count


def _one_trial(sampler: _Sampler, trial: Any) -> None:
    """Make a trial; one that the user stops is as one whose process was lost."""
    states = sampler.optuna.trial.TrialState

    def prune(score: float, steps: int) -> bool:
        trial.report(score, steps)
        return bool(trial.should_prune())

    outcome = make_trial(sampler.search, sampler.candidate(trial), prune)
    if not sampler.search.follow.stop():
        trial.set_constraint("critical", float(len(outcome.critical)))
        trial.set_user_attr("trial", json.dumps(asdict(outcome)))
        sampler.study.tell(trial, outcome.score, states.FAIL if outcome.score is None else None)


def _tried(study: Any) -> list[Trial]:
    return [Trial.read(json.loads(t.user_attrs["trial"])) for t in study.trials if "trial" in t.user_attrs]


def _finals(search: Search, trials: Sequence[Trial], seeds: int) -> list[tuple[Trial, list[Trial]]] | None:
    """Repeat the best trials with other seeds, beside other processes.

    Returns:
        Each of the best with all its runs, or None where the user stopped.
    """
    best = best_first(trials)[:FINALISTS]
    candidates = [
        Candidate(f"finalist {number}, seed {seed}", trial.settings, seed)
        for number, trial in enumerate(best, 1)
        for seed in range(search.config.run.seed + 1, search.config.run.seed + seeds)
    ]
    repeats = try_all(search, candidates)
    if repeats is None:
        return None
    per_trial = seeds - 1
    return [(trial, [trial, *repeats[n * per_trial : (n + 1) * per_trial]]) for n, trial in enumerate(best)]


def _result(
    config: Config, rate_range: Range, trials: Sequence[Trial], finals: Sequence[tuple[Trial, list[Trial]]]
) -> dict[str, Any]:
    """Return the settings to use, all that was tried, and how sure it is."""
    ranked = sorted(
        ((_level(runs), trial, runs) for trial, runs in finals),
        key=lambda entry: (any(run.critical for run in entry[2]), -entry[0]),
    )
    if not ranked:
        raise ConfigError("no trial ended with a held-out score; see the runs in runs/ of the folder for why")
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
        "samples": rate_range.samples + samples_per_step(config) * sum(trial.steps for trial in all_trials),
        "range": {"centre": rate_range.centre, "points": [asdict(point) for point in rate_range.points]},
        "trials": [asdict(trial) for trial in trials],
        "finals": [[asdict(run) for run in several] for _, several in finals],
    }


def _scores(runs: Sequence[Trial]) -> list[float]:
    return [run.score for run in runs if run.score is not None]


def _level(runs: Sequence[Trial]) -> float:
    scores = _scores(runs)
    return float(interquartile_mean(np.array(scores))) if scores else float("-inf")


def rungs(steps: int) -> list[int]:
    """Return after how many steps rates are compared: a quarter, a half and all of them."""
    every = max(1, steps // RUNGS)
    return sorted({min(every, steps), min(2 * every, steps), steps})


def steps_of(width: int, steps: int) -> int:
    """Return the steps that the opening takes for so many rates."""
    total, before = 0, 0
    for rung in rungs(steps):
        total += width * (rung - before)
        before, width = rung, _survivors(width)
    return total


def rates_around(centre: float, bounds: tuple[float, float], steps: int, most: int) -> list[float]:
    """Return the rates to begin with, the centre first.

    Args:
        centre: Of the range test.
        bounds: Lowest and highest rate of the search.
        steps: Of a whole run.
        most: Steps that the opening may take; the centre alone is always tried.
    """
    tried = (centre * 10.0 ** (number / PER_DECADE) for number in TRIED)
    rates = [rate for rate in tried if bounds[0] <= rate <= bounds[1]]
    width = next((w for w in WIDTHS if w <= len(rates) and steps_of(w, steps) <= most), 1)
    return rates[:width]


def halve(search: Search, rates: Sequence[float]) -> list[Trial] | None:
    """Try rates side by side, beside other processes.

    Returns:
        What became of each rate at its last rung, or None where the user stopped it.
    """
    trials: dict[float, Trial] = {}
    alive = list(rates)
    for rung in rungs(search.config.run.steps):
        candidates = [Candidate(f"rate {rate:.2e}", {RATE: rate}, search.config.run.seed, rung) for rate in alive]
        measured = try_all(search, candidates)
        if measured is None:
            return None
        trials |= dict(zip(alive, measured, strict=True))
        alive = sorted(alive, key=lambda rate: trials[rate].rank)[: _survivors(len(alive))]
    return [trials[rate] for rate in rates]


def _survivors(count: int) -> int:
    return max(1, count // 2)


def tune_together(
    launcher: Launcher, processes: int, words: Sequence[str], folder: Path, follow: Follow
) -> dict[str, Any] | None:
    """Search by several processes.

    Args:
        launcher: Starts them.
        processes: How many.
        words: Of the command that each of them is, as given to `steadyrl`.
        folder: Of the search, on a file system that all machines see.
        follow: Follows the search, and may stop it.

    Returns:
        What result.json holds; None where ``follow.stop`` ended the search.

    Raises:
        ConfigError: The launcher cannot start them.
        RunError: None of them came to an end.
        EngineError: The launcher's scheduler does not answer any more.
    """
    logs, notes = folder / "logs", [f"{processes} processes share the search; what they say is in {folder / 'logs'}"]
    commands = {name: our_command(name, words, logs) for name in (f"tune-{number}" for number in range(processes))}
    follow.note(notes[0])

    def note(text: str) -> None:
        if text not in notes:
            notes.append(text)
            follow.note(text)

    ends = make_elsewhere(launcher, commands, lambda name: _Part(commands[name], folder), replace(follow, note=note))
    if any(state == "done" for state, _ in ends.values()):
        return read_json(folder / RESULT)
    if follow.stop():
        return None
    why = next(why for _, why in ends.values())
    raise RunError(f"no process came to the end of the search: {why}; see {logs}, or start it again to go on")


class _Part:
    """What a process does of a search. What it had begun when it was lost is free for the others."""

    def __init__(self, command: Command, folder: Path) -> None:
        self._command, self._folder = command, folder
        self._saved = self._checkpoints()

    def _checkpoints(self) -> int:
        return len(list(self._folder.glob(f"runs/*/*/checkpoints/*/{DONE}")))

    @property
    def has_saved(self) -> bool:
        return self._checkpoints() > self._saved

    def report(self, follow: Follow) -> None:
        follow.note(f"{len(list(self._folder.glob('runs/*')))} runs begun")

    def end(self, ended: Ended) -> End:
        if ended.code == 0:
            return "done", "finished"
        cut = ended.code is None or ended.code < 0 or ended.code == INTERRUPTED
        return "cut" if cut else "failed", self._command.error(ended) or ended.reason
