"""A small curve as SVG, for the places of a notebook that show a run. It is readable on white and on black."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steadyrl.core.stats import rolling_median, window
from steadyrl.show.report.pictures.curves import MOST_POINTS, thinned

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 480, 150, 52, 20, 18  # pixels
_COLOUR = "#2f81d8"  # its contrast to white and to black is above 4


def reward_curve(points: Sequence[tuple[int, float | None]]) -> str:
    """Return the curve of a reward with its smallest and its largest value; "" for fewer than two points.

    Args:
        points: Step, counted from 0, and value; a value that is None or not finite is left out.
    """
    finite = np.array([(step, value) for step, value in points if value is not None and np.isfinite(value)])
    if len(finite) < 2:
        return ""
    steps, values = thinned(finite[:, 0], finite[:, 1], MOST_POINTS)
    low, high = float(values.min()), float(values.max())
    span = high - low or 1.0  # a constant curve lies at the bottom
    xs = _LEFT + (steps - steps[0]) / (steps[-1] - steps[0]) * (_WIDTH - _LEFT - 8)
    smooth = rolling_median(values, window(len(values)))

    def line(values: np.ndarray, style: str) -> str:
        ys = _HEIGHT - _BOTTOM - (values - low) / span * (_HEIGHT - _BOTTOM - _TOP - 6)
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
        return f'<polyline points="{path}" fill="none" stroke="{_COLOUR}" {style}/>'

    def text(x: float, y: float, label: str, anchor: str) -> str:
        return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="currentColor">{label}</text>'

    base = _HEIGHT - _BOTTOM
    marks = [
        text(_LEFT, 12, "reward", "start"),
        text(_LEFT - 6, base + 3, f"{low:.3g}", "end"),
        text(_LEFT - 6, _TOP + 10, f"{high:.3g}", "end"),
        text(_LEFT, _HEIGHT - 4, f"step {steps[0]:.0f}", "start"),
        text(_WIDTH - 8, _HEIGHT - 4, f"{steps[-1]:.0f}", "end"),
        f'<line x1="{_LEFT}" x2="{_WIDTH - 8}" y1="{base}" y2="{base}" stroke="currentColor" stroke-opacity="0.3"/>',
    ]
    faint, strong = line(values, 'stroke-opacity="0.35"'), line(smooth, 'stroke-width="2"')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'style="max-width: 100%; font: 11px system-ui, sans-serif" role="img" aria-label="reward">'
        f"{''.join(marks)}{faint}{strong}</svg>"
    )
