"""How often does a study's verdict find a difference? python bench/study_verdicts.py

Simulated studies with normally distributed results, 1000 for each number. Prints the table of docs/studies.md.
"""

from __future__ import annotations

import numpy as np

from steadyrl.studies.seeds import difference

SEEDS = (2, 3, 5, 10)
EFFECTS = (0.0, 1.0, 2.0, 3.0)  # in pooled standard deviations
STUDIES = 1000


def told_apart(effect: float, seeds: int) -> float:
    """Return in which share of studies the interval of the difference leaves 0 out."""
    generator = np.random.default_rng([seeds, int(effect)])
    apart = 0
    for _ in range(STUDIES):
        first, second = generator.normal(0.0, 1.0, (2, seeds))
        found = difference(first, second + effect)
        assert found is not None and found.low is not None and found.high is not None, "there are two seeds or more"
        apart += not found.low <= 0 <= found.high
    return apart / STUDIES


def main() -> None:
    """Print a row for each number of seeds."""
    for seeds in SEEDS:
        print(f"| {seeds} | {' | '.join(f'{told_apart(effect, seeds):.1%}' for effect in EFFECTS)} |", flush=True)


if __name__ == "__main__":
    main()
