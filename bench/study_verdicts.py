"""How often does a study's verdict find a difference? python bench/study_verdicts.py

Simulated studies, 1000 for each number and 10,000 with 2 or 3 seeds, without and with pairs of equal seeds. The seeds'
share is what the seed contributes to the variance of both arms: their correlation. Prints tables for docs/studies.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from steadyrl.lab.seeds import Difference, difference, difference_of_pairs

SEEDS = {2: 10_000, 3: 10_000, 5: 1000, 10: 1000}  # and how many studies: few seeds have few resamples
EFFECTS = (0.0, 1.0, 2.0, 3.0)  # in pooled standard deviations
SHARES = (0.0, 0.5)
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def normal(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return normally distributed noise of deviation 1."""
    return generator.normal(0.0, 1.0, shape)


def heavy(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return noise of which one run in five is three times as far out, as where some runs collapse."""
    return generator.normal(0.0, 1.0, shape) * np.where(generator.random(shape) < 0.2, 3.0, 1.0) / math.sqrt(2.6)


def counted(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return noise in few steps, as the share of a few held-out problems has."""
    return np.round(1.5 * generator.normal(0.0, 1.0, shape)) / 1.5


def told_apart(effect: float, seeds: int, share: float, draw: Draw = normal) -> tuple[float, float]:
    """Return in which share of studies the interval leaves 0 out: without pairs, and with them."""
    generator = np.random.default_rng([seeds, int(effect), int(100 * share)])
    apart = np.zeros(2)
    for _ in range(SEEDS[seeds]):
        common, own = draw(generator, (seeds,)), draw(generator, (2, seeds))
        first, second = math.sqrt(share) * common + math.sqrt(1 - share) * own
        apart += [_apart(compare(first, second + effect)) for compare in (difference, difference_of_pairs)]
    alone, paired = apart / SEEDS[seeds]
    return float(alone), float(paired)


def _apart(found: Difference | None) -> bool:
    assert found is not None and found.low is not None and found.high is not None, "there are two seeds or more"
    return not found.low <= 0 <= found.high


def main() -> None:
    """Print a row for each number of seeds and share, then the false alarms of other noise."""
    for seeds in SEEDS:
        for share in SHARES:
            cells = (f"{a:.1%}, {b:.1%}" for a, b in (told_apart(effect, seeds, share) for effect in EFFECTS))
            print(f"| {seeds} | {share:g} | {' | '.join(cells)} |", flush=True)
    for draw in (heavy, counted):
        for seeds in SEEDS:
            cells = (f"{told_apart(0.0, seeds, share, draw)[1]:.1%}" for share in SHARES)
            print(f"| {draw.__name__} | {seeds} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
