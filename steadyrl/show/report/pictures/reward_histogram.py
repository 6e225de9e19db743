"""The picture of a run's rewards: their range in each step, and how often each level occurs in the recorded rollouts.

A mean hides whether all answers earn a little or a few earn all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import MaxNLocator

from steadyrl.core.metrics import series
from steadyrl.core.words import counted
from steadyrl.show.report.pictures import plots
from steadyrl.show.report.pictures.plots import BLUE, SKY, Metrics, Panel

Recorded = Mapping[int, Sequence[float]]

LEVELS = 20  # of the reward, between the lowest and the highest of the run
SHADES = 10  # of the colour: the pages hold a path for each
LIGHTEST, DARKEST = "#D3E6F2", "#002B45"  # a level without any rollout stays white, so that a single one is seen
RANGE_PANEL = Panel("Reward range", {"reward/mean": (BLUE, "mean")})


def draw(metrics: Metrics, recorded: Recorded) -> plots.Rendered | None:
    """Draw the picture; None if neither panel has data."""
    drawings: list[plots.Drawing] = []
    if plots.logged(metrics, "reward/min"):
        drawings.append(partial(_draw_range, metrics=metrics))
    drawings += [partial(_draw_histogram, recorded=recorded)] if recorded else []
    if not drawings:
        return None
    with plots.drawing():
        return plots.combined([plots.panel_figure(panel) for panel in drawings])


def sentences(metrics: Metrics, recorded: Recorded) -> list[str]:
    """Return what the picture shows, and what is missing in it and why."""
    spread = "There is no range of the reward: reward/min and reward/max were not logged."
    if plots.logged(metrics, "reward/min"):
        spread = "The range is that of all scored rollouts of a step."
    levels = "There is no histogram of the rewards: the run recorded no rollouts with a reward (run.rollouts_every)."
    if recorded:
        levels = (
            f"The histogram is of {len(recorded)} of {counted(len(metrics), 'step')}, whose rollouts were recorded "
            "(run.rollouts_every) and read. The darker a level, the more of a step's rollouts earned it."
        )
    return [spread, levels]


def histogram(recorded: Recorded) -> tuple[np.ndarray, np.ndarray]:
    """Return the shares of each step's rollouts by level, [levels, steps], and the levels' borders, [levels + 1]."""
    all_rewards = np.concatenate([np.asarray(rewards, dtype=np.float64) for rewards in recorded.values()])
    low, high = float(all_rewards.min()), float(all_rewards.max())
    borders = np.linspace(low, high, LEVELS + 1) if high > low else np.array([low - 0.5, high + 0.5])
    counts = [np.histogram(rewards, borders)[0] / len(rewards) for rewards in recorded.values()]
    return np.array(counts).T, borders


def borders(steps: Sequence[int]) -> np.ndarray:
    """Return the borders of columns, [S + 1]: halfway between neighbours, and half a step beyond both ends."""
    centres = np.asarray(steps, dtype=np.float64)
    return np.concatenate([[centres[0] - 0.5], (centres[:-1] + centres[1:]) / 2, [centres[-1] + 0.5]])


def _draw_range(axes: Axes, metrics: Metrics) -> None:
    plots.draw_panel(axes, RANGE_PANEL, metrics)
    steps = np.array([record["step"] for record in metrics])
    # Of every step: a median over steps would hide the extremes, and they are what is shown.
    low, high = (series(metrics, f"reward/{end}") for end in ("min", "max"))
    axes.fill_between(
        steps, low, high, facecolor=SKY, edgecolor=SKY, alpha=0.3, linewidth=0.8, label="lowest to highest", zorder=1
    )
    plots.legend(axes)


def _draw_histogram(axes: Axes, recorded: Recorded) -> None:
    shares, levels = histogram(recorded)
    shades = LinearSegmentedColormap.from_list("shades", [LIGHTEST, BLUE, DARKEST], N=SHADES)
    filled = np.ma.masked_equal(shares, 0.0)
    mesh = axes.pcolormesh(borders(list(recorded)), levels, filled, cmap=shades, vmin=0.0, vmax=float(shares.max()))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 2.5, 5, 10], min_n_ticks=1))
    axes.set_title("Rewards by step")
    axes.set_xlabel("step")
    axes.set_ylabel("reward")
    axes.grid(visible=False)
    axes.figure.subplots_adjust(right=0.84)  # room for the bar
    bar = axes.figure.colorbar(mesh, ax=axes, pad=0.02)
    bar.set_label("share of rollouts")
    bar.outline.set_visible(False)
