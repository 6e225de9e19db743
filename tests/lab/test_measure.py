"""One number of a curve, by hand; and where a rule ends a run."""

import math

import numpy as np
import pytest

from steadyrl.lab.measure import ended_by, lowest_z, summary
from steadyrl.lab.study.file import Rule, Stop

CURVE = np.array([1.0, 1.0, math.nan, 2.0, 2.0, 2.0, 2.0, 20.0, 3.0, 4.0, 6.0])


@pytest.mark.parametrize(
    ("take", "expected"),
    [
        ("first", 1.0),
        ("last", 5.0),
        ("gain", 4.0),
        ("ratio", 5.0),
        ("mean", 4.3),
        ("min", 1.0),
        ("max", 20.0),
        ("spike", 10.0),
        ("below_zero", 0.0),
    ],
)
def test_a_number_of_a_curve(take, expected):
    assert summary(CURVE, take, Rule(share=0.2, start=0.2)) == pytest.approx(expected)


def test_a_curve_that_was_never_measured_has_no_number():
    halves = Rule(share=0.5, start=0.5)
    assert summary(np.full(4, math.nan), "last", halves) is None
    assert summary(np.array([0.0, 1.0]), "ratio", halves) is None
    assert summary(np.array([*[-1.0] * 5, 0.0, 3.0]), "spike", halves) is None
    assert summary(np.array([-1.0, 0.0, 3.0]), "below_zero", halves) == pytest.approx(1 / 3)


def test_a_loss_that_only_falls_has_no_spike_and_one_that_leaves_its_level_has():
    falling = np.array([8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 4.0, *[0.1] * 50])  # 80 times the median, all of it at the start
    assert summary(falling, "spike", Rule()) == pytest.approx(1.0)
    late = np.array([1.0] * 120 + [2.0] * 120 + [30.0, 2.0])  # the 100 steps before the spike are all at 2
    assert summary(late, "spike", Rule()) == pytest.approx(15.0)
    assert summary(late[:5], "spike", Rule()) is None  # too short to have a level


def test_a_collapse_in_the_first_steps_shows_against_the_start():
    entropy = np.array([3.0, 3.0, 3.0, *[0.1] * 147])  # it collapses in step 3 of 150
    assert summary(entropy, "first", Rule()) == pytest.approx(3.0)
    assert summary(entropy, "ratio", Rule()) == pytest.approx(0.1 / 3.0)
    assert summary(entropy, "gain", Rule()) == pytest.approx(-2.9)


def test_a_bias_that_no_single_step_shows_shows_in_a_window():
    # ten windows of four steps; the last is at -1 error each, so its mean is at -4 / sqrt(4) errors
    values = np.array([0.5] * 36 + [-1.0] * 4)
    assert lowest_z(values, np.ones(40)) == pytest.approx(-2.0)
    assert lowest_z(values, np.full(40, math.nan)) is None


def test_a_rule_ends_a_run_after_so_many_steps_in_a_row():
    rule = Stop(metric="entropy", below=0.1, steps=3, why="it collapsed")
    low = [0.05, 0.05, 0.5, 0.05, 0.05, 0.05, 0.05]
    records = [{"step": step, "entropy": value} for step, value in enumerate(low)]
    assert ended_by([rule], records) == (5, rule)
    assert ended_by([rule], records[:5]) is None
    assert ended_by([rule], [{"step": 0}, {"step": 1, "entropy": math.nan}]) is None
    above = Stop(metric="entropy", above=0.4, steps=1, why="it rose")
    assert ended_by([rule, above], records) == (2, above)
