"""The picture of a comparison: the interval on a ruler, every problem against itself, every difference in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from steadyrl.show.page.records import TONES
from steadyrl.show.report.pictures import plots

HEIGHT_INCHES = 5.4
COLOURS = {"good": plots.GREEN, "bad": plots.VERMILLION, "info": plots.BLUE, "warn": plots.GREY}  # by tone


def draw(record: Mapping[str, Any]) -> str:
    """Return the picture of a comparison's record as SVG text."""

    def draw_panels(figure: Figure) -> None:
        grid = figure.add_gridspec(2, 2, height_ratios=(1.0, 3.0), width_ratios=(1.0, 1.35))
        _draw_ruler(figure.add_subplot(grid[0, :]), record)
        first, second = (np.array([p[side] for p in record["problems"]]) for side in ("a", "b"))
        _draw_pairs(figure.add_subplot(grid[1, 0]), first, second)
        _draw_differences(figure.add_subplot(grid[1, 1]), second - first)

    return plots.svg(draw_panels, HEIGHT_INCHES)


def _draw_ruler(axes: Axes, record: Mapping[str, Any]) -> None:
    """Draw the difference with its interval, over the range that could not be shown and the margin."""
    verdict = record["verdict"]
    word = verdict["word"]
    change, colour = verdict["change"], COLOURS[TONES["undecided" if record["doubts"] else word]]
    axes.set_title(f"B - A: {word}{', with doubts' if record['doubts'] else ''}")
    if verdict["smallest"] is not None:
        reach = verdict["smallest"]
        axes.axvspan(-reach, reach, color=plots.PALE, label="could not be shown", zorder=0)
    if verdict["margin"] is not None:
        for sign in (-1, 1):
            label = "margin" if sign < 0 else None
            axes.axvline(sign * verdict["margin"], color=plots.PURPLE, linestyle="--", linewidth=1.2, label=label)
    axes.axvline(0, color=plots.INK, linewidth=0.9, zorder=1)
    axes.plot([change["low"], change["high"]], [0, 0], color=colour, linewidth=5, label="95 % interval", zorder=3)
    axes.plot([change["difference"]], [0], "o", color=colour, markersize=10, zorder=4)
    axes.set_ylim(-1, 1)
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    axes.margins(x=0.08)
    axes.set_xlabel("difference of the means")
    plots.legend(axes)


def _draw_pairs(axes: Axes, first: np.ndarray, second: np.ndarray) -> None:
    """Draw every problem at its two means. A point with more problems has a larger dot."""
    points, counts = np.unique(np.column_stack([first, second]), axis=0, return_counts=True)  # [points, 2], [points]
    gains = points[:, 1] - points[:, 0]
    for mask, colour in ((gains > 0, plots.GREEN), (gains < 0, plots.VERMILLION), (gains == 0, plots.GREY)):
        sizes = 12.0 * np.sqrt(counts[mask])
        x, y = points[mask].T
        axes.scatter(x, y, s=sizes, color=colour, alpha=0.55, linewidths=0, zorder=3, clip_on=False)
    low, high = float(min(first.min(), second.min())), float(max(first.max(), second.max()))
    room = 0.04 * (high - low) or 0.5
    axes.plot([low - room, high + room], [low - room, high + room], color=plots.GREY, linewidth=0.8, zorder=1)
    axes.set_xlim(low - room, high + room)
    axes.set_ylim(low - room, high + room)
    axes.set_title("Every problem")
    axes.set_xlabel("A")
    axes.set_ylabel("B")


def _draw_differences(axes: Axes, gains: np.ndarray) -> None:
    ordered = np.sort(gains)[::-1]
    edges = np.arange(len(ordered) + 1)
    for part, colour, label in (
        (np.maximum(ordered, 0), plots.GREEN, f"{int((gains > 0).sum())} won"),
        (np.minimum(ordered, 0), plots.VERMILLION, f"{int((gains < 0).sum())} lost"),
    ):
        axes.stairs(part, edges, fill=True, color=colour, alpha=0.8, label=label, zorder=3)
    axes.axhline(0, color=plots.INK, linewidth=0.9, zorder=4)
    axes.axhline(float(gains.mean()), color=plots.BLUE, linewidth=1.4, linestyle="--", label="mean", zorder=5)
    axes.set_title("Differences in order")
    axes.set_xlabel("problems")
    axes.set_ylabel("B - A")
    plots.legend(axes)
