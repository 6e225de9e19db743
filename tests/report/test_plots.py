"""How the lines of the pictures are smoothed, and which panels there are."""

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from steadyrl.report import plots
from steadyrl.stats import rolling_median, window


def test_rolling_median_of_hand_computed_values():
    # the first is itself, the last the median of (3, 100)
    assert rolling_median(np.array([1.0, 9.0, 2.0, 3.0, 100.0]), 3).tolist() == [1.0, 2.0, 3.0, 3.0, 51.5]


def test_a_change_in_the_first_steps_is_not_smoothed_away():
    collapse = np.array([3.0, 2.0, *[0.1] * 28])
    assert rolling_median(collapse, 11)[:3].tolist() == [3.0, 2.0, 0.1]


def test_the_window_is_odd_and_short_runs_are_not_smoothed():
    assert [window(steps) for steps in (1, 9, 10, 60, 150, 1000)] == [1, 1, 5, 5, 11, 67]
    assert "rolling median" not in plots.captions(9)["train"]
    assert "rolling median over 11 steps" in plots.captions(150)["policy"]


def test_a_panel_that_a_single_update_per_step_keeps_at_0_is_left_out():
    def shown(**values):
        return [panel.title for panel in plots.measured(plots.POLICY_PANELS, [values, values])]

    assert shown(entropy=0.0, clip_fraction=0.0, kl_old_k3=0.0, grad_norm=0.0) == [
        "Entropy",
        "Gradient norm before clipping",
    ]
    assert shown(clip_fraction=0.0, kl_old_k3=0.01) == ["KL to the old policy (k3)"]


OF_TRAINING = (plots.KL_PANEL, plots.COEFFICIENT_PANEL)


@pytest.mark.parametrize("panels", [plots.POLICY_PANELS, plots.GROUP_PANELS, plots.CURRICULUM_PANELS, OF_TRAINING])
def test_no_legend_hides_the_title_of_its_panel(panels):
    records = [{"step": i, **{name: 0.1 + i for panel in panels for name in panel.lines}} for i in range(20)]
    with matplotlib.rc_context(plots.STYLE):
        figure = plots._panels(panels, records)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        legends = [axes for axes in figure.axes if axes.get_legend()]
        for axes in legends:
            title = axes.title if axes.title.get_text() else axes._left_title
            legend = axes.get_legend().get_window_extent(canvas.get_renderer())
            assert title.get_text()
            assert not title.get_window_extent(canvas.get_renderer()).overlaps(legend), title.get_text()
    assert (len(legends) > 0) == any(len(panel.lines) > 1 for panel in panels)
