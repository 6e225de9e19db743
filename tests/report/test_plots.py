"""How the lines of the pictures are smoothed."""

import numpy as np

from steadyrl.report import plots


def test_rolling_median_of_hand_computed_values():
    # the first is itself, the last the median of (3, 100)
    assert plots.rolling_median(np.array([1.0, 9.0, 2.0, 3.0, 100.0]), 3).tolist() == [1.0, 2.0, 3.0, 3.0, 51.5]


def test_a_change_in_the_first_steps_is_not_smoothed_away():
    collapse = np.array([3.0, 2.0, *[0.1] * 28])
    assert plots.rolling_median(collapse, 11)[:3].tolist() == [3.0, 2.0, 0.1]


def test_the_window_is_odd_and_short_runs_are_not_smoothed():
    assert [plots.window(steps) for steps in (1, 9, 10, 60, 150, 1000)] == [1, 1, 5, 5, 11, 67]
    assert "rolling median" not in plots.captions(9)["train"]
    assert "rolling median over 11 steps" in plots.captions(150)["policy"]
