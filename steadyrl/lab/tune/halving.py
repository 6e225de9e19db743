"""The opening of a search: several rates side by side, and at each rung the better half of them goes on.

    FOLDER/halving/N/runs/            the run of a rate, paused at a rung and gone on with
    FOLDER/halving/N/000020.json      what it was after so many steps

A budget of a few runs holds many quarters of runs. Two whole runs say which of two rates is better, and four quarters
which of four rates over a decade and a half.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from steadyrl.core.config import Config
from steadyrl.core.rundir import read_json, write_json
from steadyrl.lab.tune.claim import claimed
from steadyrl.lab.tune.trial import RUNGS, Trial, make_trial
from steadyrl.loop.train import Watch

PER_DECADE = 2  # rates
TRIED = (0, 1, 2, -1)  # rates above the centre: on three tasks the best rate was 2, 5 and 18 times that of the centre
Key = TypeVar("Key")
WIDTHS = (4, 3, 1)  # rates to begin with: as many as the budget holds
_POLL_S = 0.5  # between looks at what other processes have done


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


def halve(
    config: Config,
    name: str,
    rates: Sequence[float],
    folder: Path,
    claims: Path,
    note: Callable[[str], None],
    stop: Callable[[], bool],
) -> list[Trial] | None:
    """Try rates side by side, beside other processes.

    Args:
        config: Of the runs.
        name: Of the rate, a setting.
        rates: To begin with.
        folder: Of the opening.
        claims: Folder of the locks that processes share.
        note: Called with lines.
        stop: Asked after every step.

    Returns:
        What became of each rate at its last rung, or None where ``stop`` ended it.
    """
    last: dict[int, Trial] = {}
    alive = list(range(len(rates)))
    for rung in rungs(config.run.steps):
        files = {number: folder / str(number) / f"{rung:06d}.json" for number in alive}

        def make(number: int, file: Path, rung: int = rung) -> Trial:
            place, watch = file.parent / "runs", Watch(stop=stop)
            trial = make_trial(config, {name: rates[number]}, config.run.seed, place, watch, rung)
            if not stop():
                score = "no score" if trial.score is None else f"score {trial.score:.4f}"
                note(f"rate {rates[number]:.2e}: {score} after {trial.steps} steps")
            return trial

        if not shared(files, claims, make, stop):
            return None
        last |= {number: Trial.read(read_json(file)) for number, file in files.items()}
        alive = sorted(alive, key=lambda n: _order(last[n]))[: _survivors(len(alive))]
    return [last[number] for number in range(len(rates))]


def shared(
    files: Mapping[Key, Path], claims: Path, make: Callable[[Key, Path], Trial], stop: Callable[[], bool]
) -> bool:
    """Make the trials whose files are missing, beside other processes; return False where ``stop`` ended it."""
    while missing := [key for key, file in files.items() if not file.is_file()]:
        new_trials = 0
        for key in missing:
            if stop():
                return False
            with claimed(claims / "-".join(files[key].with_suffix("").parts[-3:])) as mine:
                if mine and not files[key].is_file():
                    trial = make(key, files[key])
                    if stop():
                        return False
                    files[key].parent.mkdir(parents=True, exist_ok=True)
                    write_json(files[key], trial.record())
                    new_trials += 1
        if not new_trials:
            time.sleep(_POLL_S)
    return True


def _order(trial: Trial) -> tuple[bool, bool, float]:
    """Sort by score, those with a critical finding later and those without a score last."""
    return trial.score is None, bool(trial.critical), -(trial.score or 0.0)


def _survivors(count: int) -> int:
    return max(1, count // 2)
