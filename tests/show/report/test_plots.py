"""How the lines of the pictures are smoothed, and which panels there are."""

from functools import partial

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from steadyrl.core.stats import rolling_median, window
from steadyrl.show.report import plots, reward_histogram
from steadyrl.show.report.captions import SENTENCES, captions

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
    shown = [panel.title for panel in plots.measured(plots.POLICY_PANELS, records)]
    assert shown == ["Entropy", "Clip fraction", "Value clip fraction"]
    picture, _ = plots.draw(records, {}, None)["policy"]
    assert picture.count("<!-- 0 throughout -->") == 2
    assert picture.count("<!-- Clip fraction -->") == 1


FOUNDING = {  # the panels of the founding documents
    "loss/total": "Total loss", "loss/policy": "Policy loss", "loss/value": "Value loss",
    "value/error": "Value prediction error", "clip_fraction_value": "Value clip fraction",
    "value/explained_variance": "Explained variance of the value head", "loss/reward_nll": "Reward times surprise",
}  # fmt: skip


@pytest.mark.parametrize("name", FOUNDING)
def test_every_panel_of_the_founding_documents_is_drawn_where_it_has_data(name):
    records = [{"step": step, name: 0.5 + step, "groups/best": 1.0} for step in range(3)]
    pictures = "".join(svg for svg, _ in plots.draw(records, {}, None).values())
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
    assert reward_histogram.borders([0, 10, 14]).tolist() == [-5.0, 5.0, 12.0, 16.0]
    assert reward_histogram.borders([7]).tolist() == [6.5, 7.5]


OF_TRAINING = plots.TRAIN_PANELS


@pytest.mark.parametrize("panels", [plots.POLICY_PANELS, plots.GROUP_PANELS, plots.CURRICULUM_PANELS, OF_TRAINING])
def test_no_legend_hides_the_title_of_its_panel(panels):
    records = [{"step": i, **{name: 0.1 + i for panel in panels for name in panel.lines}} for i in range(20)]
    with matplotlib.rc_context(plots.STYLE):
        figure = plots._grid(plots._drawings(panels, records))
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        legends = [axes for axes in figure.axes if axes.get_legend()]
        for axes in legends:
            title = axes.title if axes.title.get_text() else axes._left_title
            legend = axes.get_legend().get_window_extent(canvas.get_renderer())
            assert title.get_text()
            assert not title.get_window_extent(canvas.get_renderer()).overlaps(legend), title.get_text()
    assert (len(legends) > 0) == any(len(panel.lines) > 1 for panel in panels)


def test_parts_of_the_reward_have_a_scale_of_their_own():
    """A part of 1 throughout flattened a total from 0.1 to 0.2."""
    records = [{"step": i, "reward/mean": 0.1 + 0.01 * i, "reward/parseable": 1.0} for i in range(10)]
    picture, _ = plots.draw(records, {"parseable": 1.0}, None)["train"]
    assert picture.index("<!-- Reward in training -->") < picture.index(
        "<!-- Parts of the reward, times their weights -->"
    )
    same = [{**record, "reward/parseable": record["reward/mean"]} for record in records]
    picture, _ = plots.draw(same, {"parseable": 1.0}, None)["train"]
    assert "<!-- total = parseable -->" in picture and "Parts of the reward" not in picture


def test_no_legend_hides_the_title_of_the_reward_range():
    records = [{"step": i, "reward/mean": 0.5, "reward/min": 0.0, "reward/max": 1.0} for i in range(20)]
    with matplotlib.rc_context(plots.STYLE):
        figure = Figure(figsize=(plots.WIDTH_INCHES, plots.ROW_INCHES))
        axes, _ = figure.subplots(1, 2)
        reward_histogram._draw_range(axes, records)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        extents = [box.get_window_extent(canvas.get_renderer()) for box in (axes._left_title, axes.get_legend())]
        assert not extents[0].overlaps(extents[1])


def test_parts_are_drawn_times_their_weights_and_add_up_to_the_total():
    records = [{"step": i, "reward/worth": 0.2 * i, "reward/parseable": 1.0} for i in range(6)]
    records = [{**record, "reward/mean": 2.0 * record["reward/worth"] + 0.1} for record in records]
    with matplotlib.rc_context(plots.STYLE):
        panels = plots._reward_panels(records, {"worth": 2.0, "parseable": 0.1}, "retrieval")
        figure = plots._grid([partial(plots.draw_panel, panel=panel, metrics=records) for panel in panels], 2)
    total, parts = ({line.get_label(): line.get_ydata() for line in axes.lines} for axes in figure.axes)
    assert list(parts) == ["2 x worth", "0.1 x parseable"]
    np.testing.assert_allclose(parts["2 x worth"] + parts["0.1 x parseable"], total["total"])


def test_a_caption_speaks_of_what_is_drawn_and_of_nothing_else():
    records = [{"step": i, "reward/mean": 0.1, "entropy": 2.0, "loss/policy": 0.1} for i in range(3)]
    texts = captions(records, {}, "retrieval")
    for absent in ("diamonds", "KL", "value", "explained variance", "agree", "weights"):
        assert absent not in texts["train"] + texts["policy"]
    assert "policy loss stays near 0" in texts["train"] and "entropy should fall slowly" in texts["policy"]
    assert "diamonds" in captions(records, {}, "retrieval", {0: 0.1})["overview"]
    every = {panel.title for panels in plots.PANELS.values() for panel in panels}
    assert every == set(SENTENCES)


@pytest.mark.parametrize("panels", [plots.POLICY_PANELS, plots.GROUP_PANELS])
def test_no_legend_hides_the_title_of_a_single_panel(panels):
    records = [{"step": i, **{name: 0.1 + i for panel in panels for name in panel.lines}} for i in range(20)]
    with matplotlib.rc_context(plots.STYLE):
        for drawing in plots._drawings(panels, records):
            figure = plots.single(drawing)
            canvas = FigureCanvasAgg(figure)
            canvas.draw()
            (axes,) = figure.axes
            if legend := axes.get_legend():
                box = legend.get_window_extent(canvas.get_renderer())
                assert not axes._left_title.get_window_extent(canvas.get_renderer()).overlaps(box)


def test_the_title_of_a_single_panel_is_whole():
    records = [{"step": i, "reward/mean": 0.1 * i, "reward/parseable": 1.0, "reward/retrieval": 0.2} for i in range(9)]
    panels = plots._reward_panels(records, {"parseable": 0.1}, "retrieval")
    assert len(panels) == 3  # the total, its parts, and the metric
    with matplotlib.rc_context(plots.STYLE):
        for drawing in plots._drawings(panels, records):
            figure = plots.single(drawing)
            canvas = FigureCanvasAgg(figure)
            canvas.draw()
            (axes,) = figure.axes
            assert axes._left_title.get_window_extent(canvas.get_renderer()).x1 <= figure.bbox.x1


def test_the_steps_of_the_histogram_are_whole_numbers():
    figure = Figure(figsize=(plots.WIDTH_INCHES, plots.ROW_INCHES))
    axes = figure.subplots()
    reward_histogram._draw_histogram(axes, {0: np.array([0.0, 1.0, 1.0])})
    assert [tick for tick in axes.get_xticks() if -0.5 <= tick <= 0.5] == [0]
