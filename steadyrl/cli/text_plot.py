"""A series as a few lines of text: braille dots in a terminal that can show them, bars of ASCII elsewhere."""

from __future__ import annotations

import numpy as np

from steadyrl.doctor.deciding import envelope
from steadyrl.doctor.series import Series

WIDTH, HEIGHT = 60, 4  # characters
DOTS_ACROSS, DOTS_UP = 2, 4  # of a braille character
BRAILLE = 0x2800
# Bit of the dot in column x and row y (from the top) of a braille character, as Unicode numbers them.
BITS = np.array([[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]])
LEVELS = "_.-=#"


def draw(series: Series, first_step: int | None, unicode: bool) -> list[str]:
    """Return the lines of a plot: the curve with its range at the side, and a mark below where the finding begins."""
    if unicode:
        _, lower, upper = envelope(series, WIDTH * DOTS_ACROSS)
        up = HEIGHT * DOTS_UP
        ends = zip(_levels(lower, series, up), _levels(upper, series, up), strict=True)
        cells = np.zeros((HEIGHT, -(-len(upper) // DOTS_ACROSS)), np.int64)  # [HEIGHT, columns], the bits of their dots
        for x, (bottom, top) in enumerate(ends):
            for from_top in range(up - 1 - top, up - bottom):
                cells[from_top // DOTS_UP, x // DOTS_ACROSS] |= BITS[x % DOTS_ACROSS, from_top % DOTS_UP]
        rows = ["".join(chr(BRAILLE + int(cell)) for cell in row) for row in cells]
    else:
        _, _, values = envelope(series, WIDTH)
        rows = ["".join(LEVELS[level] for level in _levels(values, series, len(LEVELS)))]
    low, high = f"{series.values.min():.3g}", f"{series.values.max():.3g}"
    edge = max(len(low), len(high))
    sides = [high, *[""] * (len(rows) - 2), low] if len(rows) > 1 else [high]
    lines = [f"{side:>{edge}} {row}" for side, row in zip(sides, rows, strict=True)]
    foot = f"step {series.steps[0]} to {series.steps[-1]}" + ("" if len(rows) > 1 else f", from {low} to {high}")
    if first_step is not None and series.steps[0] < first_step <= series.steps[-1]:
        mark = min(int(np.searchsorted(series.steps, first_step) * len(rows[0]) / len(series)), len(rows[0]) - 1)
        lines.append(" " * (edge + 1 + mark) + f"{'▲' if unicode else '^'} step {first_step}")
    return [*lines, " " * (edge + 1) + foot]


def _levels(values: np.ndarray, series: Series, count: int) -> np.ndarray:
    """Return which of ``count`` levels between the series' least and greatest value each value is on, [n]."""
    low, high = float(series.values.min()), float(series.values.max())
    # Halves first: the difference of two huge numbers may be more than a float holds.
    height = high / 2 - low / 2
    share = (values / 2 - low / 2) / height if height > 0 else np.zeros(len(values))
    return np.minimum((share * count).astype(np.int64), count - 1)
