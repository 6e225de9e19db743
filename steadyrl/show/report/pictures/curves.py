"""Curves of several runs over one another: in pictures, by topic, and as the data of a page that a reader explores.

The page works offline: all data is inside the page, which draws the curves with uPlot (see ``page.html``).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from steadyrl.core.metrics import describe, series
from steadyrl.core.stats import block_starts, rolling_median, window
from steadyrl.show.page.records import Curves
from steadyrl.show.report.pictures import plots
from steadyrl.show.report.pictures.plots import palette
from steadyrl.show.report.topics import NOT_EXPLORED, overview, panels

MOST_POINTS = 400  # of a curve; longer ones are means of neighbouring steps
# Of all curves on a page, of six or seven characters each: the page of a study with sixty runs stays below a megabyte.
ALL_POINTS = 80_000
LEAST_POINTS = 20
DIGITS = 3  # significant, of a number in the page
LEVELS = 300  # at least, between the least and the greatest value of a curve, which would be stairs with fewer
Records = Sequence[Mapping[str, Any]]
PICTURED_POINTS = 100  # of a curve in a picture
ROW_INCHES = 2.25
# More than hundredths of a point in a coordinate only make a page larger; the text of a label ends at "<".
_FRACTION = re.compile(r"(\.\d\d)\d+(?![\d<])")


def curves(groups: Mapping[str, Sequence[Records]], file: str, visible: Sequence[str] = ()) -> Curves:
    """Return the curves of groups of runs, such as seeds of an arm, to explore; no ``visible`` ones show all."""
    measured = {name: [_run_curves(records) for records in runs if records] for name, runs in groups.items()}
    count = sum(len(values) for runs in measured.values() for _, values in runs)
    max_points = max(LEAST_POINTS, min(MOST_POINTS, ALL_POINTS // max(1, count)))
    sources = [
        {
            "name": name,
            "colour": colour,
            "hidden": bool(visible) and name not in visible,
            "runs": [_thinned_run(steps, values, max_points) for steps, values in runs],
        }
        for (name, runs), colour in zip(measured.items(), palette(len(groups)), strict=True)
        if runs
    ]
    names = sorted({name for runs in measured.values() for _, values in runs for name in values})
    first, apart = overview([{name: name for name in names}], apart=True), len(groups) > 1
    further = [name for name in names if name not in {name for panel in first for name, _ in panel.metrics}]
    data = json.dumps(sources, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Curves(data, first, panels(further, apart), file)


def thinned(steps: np.ndarray, values: np.ndarray, max_points: int) -> tuple[np.ndarray, np.ndarray]:
    """Return at most so many points of a curve [S]: means of neighbouring steps that were measured."""
    starts = block_starts(len(steps), min(max_points, len(steps)))
    finite = np.isfinite(values)
    sums, counts = (np.add.reduceat(column, starts) for column in (np.where(finite, values, 0.0), 1.0 * finite))
    means = np.divide(sums, counts, out=np.full(len(starts), np.nan), where=counts > 0)
    return np.add.reduceat(steps, starts) / np.diff(starts, append=len(steps)), means


def _run_curves(records: Records) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the steps of a run [S] and what it measured of each metric [S]; NaN where a step has none."""
    steps = np.array([record["step"] for record in records], np.float64)
    names = sorted({name for record in records for name in record} - {"step", "attempt", "time"})
    columns = {name: series(records, name) for name in names if not name.startswith(NOT_EXPLORED)}
    return steps, {name: values for name, values in columns.items() if np.isfinite(values).any()}


def _thinned_run(steps: np.ndarray, measured: Mapping[str, np.ndarray], max_points: int) -> dict[str, Any]:
    # The curves of a run share their steps, so that the page can average over seeds: means, and not least and greatest.
    shorter = {name: [_json_values(thinned(steps, values, max_points)[1])] for name, values in measured.items()}
    return {"steps": _json_values(thinned(steps, steps, max_points)[0]) if shorter else [], "lines": shorter}


def _json_values(values: np.ndarray) -> list[float | None]:
    """Round the values of a curve [S] to significant digits, or more finely where it moves by less."""
    finite = values[np.isfinite(values)]
    span = float(finite.max() - finite.min()) if finite.size else 0.0
    decimals = math.ceil(math.log10(LEVELS / span)) if span else 0

    def rounded(value: float) -> float:
        return min((float(f"{value:.{DIGITS}g}"), round(value, decimals)), key=lambda short: abs(short - value))

    return [rounded(float(value)) if math.isfinite(value) else None for value in values]


@dataclass(frozen=True)
class Topic:
    """A topic of the founding documents, and the metric that shows it best: the first one that was measured."""

    name: str  # stands above the panel
    metrics: tuple[str, ...]  # the best one first
    spikes: bool = False  # whether its spikes are what counts, so that it is not smoothed
    zero: bool = False  # whether 0 is marked
    idle: bool = False  # whether a metric that is 0 throughout says nothing, and counts as not measured


TOPICS = (
    Topic("Reward", ("reward/mean",)),
    Topic("KL to the reference", ("kl_ref_k1_seq",), zero=True),
    Topic("Value loss", ("loss/value", "loss/nll", "grad_norm"), spikes=True),  # without a critic the gradient spikes
    Topic("Policy: clip fraction", ("clip_fraction", "kl_old_k3"), idle=True),
    Topic("Entropy", ("entropy",)),
    Topic("Spread of the advantage", ("advantage/std",)),
)

TITLES = {name: panel.title for panels in plots.PANELS.values() for panel in panels for name in panel.lines}

# Text stays text: of a page with twenty pictures, letters as shapes would be the larger part.
TEXT_STAYS = {"svg.fonttype": "none"}


def overlay(groups: Mapping[str, Sequence[Records]], topics: Sequence[Topic] = TOPICS) -> str | None:
    """Draw each topic that was measured, all groups over one another, as SVG text; None where nothing was."""
    panels = [(topic, metric) for topic in topics if (metric := _measured(groups, topic)) is not None]
    if not panels:
        return None
    columns = 2 if len(panels) == 4 else min(3, len(panels))
    rows = -(-len(panels) // columns)

    def draw(figure: Figure) -> None:
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes, (topic, metric) in zip(grid.flat, panels, strict=False):
            _draw_topic(axes, topic, metric, groups)
        for axes in list(grid.flat)[len(panels) :]:
            axes.set_axis_off()
        handles, labels = grid.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=min(len(labels), 4), frameon=False)

    return _FRACTION.sub(r"\1", plots.svg(draw, ROW_INCHES * rows + 0.35, **TEXT_STAYS))


def mean_and_range(runs: Sequence[Records], metric: str, spikes: bool) -> tuple[np.ndarray, ...] | None:
    """Return steps, mean, lowest and highest over the runs; None where nothing was measured.

    A step that only some of the runs reached is averaged over those. Each run is smoothed, unless its spikes are what
    counts.
    """
    by_step: dict[float, list[float]] = {}
    for records in runs:
        values = series(records, metric)
        finite = np.isfinite(values)
        if not finite.any():
            continue
        steps = np.array([record["step"] for record in records], np.float64)[finite]
        smooth = values[finite] if spikes else rolling_median(values[finite], window(int(finite.sum())))
        for step, value in zip(steps, smooth, strict=True):
            by_step.setdefault(float(step), []).append(float(value))
    if not by_step:
        return None
    steps = np.array(sorted(by_step))
    curves = [np.array([f(by_step[step]) for step in steps]) for f in (np.mean, np.min, np.max)]
    if spikes:
        indices = extremes(curves, PICTURED_POINTS)
        return steps[indices], *(values[indices] for values in curves)
    shorter = [thinned(steps, values, PICTURED_POINTS) for values in curves]
    return shorter[0][0], *(values for _, values in shorter)


def extremes(curves: Sequence[np.ndarray], max_points: int) -> np.ndarray:
    """Return at most so many places of curves [S] with equal steps: where each is least and greatest in each bin."""
    if len(curves[0]) <= max_points:
        return np.arange(len(curves[0]))
    bins = np.array_split(np.arange(len(curves[0])), max_points // (2 * len(curves)))
    return np.unique([b[extreme(curve[b])] for b in bins for curve in curves for extreme in (np.argmin, np.argmax)])


def _measured(groups: Mapping[str, Sequence[Records]], topic: Topic) -> str | None:
    for metric in topic.metrics:
        columns = (series(records, metric) for runs in groups.values() for records in runs)
        if any(np.isfinite(values).any() and (np.nan_to_num(values).any() or not topic.idle) for values in columns):
            return metric
    return None


def _draw_topic(axes: Axes, topic: Topic, metric: str, groups: Mapping[str, Sequence[Records]]) -> None:
    description = describe(metric)
    axes.set_title(topic.name if metric == topic.metrics[0] else TITLES.get(metric, metric))
    axes.set_xlabel("step")
    axes.set_ylabel((description.unit if description else "") or "no unit")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    highest, lowest = 0.0, np.inf
    for number, ((name, runs), colour) in enumerate(zip(groups.items(), palette(len(groups)), strict=True)):
        curves = mean_and_range(runs, metric, topic.spikes)
        if curves is None:
            axes.plot([], [], color=colour, label=name)
            continue
        steps, mean, low, high = curves
        axes.plot(steps, mean, color=colour, label=name, linewidth=1.6, zorder=3 + number)
        if len(runs) > 1:
            axes.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0, zorder=2)
        highest, lowest = max(highest, float(np.nanmax(high))), min(lowest, float(np.nanmin(low)))
    if topic.spikes and lowest > 0 and highest > plots.MAX_LINEAR_RANGE * lowest:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    if lowest == highest == 0.0:
        axes.set_ylim(0.0, 1.0)  # around a line at 0 matplotlib would show values that there are none of
    if topic.zero:
        axes.axhline(0, color=plots.GREY, linewidth=0.8, zorder=1.5)
