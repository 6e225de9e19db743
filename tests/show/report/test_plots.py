"""How the lines of the pictures are smoothed, and which panels there are."""

import io
import re
import xml.etree.ElementTree as ElementTree
from functools import partial

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imread

from steadyrl.core.stats import rolling_median, window
from steadyrl.show.report.pictures import plots, reward_histogram
from steadyrl.show.report.pictures.plots import captions

pytestmark = pytest.mark.pictures


def test_rolling_median_of_hand_computed_values():
    # the first is itself, the last the median of (3, 100)
    assert rolling_median(np.array([1.0, 9.0, 2.0, 3.0, 100.0]), 3).tolist() == [1.0, 2.0, 3.0, 3.0, 51.5]


def test_a_change_in_the_first_steps_is_not_smoothed_away():
    collapse = np.array([3.0, 2.0, *[0.1] * 28])
    assert rolling_median(collapse, 11)[:3].tolist() == [3.0, 2.0, 0.1]


def test_the_window_is_odd_and_short_runs_are_not_smoothed():
    assert [window(steps) for steps in (1, 9, 10, 60, 150, 1000)] == [1, 1, 5, 5, 11, 67]
    short, long = ([{"step": i, "entropy": 1.0} for i in range(steps)] for steps in (9, 150))
    assert "rolling median" not in captions(short, {}, None)["train"]
    assert "rolling median over 11 steps" in captions(long, {}, None)["policy"]


def test_a_panel_whose_numbers_are_all_0_is_drawn_and_says_so():
    records = [{"step": step, "clip_fraction": 0.0, "clip_fraction_value": 0.0, "entropy": 1.0} for step in range(20)]
    shown = [panel.title for panel in plots.measured(plots.PANELS["policy"], records)]
    assert shown == ["Entropy", "Clip fraction", "Value clip fraction"]
    picture = plots.draw(records, {}, None)["policy"].svg
    assert picture.count("<!-- 0 throughout -->") == 2
    assert picture.count("<!-- Clip fraction -->") == 1


@pytest.mark.parametrize("part", ["policy", "nll", "value"])
def test_a_total_loss_that_is_one_of_its_parts_is_not_drawn_twice(part):
    losses = [{"step": step, f"loss/{part}": 0.25 * step, "loss/total": 0.25 * step} for step in range(7)]
    titles = [panel.title for panel in plots.measured(plots.PANELS["train"], losses)]
    assert len(titles) == 1 and "Total loss" not in titles
    assert "Total loss" not in " ".join(plots.absences(losses))
    with_kl = [{**record, "loss/total": 0.25 * step + 0.125} for step, record in enumerate(losses)]
    assert "Total loss" in [panel.title for panel in plots.measured(plots.PANELS["train"], with_kl)]


FOUNDING = {  # the panels of the founding documents
    "loss/total": "Total loss", "loss/policy": "Policy loss", "loss/value": "Value loss",
    "value/error": "Value prediction error", "clip_fraction_value": "Value clip fraction",
    "value/explained_variance": "Explained variance of the value head", "loss/reward_nll": "Reward times surprise",
}  # fmt: skip


@pytest.mark.parametrize("name", FOUNDING)
def test_every_panel_of_the_founding_documents_is_drawn_where_it_has_data(name):
    records = [{"step": step, name: 0.5 + step, "groups/best": 1.0} for step in range(3)]
    pictures = "".join(picture.svg for picture in plots.draw(records, {}, None).values())
    assert f"<!-- {FOUNDING[name]} -->" in pictures
    absent = " ".join(plots.absences(records))
    assert f"{FOUNDING[name]} ({name})" not in absent
    assert all(f"{title} ({other})" in absent for other, title in FOUNDING.items() if other != name)


def test_a_picture_that_is_left_out_says_so():
    assert plots.absences([{"step": 0}])[1:] == [
        "There is no picture of the groups: no problem had several scored answers.",
        "There is no picture of the curriculum: it weighs no problems.",
    ]
    whole = {name: 1.0 for panels in plots.PANELS.values() for panel in panels for name in panel.lines}
    assert plots.absences([{"step": 0, **whole}]) == []


def test_the_histogram_counts_each_recorded_step_by_itself():
    """Rewards of 0, 0, 0, 1 at step 0 and of 1, 1 at step 5."""
    shares, levels = reward_histogram.histogram({0: [0.0, 0.0, 0.0, 1.0], 5: [1.0, 1.0]})
    assert (levels[0], levels[-1]) == (0.0, 1.0)
    assert shares[:, 0].tolist() == [0.75, *[0.0] * (len(shares) - 2), 0.25]
    assert shares[:, 1].tolist() == [*[0.0] * (len(shares) - 1), 1.0]
    shares, levels = reward_histogram.histogram({3: [0.5, 0.5]})
    assert shares.tolist() == [[1.0]] and levels.tolist() == [0.0, 1.0]


def test_a_column_of_the_histogram_reaches_halfway_to_its_neighbours():
    assert reward_histogram.borders([0, 10, 14]).tolist() == [-0.5, 5.0, 12.0, 14.5]  # no steps that never were
    assert reward_histogram.borders([7]).tolist() == [6.5, 7.5]


def test_parts_of_the_reward_have_a_scale_of_their_own():
    """A part of 1 throughout flattened a total from 0.1 to 0.2."""
    records = [{"step": i, "reward/mean": 0.1 + 0.01 * i, "reward/parseable": 1.0} for i in range(10)]
    picture = plots.draw(records, {"parseable": 1.0}, None)["train"].svg
    assert picture.index("<!-- Reward in training -->") < picture.index(
        "<!-- Parts of the reward, times their weights -->"
    )
    same = [{**record, "reward/parseable": record["reward/mean"]} for record in records]
    picture = plots.draw(same, {"parseable": 1.0}, None)["train"].svg
    assert "<!-- total = parseable -->" in picture and "Parts of the reward" not in picture


def test_parts_are_drawn_times_their_weights_and_add_up_to_the_total():
    records = [{"step": i, "reward/worth": 0.2 * i, "reward/parseable": 1.0} for i in range(6)]
    records = [{**record, "reward/mean": 2.0 * record["reward/worth"] + 0.1} for record in records]
    with plots.drawing():
        panels = plots._reward_panels(records, {"worth": 2.0, "parseable": 0.1}, "retrieval")
        figures = [plots.panel_figure(partial(plots.draw_panel, panel=panel, metrics=records)) for panel in panels]
    total, parts = ({line.get_label(): line.get_ydata() for line in figure.axes[0].lines} for figure in figures)
    assert list(parts) == ["2 x worth", "0.1 x parseable"]
    np.testing.assert_allclose(parts["2 x worth"] + parts["0.1 x parseable"], total["total"])


def test_a_caption_speaks_of_what_is_drawn_and_of_nothing_else():
    records = [{"step": i, "reward/mean": 0.1, "entropy": 2.0, "loss/policy": 0.1} for i in range(3)]
    texts = captions(records, {}, "retrieval")
    for absent in ("diamonds", "KL", "value", "explained variance", "agree", "weights"):
        assert absent not in texts["train"] + texts["policy"]
    assert "policy loss stays near 0" in texts["train"] and "entropy should fall slowly" in texts["policy"]
    assert "diamonds" in captions(records, {}, "retrieval", {0: 0.1})["overview"]
    assert all(panel.caption for panels in plots.PANELS.values() for panel in panels)


def boxes(figure):
    """Return where the title, the legend (None without one) and the label of the y-axis of a panel stand, in pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    axes, renderer = figure.axes[0], canvas.get_renderer()
    legend = axes.get_legend() and axes.get_legend().get_window_extent(renderer)
    return axes._left_title.get_window_extent(renderer), legend, axes.yaxis.label.get_window_extent(renderer)


@pytest.mark.parametrize("name", plots.PANELS)
def test_title_legend_and_labels_of_a_panel_are_whole_and_apart(name):
    """The margins are set by hand: nothing may stand outside of the figure."""
    panels = plots.PANELS[name]
    names = [name for panel in panels for name in panel.lines]
    records = [{"step": i, **{name: -1e-5 * i * (k + 9) for k, name in enumerate(names)}} for i in range(20)]
    with plots.drawing():
        figures = [plots.panel_figure(drawing) for drawing in plots._drawings(panels, records)]
        for figure in figures:
            title, legend, label = boxes(figure)
            assert label.x0 >= 0 and title.y0 >= 0 and title.y1 <= figure.bbox.y1 and title.x1 <= figure.bbox.x1
            assert legend is None or not title.overlaps(legend)
    assert len(figures) == len(panels)


def test_title_and_legend_of_the_reward_range_are_apart():
    records = [{"step": i, "reward/mean": 0.5, "reward/min": 0.0, "reward/max": 1.0} for i in range(20)]
    with plots.drawing():
        title, legend, _ = boxes(plots.panel_figure(partial(reward_histogram._draw_range, metrics=records)))
        assert not title.overlaps(legend)


def test_the_title_of_a_single_panel_is_whole():
    records = [{"step": i, "reward/mean": 0.1 * i, "reward/parseable": 1.0, "reward/retrieval": 0.2} for i in range(9)]
    panels = plots._reward_panels(records, {"parseable": 0.1}, "retrieval")
    assert len(panels) == 3  # the total, its parts, and the metric
    with plots.drawing():
        figures = [plots.panel_figure(drawing) for drawing in plots._drawings(panels, records)]
        assert all(boxes(figure)[0].x1 <= figure.bbox.x1 for figure in figures)


def test_a_picture_is_made_of_the_panels_that_were_drawn():
    """Three panels stand two in a row; each is 4.5 by 2.7 inches, in 200 pixels an inch."""
    records = [{"step": i, "clip_fraction": 0.1 * i, "entropy": 1.0, "grad_norm": 1.0} for i in range(9)]
    drawn = plots.draw(records, {}, None)["policy"]
    assert imread(io.BytesIO(drawn.png)).shape == (2 * 540, 2 * 900, 4)
    root = ElementTree.fromstring(drawn.svg)
    assert root.attrib["viewBox"] == "0 0 648 388.8"
    places = [(float(panel.attrib["x"]), float(panel.attrib["y"])) for panel in root]
    assert places == [(0.0, 0.0), (324.0, 0.0), (0.0, 194.4)]
    assert len(drawn.panels) == 3 and all(svg.count("<!-- step -->") == 1 for svg in drawn.panels)
    identifiers = re.findall(r'\bid="([^"]*)"', drawn.svg)
    assert len(identifiers) == len(set(identifiers))


def test_the_steps_of_the_histogram_are_whole_numbers():
    figure = Figure(figsize=(plots.WIDTH_INCHES, plots.ROW_INCHES))
    axes = figure.subplots()
    reward_histogram._draw_histogram(axes, {0: np.array([0.0, 1.0, 1.0])})
    assert [tick for tick in axes.get_xticks() if -0.5 <= tick <= 0.5] == [0]
