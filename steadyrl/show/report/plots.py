"""The pictures of a run: the training curves, the policy's behaviour, and the problems that a curriculum chose.

The faint line shows every step and the strong one a rolling median, so a single spike stays visible and does not bend
the median. The same metrics give the same bytes.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from steadyrl.core.errors import RunError
from steadyrl.core.metrics import describe
from steadyrl.core.stats import MIN_WINDOW, rolling_median, window
from steadyrl.show.review.epochs import series

Metrics = Sequence[Mapping[str, Any]]

# Okabe and Ito's palette, which colour-blind readers can distinguish; its yellow is too light for a line on white.
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
PART_COLOURS = (VERMILLION, GREEN, PURPLE, ORANGE, SKY)
INK, GREY = "#222222", "#6E6E6E"
WIDTH_INCHES = 9.0  # 900 pixels of a README at 100 pixels per inch
ROW_INCHES = 2.7  # of a picture with one row of panels
PNG_DPI = 200  # twice that, for sharp displays
MAX_LINEAR_RANGE = 50  # largest divided by median value; above it a linear axis shows only the spike
LOWEST_EXPLAINED_VARIANCE = -1.0  # values further below 0 say no more: the value head predicts worse than a constant

STYLE: Any = {  # matplotlib's types of the keys change with its version
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.xmargin": 0.01,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": 0.09,
    "figure.constrained_layout.w_pad": 0.09,
    "font.size": 9,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.7,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.handlelength": 1.4,
    "lines.solid_capstyle": "round",
    "svg.hashsalt": "steadyrl",
    "text.color": INK,
    "text.parse_math": False,  # a reward part may have a dollar sign in its name
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
}


@dataclass(frozen=True)
class Panel:
    """What one panel shows.

    Attributes:
        title: Plain words.
        lines: Metric names to colour and legend label; the last is drawn on top, an empty label has no legend.
        zero: True for a line at 0.
        exact: True if the numbers have no noise that needs smoothing.
        spikes: True if the scale becomes logarithmic when a few steps dwarf all others.
        floor: The lower end of the axis, or None for no limit.
    """

    title: str
    lines: Mapping[str, tuple[str, str]]
    zero: bool = False
    exact: bool = False
    spikes: bool = False
    floor: float | None = None


KL_PANEL = Panel(
    "KL to the reference",
    {
        "kl_ref_full_seq": (GREEN, "uncut"),
        "kl_ref_exact_seq": (VERMILLION, "exact"),
        "kl_ref_k1_seq": (BLUE, "k1"),
    },
    zero=True,
)
COEFFICIENT_PANEL = Panel("KL coefficient", {"algorithm/kl_coef": (GREEN, "")}, exact=True)
POLICY_LOSS_PANEL = Panel("Policy loss", {"loss/policy": (BLUE, "")}, zero=True)
NLL_PANEL = Panel("Loss of the imitated texts", {"loss/nll": (BLUE, "")})
VALUE_LOSS_PANEL = Panel("Value loss", {"loss/value": (BLUE, "")}, spikes=True)
TOTAL_LOSS_PANEL = Panel("Total loss", {"loss/total": (BLUE, "")}, zero=True)
SURPRISE_PANEL = Panel("Reward times surprise", {"loss/reward_nll": (BLUE, "")})
TRAIN_PANELS = (
    KL_PANEL,
    COEFFICIENT_PANEL,
    POLICY_LOSS_PANEL,
    NLL_PANEL,
    VALUE_LOSS_PANEL,
    TOTAL_LOSS_PANEL,
    SURPRISE_PANEL,
)
POLICY_PANELS = (
    Panel("Entropy", {"entropy_sampled": (VERMILLION, "sampled"), "entropy": (BLUE, "exact")}),
    Panel("Clip fraction", {"clip_fraction": (BLUE, "")}),
    Panel("KL to the old policy (k3)", {"kl_old_k3": (BLUE, "")}),
    Panel(
        "Advantage",
        {"advantage/std": (VERMILLION, "std"), "advantage/mean": (BLUE, "mean")},
        zero=True,
    ),
    Panel(
        "Explained variance of the value head",
        {"value/explained_variance": (BLUE, "")},
        zero=True,
        floor=LOWEST_EXPLAINED_VARIANCE,
    ),
    Panel("Value prediction error", {"value/error": (BLUE, "")}, spikes=True),
    Panel("Value clip fraction", {"clip_fraction_value": (BLUE, "")}),
    Panel("Values and returns", {"return/mean": (VERMILLION, "return"), "value/mean": (BLUE, "value")}),
    Panel("Gradient norm before clipping", {"grad_norm": (BLUE, "")}, spikes=True),
)
GROUP_PANELS = (
    Panel("Best of N and average", {"groups/best": (GREEN, "best of N"), "reward/mean": (BLUE, "average")}),
    Panel(
        "Spread",
        {"groups/mean_std": (VERMILLION, "between problems"), "reward/std_within": (BLUE, "within a problem")},
    ),
    Panel("Groups whose rewards are all equal", {"groups/no_signal": (BLUE, "")}),
    Panel("Parts of the loss", {"loss/kl": (VERMILLION, "KL"), "loss/policy": (BLUE, "policy")}, zero=True),
)
CURRICULUM_PANELS = (
    Panel("Groups with signal", {"curriculum/signal": (BLUE, "")}, floor=0.0),
    Panel("Difficulty of the chosen problems", {"curriculum/difficulty": (BLUE, "")}),
    Panel("Entropy of the choice", {"curriculum/entropy": (BLUE, "")}),
)
PANELS = {"train": TRAIN_PANELS, "policy": POLICY_PANELS, "groups": GROUP_PANELS, "curriculum": CURRICULUM_PANELS}


def captions(steps: int) -> dict[str, str]:
    """Return what to look for in each picture, for a run with this number of steps."""
    width = window(steps)
    lines = "The lines show every step. "
    if width > 1:
        lines = f"Faint lines show every step, strong lines a rolling median over {width} steps. "
    return {
        "train": lines
        + "The reward should rise and level off, and so should the held-out diamonds. If a reward part rises "
        "while they stay flat, the policy learns it for its own sake. The KL to the reference rises while the policy "
        "learns. It is estimated from the sampled tokens (k1; the band is one standard error of a single step) and "
        "computed over the whole vocabulary (exact), and the two should agree. Where sampling cuts the vocabulary, "
        "uncut is the KL to a reference that nothing was cut from. An estimate below 0 can only be noise. "
        "The policy loss stays near 0 and its level says little. The value loss should fall and stay low. The total "
        "loss is the sum of its parts times their coefficients.",
        "policy": lines
        + "The entropy should fall slowly, and exact and sampled entropy should agree. A sudden fall means "
        "that the policy settles on few answers. Where a step makes several updates, clip fraction and KL to the old "
        "policy show how far it moves the policy. With a single update both are 0. Look for a rise that does not stop. "
        "The advantage before whitening should have a mean near 0 and a spread well above it. The explained variance "
        "should rise above 0 and stay there (the axis ends at -1). Values should follow the returns, and the "
        "prediction error, their mean squared distance, should fall. Single spikes of the gradient norm are clipped, "
        "but a rising level is a problem.",
        "groups": lines
        + "The gap between the best answer to a problem and the average shows what following the best can still teach. "
        "The spread within a problem is the learning signal. It falls as the answers become alike, and where it is 0 "
        "a group teaches nothing. The spread between problems says how different they are. The KL's part of the loss "
        "is shown before its coefficient.",
        "curriculum": lines
        + "The curriculum should increase the share of groups whose rewards differ, compared with a "
        "run on the same problems in order. If problems have a difficulty, its mean should rise as the policy learns. "
        "An entropy near 0 means that a few problems are drawn again and again. curriculum.jsonl says why each problem "
        "was drawn.",
    }


def draw(metrics: Metrics, weights: Iterable[str], metric: str | None) -> dict[str, tuple[str, bytes]]:
    """Draw the pictures, as SVG text and PNG bytes: {"train": (svg, png), "policy": (svg, png), ...}.

    A run with several answers to a problem has the picture "groups", and one whose curriculum weights problems has
    "curriculum". A panel is left out where nothing of it was measured; ``absences`` says which.

    Args:
        metrics: One record per step.
        weights: Names of the weighted reward parts, drawn beside the total; the first five that were measured.
        metric: The task's metric, drawn even without a weight.
    """
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a reader's own matplotlibrc must not change the pictures
        with matplotlib.rc_context(STYLE):
            figures = {
                "train": _train(metrics, weights, metric),
                "policy": _panels(POLICY_PANELS, metrics),
                "groups": _panels(GROUP_PANELS, metrics) if _has_groups(metrics) else None,
                "curriculum": _curriculum(metrics) if _has_choice(metrics) else None,
            }
            return {name: (as_svg(figure), as_png(figure)) for name, figure in figures.items() if figure is not None}


class Picture(Figure):
    """A figure that a notebook shows, whether or not pyplot was imported there."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        canvas: Any = FigureCanvasAgg(self)
        canvas.print_png(buffer)
        return buffer.getvalue()


def picture(metrics: Metrics, weights: Iterable[str], metric: str | None) -> Picture:
    """Return the training curves (see ``draw``) as a figure of matplotlib.

    Raises:
        RunError: There is no step yet.
    """
    if not metrics:
        raise RunError("there is no step to draw yet; wait for the first one")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        with matplotlib.rc_context(STYLE):
            return _train(metrics, weights, metric)


def absences(metrics: Metrics) -> list[str]:
    """Return a sentence for the panels that have no data, and one for each picture that is left out."""
    left_out = {
        "groups": "There is no picture of the groups: no problem had several scored answers.",
        "curriculum": "There is no picture of the curriculum: it weighs no problems.",
    }
    if _has_groups(metrics):
        del left_out["groups"]
    if _has_choice(metrics):
        del left_out["curriculum"]
    panels = [panel for name, panels in PANELS.items() if name not in left_out for panel in panels]
    shown = measured(panels, metrics)
    empty = [f"{panel.title} ({', '.join(panel.lines)})" for panel in panels if panel not in shown]
    names = f"These panels have no data, for the run logged none of their metrics: {'; '.join(empty)}."
    return [*([names] if empty else []), *left_out.values()]


def _has_groups(metrics: Metrics) -> bool:
    return bool(np.isfinite(series(metrics, "groups/best")).any())


def _has_choice(metrics: Metrics) -> bool:
    return bool(np.isfinite(series(metrics, "curriculum/entropy")).any())


def as_svg(figure: Figure) -> str:
    """Return a figure as SVG text, without anything that differs between two writings.

    ``Figure.savefig`` would draw everything twice, the first time without a pen.
    """
    buffer = io.StringIO()
    canvas: Any = FigureCanvasSVG(figure)  # matplotlib does not say what its methods take
    canvas.print_svg(buffer, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return buffer.getvalue()


def as_png(figure: Figure) -> bytes:
    """Return a figure that ``as_svg`` drew as PNG bytes; everything stays at its place, for placing takes long."""
    buffer = io.BytesIO()
    figure.set_layout_engine("none")
    figure.dpi = PNG_DPI
    canvas: Any = FigureCanvasAgg(figure)
    canvas.print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()


def _train(metrics: Metrics, weights: Iterable[str], metric: str | None) -> Picture:
    panels = measured(TRAIN_PANELS, metrics)
    rewards = _reward_panels(metrics, weights, metric)
    top, rows = len(rewards), -(-len(panels) // 2)
    figure = Picture(figsize=(WIDTH_INCHES, ROW_INCHES * (top + rows)))
    grid = figure.add_gridspec(top + rows, 2)
    for place, panel in enumerate(rewards):
        axes = figure.add_subplot(grid[place, :])
        draw_panel(axes, panel, metrics)
        if place == top - 1:
            _mark_heldout(axes, metrics, metric)
    for place, panel in enumerate(panels):
        alone = place == len(panels) - 1 and place % 2 == 0
        axes = figure.add_subplot(grid[top + place // 2, :] if alone else grid[top + place // 2, place % 2])
        _draw_kl(axes, metrics) if panel is KL_PANEL else draw_panel(axes, panel, metrics)
    return figure


def measured(panels: Iterable[Panel], metrics: Metrics) -> list[Panel]:
    """Return the panels that have something to show."""
    return [panel for panel in panels if any(np.isfinite(series(metrics, name)).any() for name in panel.lines)]


def _panels(panels: Sequence[Panel], metrics: Metrics) -> Figure | None:
    """Draw what was measured, two panels in a row; None where nothing was."""
    shown = measured(panels, metrics)
    if not shown:
        return None
    rows = -(-len(shown) // 2)
    figure = Figure(figsize=(WIDTH_INCHES, ROW_INCHES * rows))
    grid = figure.add_gridspec(rows, 2)
    for place, panel in enumerate(shown):
        alone = place == len(shown) - 1 and place % 2 == 0
        draw_panel(figure.add_subplot(grid[place // 2, :] if alone else grid[place // 2, place % 2]), panel, metrics)
    return figure


def _curriculum(metrics: Metrics) -> Figure:
    panels = measured(CURRICULUM_PANELS, metrics)
    figure = Figure(figsize=(WIDTH_INCHES, ROW_INCHES))
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False).flat, panels, strict=True):
        draw_panel(axes, panel, metrics)
    return figure


def _reward_panels(metrics: Metrics, weights: Iterable[str], metric: str | None) -> list[Panel]:
    """Return the panel of the total, and one of the parts that differ from it.

    They have a scale each: a part that is near 1 throughout would flatten a total that rises from 0.1 to 0.2.
    """
    total = series(metrics, "reward/mean")
    parts = {part: series(metrics, f"reward/{part}") for part in [*weights, *([metric] if metric else [])]}
    parts = {part: values for part, values in parts.items() if np.isfinite(values).any()}
    same = [part for part, values in parts.items() if np.allclose(values, total, equal_nan=True)]
    drawn = [part for part in parts if part not in same][: len(PART_COLOURS)]
    panels = [Panel("Reward in training", {"reward/mean": (BLUE, " = ".join(["total", *same]))})]
    if drawn:
        lines = {f"reward/{part}": (PART_COLOURS[i], part) for i, part in enumerate(drawn)}
        panels.append(Panel("Parts of the reward", lines))
    return panels


def _mark_heldout(axes: Axes, metrics: Metrics, metric: str | None) -> None:
    heldout = series(metrics, f"heldout/{metric}")
    measured = np.isfinite(heldout)
    if measured.any():
        steps = _steps(metrics)[measured]
        axes.plot(steps, heldout[measured], "D", color=INK, markersize=4, label=f"held-out {metric}", zorder=4)
        legend(axes)


def _draw_kl(axes: Axes, metrics: Metrics) -> None:
    draw_panel(axes, KL_PANEL, metrics)
    kl, error = series(metrics, "kl_ref_k1_seq"), series(metrics, "kl_ref_k1_seq_se")
    measured = np.isfinite(kl) & np.isfinite(error)
    if measured.any():
        width = window(len(metrics))  # a band around every single step would hide the lines
        low, high = (rolling_median((kl + sign * error)[measured], width) for sign in (-1, 1))
        axes.fill_between(_steps(metrics)[measured], low, high, color=BLUE, alpha=0.2, linewidth=0, zorder=1)


def draw_panel(axes: Axes, panel: Panel, metrics: Metrics) -> None:
    """Draw the curves of a panel; of none that was measured, say so in their place."""
    steps = _steps(metrics)
    axes.set_title(panel.title)
    axes.set_xlabel("step")
    axes.set_ylabel(_unit(next(iter(panel.lines))))
    axes.set_xlim(*_span(steps))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 2.5, 5, 10]))
    curves = {name: series(metrics, name) for name in panel.lines}
    curves = {name: values for name, values in curves.items() if np.isfinite(values).any()}
    if not curves:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", va="center", color=GREY)
        axes.set_yticks([])
        return
    width = 1 if panel.exact else window(len(metrics))
    for name, values in curves.items():
        measured = np.isfinite(values)
        _draw_line(axes, (steps[measured], values[measured]), width, *panel.lines[name])
    if panel.zero:
        axes.axhline(0, color=GREY, linewidth=0.8, zorder=1.5)
    if not any(values[np.isfinite(values)].any() for values in curves.values()):
        axes.set_ylim(-0.05, 1.0)  # around 0 alone the axis would show a millionth as it shows a half
        axes.text(0.5, 0.5, "0 throughout", transform=axes.transAxes, ha="center", va="center", color=GREY)
    if panel.floor is not None and axes.get_ylim()[0] < panel.floor:
        axes.set_ylim(bottom=panel.floor)
    if panel.spikes and _dwarfed(np.concatenate(list(curves.values()))):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_ylabel(f"{axes.get_ylabel()}, log scale")
    legend(axes)


def _draw_line(axes: Axes, points: tuple[np.ndarray, np.ndarray], width: int, colour: str, label: str) -> None:
    x, y = points
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


def _span(steps: np.ndarray) -> tuple[float, float]:
    margin = max(0.01 * float(steps[-1] - steps[0]), 0.5)
    return float(steps[0]) - margin, float(steps[-1]) + margin


def _unit(name: str) -> str:
    metric = describe(name)
    return (metric.unit if metric else "") or "no unit"


def _dwarfed(values: np.ndarray) -> bool:
    finite = values[np.isfinite(values)]
    return bool((finite > 0).all()) and float(finite.max()) > MAX_LINEAR_RANGE * float(np.median(finite))
