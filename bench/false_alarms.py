"""How often the doctor's statistics see something in noise that has nothing: python bench/false_alarms.py.

Prints the table of docs/doctor/statistics.md: stationary series of 200 steps, in which nothing happens.
"""

from __future__ import annotations

import numpy as np

from steadyrl.core.stats import block_mean_slope
from steadyrl.doctor.series import Series
from steadyrl.doctor.statistics.jumps import jumps
from steadyrl.doctor.statistics.levels import measure
from steadyrl.doctor.statistics.signals import BLOCKS, bursts, strays

RUNS, STEPS = 2000, 200
KINDS = {
    "independent, normal": (0.0, False),
    "AR(1) 0.5, normal": (0.5, False),
    "AR(1) 0.8, normal": (0.8, False),
    "AR(1) 0.9, normal": (0.9, False),
    "independent, t with 3 degrees": (0.0, True),
    "AR(1) 0.8, t with 3 degrees": (0.8, True),
}


def main() -> None:
    """Print one row per kind of noise."""
    names = ("noise", "line through steps", "line through block means", "levels", "3 sigma, per 1000", "z > 6")
    print(f"| {' | '.join((*names, 'burst', 'jump'))} |\n{'|---' * 8}|")
    for name, (memory, heavy) in KINDS.items():
        rng = np.random.default_rng(0)
        counts = np.mean([alarms(noise(rng, memory, heavy)) for _ in range(RUNS)], axis=0)
        line, blocks, levels, sigma, far, several, jump = counts
        cells = f"{line:.2f} | {blocks:.2f} | {levels:.4f} | {sigma:.1f} | {far:.2f} | {several:.4f} | {jump:.4f}"
        print(f"| {name} | {cells} |")


def noise(rng: np.random.Generator, memory: float, heavy: bool) -> np.ndarray:
    """Return a stationary series [200] around 10 with standard deviation about 1."""
    shocks = rng.standard_t(3, STEPS + 100) / 3**0.5 if heavy else rng.normal(size=STEPS + 100)
    x = np.zeros(STEPS + 100)
    for t in range(1, len(x)):
        x[t] = memory * x[t - 1] + (1 - memory**2) ** 0.5 * shocks[t]
    return 10.0 + x[100:]


def alarms(x: np.ndarray) -> list[float]:
    """Return what each statistic says of a series in which nothing happens."""
    series = Series("reward", "reward", "", "x", np.arange(len(x)), x)
    at = np.arange(len(x)) - (len(x) - 1) / 2
    slope = at @ x / (at @ at)
    error = ((x - x.mean() - slope * at) ** 2).sum() / (len(x) - 2) / (at @ at)
    through_blocks, levels = block_mean_slope(x, BLOCKS), measure(series)
    rolling = [abs(x[t] - x[t - 50 : t].mean()) > 3 * x[t - 50 : t].std() for t in range(50, len(x))]
    return [
        abs(slope) > 1.972 * error**0.5,
        not through_blocks.low < 0 < through_blocks.high,
        levels.rose or levels.fell,
        1000 * np.mean(rolling),
        1000 * sum(x[i] > np.median(x[max(0, i - 100) : i]) for i in strays(series)) / len(x),
        len(bursts(series, 3.0)) > 0,
        len(jumps(series)) > 0,
    ]


if __name__ == "__main__":
    main()
