"""How the lines of the pictures are smoothed."""

import numpy as np

from steadyrl.report import plots


def test_rolling_median_of_hand_computed_values():
    # ends: median of (1, 9) and of (3, 100)
    assert plots.rolling_median(np.array([1.0, 9.0, 2.0, 3.0, 100.0]), 3).tolist() == [5.0, 2.0, 3.0, 3.0, 51.5]


def test_the_window_is_odd_and_short_runs_are_not_smoothed():
    assert [plots.window(steps) for steps in (1, 9, 10, 60, 150, 1000)] == [1, 1, 5, 5, 11, 67]
    assert "rolling median" not in plots.captions(9)["train"]
    assert "rolling median over 11 steps" in plots.captions(150)["policy"]
