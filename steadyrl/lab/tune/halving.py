"""The opening of a search: several rates side by side, and at each rung the better half of them goes on.

The run of a rate pauses at a rung, and goes on from there. A budget of a few runs holds many quarters of runs. Two
whole runs say which of two rates is better, and four quarters which of four rates over a decade and a half.
"""

from __future__ import annotations

from collections.abc import Sequence

from steadyrl.lab.tune.rate_range import RATE
from steadyrl.lab.tune.trial import RUNGS, Candidate, Search, Trial, try_all

PER_DECADE = 2  # rates
TRIED = (0, 1, 2, -1)  # rates above the centre: on three tasks the best rate was 2, 5 and 18 times that of the centre
WIDTHS = (4, 3, 1)  # rates to begin with: as many as the budget holds


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
