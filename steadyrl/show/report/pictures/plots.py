"""The pictures of a run: the training curves, the policy's behaviour, and the problems that a curriculum chose.

The faint line shows every step and the strong one a rolling median, so a single spike stays visible and does not bend
the median. The same metrics give the same bytes.
"""

from __future__ import annotations

import io
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import hsv_to_rgb, to_hex
from matplotlib.figure import Figure
from matplotlib.image import imsave
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from steadyrl.core.metrics import describe, series
from steadyrl.core.stats import MIN_WINDOW, rolling_median, window
from steadyrl.show.page import html

Metrics = Sequence[Mapping[str, Any]]

# Okabe and Ito's palette, which colour-blind readers can distinguish; its yellow is too light for a line on white.
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
PART_COLOURS = (VERMILLION, GREEN, PURPLE, ORANGE, SKY)
GROUP_COLOURS = (BLUE, *PART_COLOURS)
GOLDEN = 0.618034  # of the hues' circle: each step lands far from all before
INK, GREY, PALE = "#222222", "#6E6E6E", "#E4E4E4"  # which are others on a dark page
WIDTH_INCHES = 9.0  # 900 pixels of a README at 100 pixels per inch
ROW_INCHES = 2.7  # of a picture with one row of panels
MARGIN_INCHES = 0.1  # at the sides of a panel
PNG_DPI = 200  # twice that, for sharp displays
MAX_LINEAR_RANGE = 50  # largest divided by median value; above it a linear axis shows only the spike

_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
STYLE: Any = _TABLES["style"]  # matplotlib's types of the keys change with its version
# Pictures that not every run has: the metric that each needs, and what is said where it was not measured.
OPTIONAL: Mapping[str, tuple[str, str]] = _TABLES["optional"]
LABELS: Mapping[str, str] = _TABLES["labels"]
NOTES: Mapping[str, str] = _TABLES["notes"]


@contextmanager
def drawing(**style: Any) -> Iterator[None]:
    """Draw in the project's own style, whatever a reader's matplotlibrc says."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        with matplotlib.rc_context(STYLE | style):
            yield


@dataclass(frozen=True)
class Panel:
    """What one panel shows."""

    title: str
    lines: Mapping[str, tuple[str, str]]
    """Metric names to colour and legend label; the last is drawn on top, an empty label has no legend."""
    caption: str = ""
    """What to look for, as a sentence."""
    zero: bool = False
    """True for a line at 0."""
    exact: bool = False
    """True if the numbers have no noise that needs smoothing."""
    spikes: bool = False
    """True if the scale becomes logarithmic when a few steps dwarf all others."""
    floor: float | None = None
    """The lower end of the axis, or None for no limit."""
    estimates: bool = False
    """True if the lines are estimates of one quantity."""
    total: bool = False
    """True if the line is a sum of what others show."""
    scale: Mapping[str, float] = field(default_factory=dict)
    """What a line is multiplied by; 1 where it is not named."""


@dataclass(frozen=True)
class Rendered:
    """A picture that was drawn."""

    svg: str  # the whole as SVG text
    png: bytes  # the whole as PNG bytes
    panels: Sequence[str]  # SVG texts, for pages that place them as their width allows


Drawing = Callable[[Axes], None]


def _panel(fields: Mapping[str, Any]) -> Panel:
    """Return a panel of plots.toml, where colours have names."""
    colours = {"blue": BLUE, "vermillion": VERMILLION, "green": GREEN}
    lines = {metric: (colours[colour], label) for metric, (colour, label) in fields["lines"].items()}
    return Panel(**{**fields, "lines": lines})


PANELS = {name: tuple(map(_panel, panels)) for name, panels in _TABLES["panels"].items()}


def draw(
    metrics: Metrics, weights: Mapping[str, float], metric: str | None, heldout: Mapping[int, float] | None = None
) -> dict[str, Rendered]:
    """Draw the pictures by name.

    "overview" is the picture to send alone. A run with several answers to a problem has the picture "groups", and one
    whose curriculum weights problems has "curriculum". A panel is left out where nothing of it was measured;
    ``absences`` says which.

    Args:
        metrics: One record per step.
        weights: Of the reward's parts, which are drawn times their weights; the first five that were measured.
        metric: The task's metric, drawn even without a weight.
        heldout: Held-out scores by step, beside those that the steps themselves logged.
    """
    with drawing():
        training = _training(metrics, weights, metric, heldout or {})
        pictures = {"train": training, "policy": _drawings(PANELS["policy"], metrics)}
        for name, (needed, _) in OPTIONAL.items():
            pictures[name] = _drawings(PANELS[name], metrics) if logged(metrics, needed) else []
        rendered = {
            name: combined(list(map(panel_figure, drawings))) for name, drawings in pictures.items() if drawings
        }
        reward = combined([panel_figure(training[0], WIDTH_INCHES)])
        return {"overview": replace(reward, panels=rendered["train"].panels[:1]), **rendered}


def _training(
    metrics: Metrics, weights: Mapping[str, float], metric: str | None, heldout: Mapping[int, float]
) -> list[Drawing]:
    """Return what draws the panels of the training, the reward with the held-out scores first."""
    total, *part_panels = _reward_panels(metrics, weights, metric)
    logged = series(metrics, f"heldout/{metric or 'reward'}")
    steps = _steps(metrics)
    scores = {**heldout, **{int(steps[i]): float(logged[i]) for i in np.flatnonzero(np.isfinite(logged))}}
    label = f"held-out {metric or 'reward'}"
    return [
        partial(_draw_total, panel=total, metrics=metrics, label=label, scores=scores),
        *(partial(draw_panel, panel=panel, metrics=metrics) for panel in part_panels),
        *_drawings(PANELS["train"], metrics),
    ]


def _drawings(panels: Iterable[Panel], metrics: Metrics) -> list[Drawing]:
    return [
        partial(_draw_kl if "kl_ref_k1_seq" in panel.lines else draw_panel, panel=panel, metrics=metrics)
        for panel in measured(panels, metrics)
    ]


class Picture(Figure):
    """A figure that a notebook shows, whether or not pyplot was imported there."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        canvas: Any = FigureCanvasAgg(self)
        canvas.print_png(buffer)
        return buffer.getvalue()


def panel_figure(drawing: Drawing, width: float = WIDTH_INCHES / 2) -> Figure:
    """Draw one panel as a figure of its own, by default half as wide as a picture.

    Its margins are set here: constrained layout lays out every text several times, and costs as much as the drawing.
    """
    no_layout: Any = "none"  # which matplotlib's types lack
    figure = Figure(figsize=(width, ROW_INCHES), layout=no_layout)
    axes = figure.add_subplot()
    figure.subplots_adjust(bottom=0.19, top=0.87, right=1 - MARGIN_INCHES / width)
    drawing(axes)
    if axes.get_legend() is not None and width < WIDTH_INCHES:
        axes.set_title(axes.get_title("left"), pad=20)  # above the legend: side by side they need a whole width
        figure.subplots_adjust(top=0.8)
    canvas: Any = FigureCanvasAgg(figure)
    below, beside = (axis.get_tightbbox(canvas.get_renderer()) for axis in (axes.xaxis, axes.yaxis))
    assert below is not None and beside is not None, "every axis has a label"
    # The labels stay where they are beside the axes, in inches: each drawing would look for a place.
    from_left = (axes.yaxis.label.get_position()[0] - axes.bbox.x0) / figure.dpi
    from_below = (axes.xaxis.label.get_position()[1] - axes.bbox.y0) / figure.dpi
    for axis, x, y, right, up in ((axes.yaxis, 0.0, 0.5, from_left, 0.0), (axes.xaxis, 0.5, 0.0, 0.0, from_below)):
        shift = ScaledTranslation(right, up, figure.dpi_scale_trans)
        axis.set_label_coords(x, y, transform=axes.transAxes + shift)
    left = (axes.bbox.x0 - beside.x0) / figure.bbox.width + MARGIN_INCHES / width
    figure.subplots_adjust(left=max(left, 0.7 / width))  # the axes of most panels stand below one another
    return figure


def combined(figures: Sequence[Figure]) -> Rendered:
    """Return figures of equal size as one picture, two in a row; each of them is drawn once."""
    panels, pixels = [], []  # SVG texts, and colours [height, width, 4]
    for figure in figures:
        panels.append(as_svg(figure))
        figure.dpi = PNG_DPI
        canvas: Any = FigureCanvasAgg(figure)
        canvas.draw()
        pixels.append(np.array(canvas.buffer_rgba()))
    unsigned: Any = {"Software": None}  # equal metrics give equal bytes, whatever the version of matplotlib
    across = min(2, len(panels))
    white = np.full_like(pixels[0], 255)
    rows = [(*pixels[i : i + across], white)[:across] for i in range(0, len(pixels), across)]
    buffer = io.BytesIO()
    pil_options: Any = {"compress_level": 3}  # the default takes an eighth of the drawing more, for a fifth less
    colours = np.vstack([np.hstack(row) for row in rows])
    imsave(buffer, colours, format="png", dpi=PNG_DPI, metadata=unsigned, pil_kwargs=pil_options)
    width, height = (72.0 * inches for inches in figures[0].get_size_inches())
    placed = [
        f'<svg x="{width * (i % across):g}" y="{height * (i // across):g}" width="{width:g}" height="{height:g}" '
        + html.unique_svg(panel, f"panel{i}")[len("<svg ") :]
        for i, panel in enumerate(panels)
    ]
    size = f'width="{width * across:g}pt" height="{height * len(rows):g}pt"'
    box = f'viewBox="0 0 {width * across:g} {height * len(rows):g}"'
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    svg = f'<svg {names} {size} {box} version="1.1">\n{chr(10).join(placed)}\n</svg>\n'
    return Rendered(svg, buffer.getvalue(), panels)


def palette(count: int) -> list[str]:
    """Return so many colours, none of them twice: the palette's, then further hues."""
    hues = [(0.1 + GOLDEN * i) % 1.0 for i in range(max(0, count - len(GROUP_COLOURS)))]
    # Darker and paler in turn, so that near hues differ too.
    further = [
        to_hex(tuple(hsv_to_rgb((hue, 0.55 + 0.3 * (i % 2), 0.75 - 0.2 * (i % 3))).tolist()))
        for i, hue in enumerate(hues)
    ]
    return [*GROUP_COLOURS[:count], *further]


def picture(
    metrics: Metrics, weights: Mapping[str, float], metric: str | None, heldout: Mapping[int, float]
) -> Picture:
    """Return the training curves and the entropy as a figure of matplotlib; arguments as of ``draw``."""
    with drawing():
        drawings = [*_training(metrics, weights, metric, heldout), *_drawings(PANELS["policy"][:1], metrics)]
        rows = -(-len(drawings) // 2)
        figure = Picture(figsize=(WIDTH_INCHES, ROW_INCHES * rows))
        for i, panel in enumerate(drawings, 1):
            panel(figure.add_subplot(rows, 2, i))
        return figure


def absences(metrics: Metrics) -> list[str]:
    """Return a sentence for the panels that have no data, and one for each picture that is left out."""
    left_out = {name: reason for name, (metric, reason) in OPTIONAL.items() if not logged(metrics, metric)}
    panels = [panel for name, panels in PANELS.items() if name not in left_out for panel in panels]
    lacking = [panel for panel in panels if not any(logged(metrics, name) for name in panel.lines)]
    empty = [f"{panel.title} ({', '.join(panel.lines)})" for panel in lacking]
    names = f"These panels have no data, for the run logged none of their metrics: {'; '.join(empty)}."
    return [*([names] if empty else []), *left_out.values()]


def captions(
    metrics: Metrics, weights: Mapping[str, float], metric: str | None, heldout: Mapping[int, float] | None = None
) -> dict[str, str]:
    """Return what to look for in each picture, a sentence for each panel that is drawn; arguments as of ``draw``."""

    def has_estimates(panel: Panel) -> bool:
        return panel.estimates and sum(logged(metrics, name) for name in panel.lines) > 1

    width = window(len(metrics))
    lines = "The lines show every step."
    if width > 1:
        lines = f"Faint lines show every step, strong lines a rolling median over {width} steps."
    panels_of = {name: measured(panels, metrics) for name, panels in PANELS.items()}
    texts = {
        name: [
            lines,
            *(panel.caption for panel in panels),
            *([NOTES["estimates"]] if any(map(has_estimates, panels)) else []),
        ]
        for name, panels in panels_of.items()
    }
    diamonds = [NOTES["heldout"]] if heldout or logged(metrics, f"heldout/{metric or 'reward'}") else []
    part_notes = [NOTES["parts"]] if any(logged(metrics, f"reward/{part}") for part in weights) else []
    band = [NOTES["band"]] if logged(metrics, "kl_ref_k1_seq_se") else []
    texts["train"] = [lines, *diamonds, *part_notes, *texts["train"][1:], *band]
    texts["overview"] = [lines, *diamonds]
    return {name: " ".join(sentences) for name, sentences in texts.items()}


def svg(draw: Callable[[Figure], None], height: float, **style: Any) -> str:
    """Return what ``draw`` draws on a figure of a picture's width as SVG text.

    Args:
        draw: Called with the figure.
        height: In inches.
        style: Of matplotlib, over the project's own.
    """
    with drawing(**style):
        figure = Figure(figsize=(WIDTH_INCHES, height))
        draw(figure)
        return as_svg(figure)


def as_svg(figure: Figure) -> str:
    """Return a figure as SVG text, without anything that differs between two writings.

    ``Figure.savefig`` would draw everything twice, the first time without a pen.
    """
    buffer = io.StringIO()
    canvas: Any = FigureCanvasSVG(figure)  # matplotlib does not say what its methods take
    canvas.print_svg(buffer, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return buffer.getvalue()


def measured(panels: Iterable[Panel], metrics: Metrics) -> list[Panel]:
    """Return the panels that have something to show; a total is left out where one of its parts is all of it."""
    panels = list(panels)
    part_values = [series(metrics, name) for panel in panels if not panel.total for name in panel.lines]

    def repeats(panel: Panel) -> bool:
        sums = [series(metrics, name) for name in panel.lines if panel.total]
        return any(np.allclose(part, total, equal_nan=True) for part in part_values for total in sums)

    return [panel for panel in panels if any(logged(metrics, name) for name in panel.lines) and not repeats(panel)]


def logged(metrics: Metrics, name: str) -> bool:
    """Return whether a metric has a finite value at some step."""
    return bool(np.isfinite(series(metrics, name)).any())


def _reward_panels(metrics: Metrics, weights: Mapping[str, float], metric: str | None) -> list[Panel]:
    """Return the panel of the total, one of what its parts contribute to it, and one of a metric that has no weight.

    They have a scale each: a part that is near 1 throughout would flatten a total that rises from 0.1 to 0.2.
    """
    total = series(metrics, "reward/mean")
    contributions = {part: weight * series(metrics, f"reward/{part}") for part, weight in weights.items()}
    contributions = {part: values for part, values in contributions.items() if np.isfinite(values).any()}
    same = [part for part, values in contributions.items() if np.allclose(values, total, equal_nan=True)]
    plotted = [part for part in contributions if part not in same][: len(PART_COLOURS)]
    panels = [Panel("Reward in training", {"reward/mean": (BLUE, " = ".join(["total", *same]))})]
    if plotted:
        names = {part: part if weights[part] == 1.0 else f"{weights[part]:g} x {part}" for part in plotted}
        lines = {f"reward/{part}": (PART_COLOURS[i], names[part]) for i, part in enumerate(plotted)}
        scale = {f"reward/{part}": weights[part] for part in plotted}
        panels.append(Panel("Parts of the reward, times their weights", lines, scale=scale))
    if metric and metric not in weights and logged(metrics, f"reward/{metric}"):
        panels.append(Panel(f"{metric} in training (not rewarded)", {f"reward/{metric}": (BLUE, "")}))
    return panels


def _draw_total(axes: Axes, panel: Panel, metrics: Metrics, label: str, scores: Mapping[int, float]) -> None:
    draw_panel(axes, panel, metrics)
    if scores:
        axes.plot(
            list(scores), list(scores.values()), "D", color=INK, markersize=4, label=label, zorder=4, clip_on=False
        )
        legend(axes)


def _draw_kl(axes: Axes, panel: Panel, metrics: Metrics) -> None:
    draw_panel(axes, panel, metrics)
    kl, error = series(metrics, "kl_ref_k1_seq"), series(metrics, "kl_ref_k1_seq_se")
    judged = np.isfinite(kl) & np.isfinite(error)
    if judged.any():
        width = window(len(metrics))  # a band around every single step would hide the lines
        low, high = (rolling_median((kl + sign * error)[judged], width) for sign in (-1, 1))
        axes.fill_between(_steps(metrics)[judged], low, high, color=BLUE, alpha=0.2, linewidth=0, zorder=1)


def draw_panel(axes: Axes, panel: Panel, metrics: Metrics) -> None:
    """Draw the curves of a panel; of none that was measured, say so in their place."""
    steps = _steps(metrics)
    axes.set_title(panel.title)
    axes.set_xlabel("step")
    metric, margin = describe(next(iter(panel.lines))), max(0.01 * float(steps[-1] - steps[0]), 0.5)
    axes.set_ylabel((metric.unit if metric else "") or "no unit")
    axes.set_xlim(float(steps[0]) - margin, float(steps[-1]) + margin)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 2.5, 5, 10]))
    curves = {name: panel.scale.get(name, 1.0) * series(metrics, name) for name in panel.lines}
    curves = {name: values for name, values in curves.items() if np.isfinite(values).any()}
    if not curves:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", va="center", color=GREY)
        axes.set_yticks([])
        return
    width = 1 if panel.exact else window(len(metrics))
    for name, values in curves.items():
        measured = np.isfinite(values)
        draw_line(axes, steps[measured], values[measured], width, *panel.lines[name])
    if panel.zero:
        axes.axhline(0, color=GREY, linewidth=0.8, zorder=1.5)
    if not any(values[np.isfinite(values)].any() for values in curves.values()):
        axes.set_ylim(-0.05, 1.0)  # around 0 alone the axis would show a millionth as it shows a half
        axes.text(0.5, 0.5, "0 throughout", transform=axes.transAxes, ha="center", va="center", color=GREY)
    if panel.floor is not None and axes.get_ylim()[0] < panel.floor:
        axes.set_ylim(bottom=panel.floor)
    if panel.spikes:
        choose_scale(axes, np.concatenate(list(curves.values())))
    legend(axes)


def choose_scale(axes: Axes, values: np.ndarray) -> None:
    """Let the axis of values be logarithmic where a few of them would hide all others on a linear one."""
    finite = values[np.isfinite(values)]
    if (finite > 0).all() and float(finite.max()) > MAX_LINEAR_RANGE * float(np.median(finite)):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_ylabel(f"{axes.get_ylabel()}, log scale")


def draw_line(axes: Axes, x: np.ndarray, y: np.ndarray, width: int, colour: str, label: str | None = None) -> None:
    """Draw every step faintly and a rolling median over ``width`` of them strongly; a line alone where that is 1."""
    if width == 1 or len(x) < width:
        marker = "o" if len(x) < 2 * MIN_WINDOW else ""
        axes.plot(x, y, color=colour, label=label, linewidth=1.8, marker=marker, markersize=3.5, zorder=3)
        return
    axes.plot(x, y, color=colour, linewidth=0.7, alpha=0.35, zorder=2)
    axes.plot(x, rolling_median(y, width), color=colour, label=label, linewidth=1.8, zorder=3)


def legend(axes: Axes) -> None:
    """Put the legend above a panel, where it hides nothing. There is none if nothing has a label."""
    labels = axes.get_legend_handles_labels()[1]
    if labels:
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.005), ncols=len(labels), borderaxespad=0.0)


def _steps(metrics: Metrics) -> np.ndarray:
    return np.array([record["step"] for record in metrics], dtype=np.float64)
