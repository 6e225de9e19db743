"""Finds a learning rate (and a KL coefficient, ...) within a budget of samples: a range test, rounds, then seeds.

    FOLDER/range.json           the range test
    FOLDER/runs/KEY/            a run, and in trial-000020.json what it was after so many steps
    FOLDER/result.json          the config to use, every trial, and how sure it is

A round tries some candidates side by side and halves them at a quarter and a half: the run of a candidate pauses there,
and the better half goes on. A budget of a few runs holds many quarters of runs. Two whole runs say which of two rates
is better, and four quarters which of four rates over a decade and a half. The first round tries rates around the centre
of the range test. What the next one tries Optuna's TPE suggests from the trials so far. The doctor's critical findings
are constraints: a trial that has one is not feasible, whatever it scores. The best few are repeated with other seeds.

All runs are jobs as those of a study are, only that they are chosen on the way, so several processes may work on one
search (see ``jobs``), also equal commands that a launcher starts. All of them read the same trials, and so they choose
the same candidates.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from steadyrl.core import config as configs
from steadyrl.core import plugins
from steadyrl.core.config import Config
from steadyrl.core.errors import ConfigError, RunError
from steadyrl.core.rundir import DONE, read_json, write_json
from steadyrl.core.words import counted
from steadyrl.doctor.readers.spelling import flat_settings
from steadyrl.lab.elsewhere import End, run_commands
from steadyrl.lab.jobs import Follow, awaited, share
from steadyrl.lab.launchers.command import Command, Ended, Launcher, our_command
from steadyrl.lab.seeds import difference, interquartile_mean
from steadyrl.lab.tune.rate_range import RATE, Point, Range, range_test
from steadyrl.lab.tune.trial import QUARTERS, Candidate, Search, Trial, best_first, try_all
from steadyrl.loop.launch import task_digest

BELOW, ABOVE = 30.0, 10.0  # the search reaches from centre / 30 to centre * 10
FINALISTS = 3
RESULT = "result.json"

# Settings by dotted name: lowest and highest value on a logarithmic scale, and whether the setting is a whole number.
Space = Mapping[str, tuple[float, float, bool]]
PER_DECADE = 2  # rates
TRIED = (0, 1, 2, -1)  # rates above the centre: on three tasks the best rate was 2, 5 and 18 times that of the centre
WIDEST = 4  # candidates of a round
INTERRUPTED = 130  # exit status of `steadyrl tune` after a signal


@dataclass(frozen=True)
class Options:
    """How to search."""

    samples: int  # completions that the whole search may take, evaluations not counted
    seeds: int = 3  # seeds of the finalists
    space: Space = field(default_factory=dict)  # what is searched besides the rate
    words: Sequence[str] = ("CONFIG",)  # the config and its overrides, as `steadyrl train` takes them


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
    require_searchable(config, options.space)
    per_run = config.run.steps * config.rollout.rollouts
    rate_range = _range(search, options.space)
    if rate_range is None:
        return None
    if options.samples < rate_range.samples + per_run:
        raise ConfigError(
            f"the budget is {options.samples} samples; the range test took {rate_range.samples} and one run takes "
            f"{per_run}. Give at least {rate_range.samples + (options.seeds + 1) * per_run}, or lower run.steps"
        )
    budget = options.samples - rate_range.samples - per_run * (options.seeds - 1) * FINALISTS
    trials = _rounds(search, rate_range.centre, options.space, max(per_run, budget) // config.rollout.rollouts)
    finals = None if trials is None else _finals(search, trials, options.seeds)
    if trials is None or finals is None:
        return None
    result = {**_result(config, rate_range, trials, finals), "words": list(options.words)}
    with awaited(folder):
        write_json(folder / RESULT, result)
    return result


def _range(search: Search, space: Space) -> Range | None:
    """Return the range test, made now, before, or by another process; None where the user stopped the wait for it."""
    config, file, note = search.config, search.folder / "range.json", search.follow.note

    def show(point: Point) -> None:
        text = "the step cannot be made" if point.kl is None else f"KL of the step {point.kl:.2g}"
        if point.reward is not None:
            text += f", entropy x {point.entropy:.2f}, reward {point.reward:.3f}"
        note(f"    rate {point.rate:.1e}: {text}")

    def make(key: str) -> None:
        note("range test: one step at each rate")
        measured = range_test(config, show)
        write_json(file, {**asdict(measured), "settings": _settings(config, space)})

    if not share({"range": search.folder}, lambda key: file.is_file(), make, search.follow):
        return None
    saved, settings = read_json(file), _settings(config, space)
    # A range.json without settings, or without a digest of the data, counts as unchanged.
    before = {"the data": settings["the data"], **saved.get("settings", settings)}
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
    named_values = {**plain, **searched, "the data": task_digest(config)}
    return {name: value for name, value in named_values.items() if name not in ("run.folder", RATE)}


def require_searchable(config: Config, space: Space) -> None:
    """Refuse a setting that no trial could have, before the first of them.

    Raises:
        ConfigError: A setting cannot be searched.
        MissingExtraError: Optuna is not installed.
    """
    for name, (low, high, integer) in space.items():
        if name in (RATE, "run.seed"):
            raise ConfigError(f"--also {name}: the search itself sets it; remove it")
        for value in (low, high):
            configs.resolve(configs.dump(config), [f"{name}={int(value) if integer else value}"])
    plugins.require("optuna")


def _rounds(search: Search, centre: float, space: Space, max_steps: int) -> list[Trial] | None:
    """Try candidates in rounds of so many steps in all, beside other processes; None where the user stopped it."""
    bounds, steps = (centre / BELOW, min(10.0, centre * ABOVE)), search.config.run.steps
    candidates: Sequence[Mapping[str, float]] = [{RATE: rate} for rate in rates_around(centre, bounds)]
    trials: list[Trial] = []
    for number in itertools.count(1):
        # A failed one counts as a whole run: where all fail at their first step the search must end, too.
        remaining = max_steps - sum(steps if trial.state == "failed" else trial.steps for trial in trials)
        width = next((w for w in range(len(candidates), 0, -1) if steps_of(w, steps) <= remaining), 0)
        if not width:
            break
        round_trials = successive_halving(search, f"round {number}", candidates[:width])
        if round_trials is None:
            return None
        trials += round_trials
        candidates = suggested(trials, {RATE: (*bounds, False), **space}, search.config.run.seed)
    return trials


def suggested(trials: Sequence[Trial], space: Space, seed: int) -> list[dict[str, float]]:
    """Return the settings that Optuna's TPE would try next, ``WIDEST`` of them; equal trials give equal settings."""
    optuna = plugins.require("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {
        name: optuna.distributions.IntDistribution(int(low), int(high), log=True)
        if integer
        else optuna.distributions.FloatDistribution(low, high, log=True)
        for name, (low, high, integer) in space.items()
    }
    # The constant liar keeps the suggestions of one round apart from one another.
    sampler = optuna.samplers.TPESampler(seed=seed + len(trials), n_startup_trials=4, constant_liar=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    states = optuna.trial.TrialState
    for trial in trials:
        frozen_trial = optuna.trial.create_trial(
            state=states.FAIL if trial.score is None else states.COMPLETE,
            value=trial.score,
            params=dict(trial.settings),
            distributions={name: distributions[name] for name in trial.settings},
            constraints={"critical": len(trial.critical)},
        )
        study.add_trial(frozen_trial)
    return [study.ask(distributions).params for _ in range(WIDEST)]


def _finals(search: Search, trials: Sequence[Trial], seeds: int) -> list[tuple[Trial, list[Trial]]] | None:
    """Repeat the best trials with other seeds, and return each with all its runs; None where the user stopped it."""
    best = best_first(trials)[:FINALISTS]
    candidates = [
        Candidate(f"finalist {number}, seed {seed}", trial.settings, seed, search.config.run.steps)
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
    levels = [float(interquartile_mean(_scores(runs))) if _scores(runs) else float("-inf") for _, runs in finals]
    ranked = sorted(
        ((level, trial, runs) for level, (trial, runs) in zip(levels, finals, strict=True)),
        key=lambda entry: (any(run.critical for run in entry[2]), -entry[0]),
    )
    if not ranked:
        raise ConfigError("no trial ended with a held-out score; see the runs in runs/ of the folder for why")
    level, best, runs = ranked[0]
    lead = None
    if len(ranked) > 1:
        change = difference(_scores(ranked[1][2]), _scores(runs))
        lead = None if change is None else {"difference": change.change, "low": change.low, "high": change.high}
    all_trials = [*trials, *(run for _, all_runs in finals for run in all_runs[1:])]
    return {
        "settings": dict(best.settings),
        "score": level,
        "scores": _scores(runs),
        "critical": sorted({name for run in runs for name in run.critical}),
        "paused": best.steps if best.state == "paused" else None,
        "lead": lead,
        "samples": rate_range.samples + config.rollout.rollouts * sum(trial.steps for trial in all_trials),
        "range": {"centre": rate_range.centre, "points": [asdict(point) for point in rate_range.points]},
        "trials": [asdict(trial) for trial in trials],
        "finals": [[asdict(run) for run in all_runs] for _, all_runs in finals],
    }


def _scores(runs: Sequence[Trial]) -> list[float]:
    return [run.score for run in runs if run.score is not None]


def rungs(steps: int) -> list[int]:
    """Return after how many steps candidates are compared: a quarter, a half and all of them."""
    quarter = max(1, steps // QUARTERS)
    return sorted({min(quarter, steps), min(2 * quarter, steps), steps})


def steps_of(width: int, steps: int) -> int:
    """Return the steps that a round of so many candidates takes."""
    total, before = 0, 0
    for rung in rungs(steps):
        total += width * (rung - before)
        before, width = rung, _survivors(width)
    return total


def rates_around(centre: float, bounds: tuple[float, float]) -> list[float]:
    """Return the rates to begin with, at most ``WIDEST``, the centre of the range test first."""
    rates = (centre * 10.0 ** (number / PER_DECADE) for number in TRIED)
    return [rate for rate in rates if bounds[0] <= rate <= bounds[1]]


def successive_halving(search: Search, name: str, candidates: Sequence[Mapping[str, float]]) -> list[Trial] | None:
    """Return what became of candidates tried side by side, at their last rung; None where the user stopped."""
    trials: dict[int, Trial] = {}
    seed, alive = search.config.run.seed, list(range(len(candidates)))
    for rung in rungs(search.config.run.steps):
        rung_candidates = [Candidate(f"{name}, {in_words(candidates[i])}", candidates[i], seed, rung) for i in alive]
        rung_trials = try_all(search, rung_candidates)
        if rung_trials is None:
            return None
        trials |= dict(zip(alive, rung_trials, strict=True))
        alive = sorted(alive, key=lambda i: trials[i].rank)[: _survivors(len(alive))]
    return [trials[i] for i in range(len(candidates))]


def in_words(settings: Mapping[str, float]) -> str:
    """Return settings on a line, each by the last part of its name."""
    return ", ".join(f"{name.rpartition('.')[2]} {value:.3g}" for name, value in settings.items())


def _survivors(count: int) -> int:
    return max(1, count // 2)


def tune_in_processes(
    launcher: Launcher, processes: int, words: Sequence[str], folder: Path, follow: Follow
) -> dict[str, Any] | None:
    """Search by several processes, each of them `steadyrl` with these words; None where ``follow.stop`` ended it.

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

    def begin(name: str) -> _SearchProcess:
        return _SearchProcess(commands[name], folder)

    ends = run_commands(launcher, commands, begin, replace(follow, note=note))
    if any(state == "done" for state, _ in ends.values()):
        return read_json(folder / RESULT)
    if follow.stop():
        return None
    reason = next(reason for _, reason in ends.values())
    raise RunError(f"no process came to the end of the search: {reason}; see {logs}, or start it again to go on")


class _SearchProcess:
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
        follow.note(f"{counted(len(list(self._folder.glob('runs/*'))), 'run')} begun")

    def end(self, ended: Ended) -> End:
        if ended.code == 0:
            return "done", "finished"
        cut = ended.code is None or ended.code < 0 or ended.code == INTERRUPTED
        return "cut" if cut else "failed", self._command.error(ended) or ended.reason
