import numpy as np
import pytest

from steadyrl.doctor.statistics.levels import measure
from steadyrl.doctor.statistics.readings import direction
from steadyrl.doctor.statistics.signals import head, tail
from tests.doctor.checks.series_for_values import noise, rise, series


def test_block_means_and_first_steps_of_a_hand_made_series():
    levels = measure(series("x", np.repeat([1.0, 2.0, 4.0], 10)))  # 30 values: six blocks of five
    assert levels.means.tolist() == [1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    assert levels.steps.tolist() == [0, 5, 10, 15, 20, 25]
    assert (levels.first, levels.end, levels.late) == (1.0, 4.0, pytest.approx(10 / 3))
    assert levels.rose and not levels.fell


def test_no_value_is_left_out_where_blocks_do_not_divide_the_number():
    levels = measure(series("x", [8.0, 0.0, 2.0, 4.0, 3.0, 1.0, 5.0, 7.0]))  # the first two blocks have two values
    assert levels.steps.tolist() == [0, 2, 4, 5, 6, 7]
    assert levels.means.tolist() == [4.0, 3.0, 3.0, 1.0, 5.0, 7.0]


def test_fewer_than_five_values_have_no_levels():
    assert measure(series("x", np.arange(4.0))) is None
    assert measure(series("x", np.arange(5.0))).rose
    assert len(measure(series("x", np.arange(6.0))).means) == 6


@pytest.mark.parametrize("n", [20, 30, 45, 75, 150])
def test_neither_a_rise_nor_a_peak_counts_as_noise(n):
    rng, t = np.random.default_rng(n), np.linspace(0.0, 1.0, n)
    assert measure(series("x", 20.0 * t + rng.normal(size=n))).rose
    assert measure(series("x", -20.0 * t + rng.normal(size=n))).fell
    peak = measure(series("x", 20.0 * np.minimum(t / 0.6, (1.0 - t) / 0.4) + rng.normal(size=n)))
    assert peak.means.max() - peak.end > peak.least


def test_the_noise_of_independent_values_is_their_error_of_the_mean():
    rng = np.random.default_rng(0)
    found = [measure(series("x", rng.normal(size=1000))).noise for _ in range(200)]
    assert np.median(found) == pytest.approx(1 / np.sqrt(100), rel=0.15)  # ten blocks of a hundred


def test_the_noise_of_values_with_a_memory_is_wider():
    rng = np.random.default_rng(0)
    # AR(1), 0.8: a mean of 100 has the variance (1 + 0.8) / (1 - 0.8) / 100 = 0.09
    found = [measure(series("x", noise(rng, 1000))).noise for _ in range(200)]
    assert np.median(found) == pytest.approx(0.3, rel=0.15)


@pytest.mark.parametrize("n", [12, 25, 40, 100, 400])
def test_noise_seldom_rises_or_falls(n):
    rng = np.random.default_rng(n)
    every = [measure(series("x", noise(rng, n))) for _ in range(400)]
    assert sum(levels.rose or levels.fell for levels in every) <= 6


def test_a_rise_that_ends_early_is_one_and_so_is_a_jump():
    rng = np.random.default_rng(0)
    assert measure(series("x", rise(200, 0.2, 0.7, 10.0) + noise(rng, 200, 0.03))).rose
    assert measure(series("x", np.where(np.arange(200) < 90, 0.2, 0.5) + noise(rng, 200, 0.03))).rose
    assert measure(series("x", np.where(np.arange(200) < 90, 0.5, 0.2) + noise(rng, 200, 0.03))).fell


@pytest.mark.parametrize("at", [45, 60, 72])
def test_a_loss_begins_where_the_series_left_its_level_at_once_or_steadily(at):
    steps, rng = np.arange(120), np.random.default_rng(at)
    quiet = rng.normal(scale=0.02, size=120)
    for course in (
        np.where(steps < at, 0.9, 0.2),
        np.where(steps < at, 0.9, 0.9 - 0.03 * (steps - at)),
        0.2 + 0.01 * np.minimum(steps, at) - 0.04 * np.maximum(steps - at, 0),
    ):
        x = series("x", course + quiet)
        assert abs(measure(x).loss(0.1).began(x) - at) <= 3


def test_few_evaluations_far_apart_tell_more_than_few_neighbouring_steps():
    values = np.array([0.10, 0.32, 0.47, 0.50, 0.49, 0.30, 0.21, 0.12])
    apart, near = series("x", values, np.arange(0, 400, 50)), series("x", values)
    assert measure(apart).noise < measure(near).noise


@pytest.mark.parametrize(
    ("values", "apart", "course"),
    [
        # Kendall's S of 8 values is 28 at most, with a standard deviation of 8.08: (22 - 1) / 8.08 = 2.6.
        ([0.1, 0.5, 0.55, 0.6, 0.52, 0.62, 0.66, 0.7], 20, 1),
        ([0.7, 0.66, 0.62, 0.52, 0.6, 0.55, 0.5, 0.1], 20, -1),
        ([0.1, 0.5, 0.55, 0.6, 0.52, 0.62, 0.66, 0.7], 1, 0),  # neighbouring steps remember
        ([0.1, 0.7, 0.3, 0.6, 0.2, 0.62, 0.4, 0.5], 20, 0),
    ],
)
def test_the_order_of_a_few_rows_far_apart_tells_a_course(values, apart, course):
    levels = measure(series("x", np.array(values), apart * np.arange(8)))
    assert int(levels.rose) - int(levels.fell) == course


def test_independent_rows_seldom_have_an_order():
    rng = np.random.default_rng(1)
    every = [measure(series("x", rng.normal(size=n), 20 * np.arange(n))) for n in (6, 8, 11, 15) for _ in range(250)]
    assert sum(levels.rose or levels.fell for levels in every) <= 50  # two in a hundred on either side


def test_the_ends_of_a_short_log_share_no_row():
    short = series("x", np.array([1.0, 2.0, 30.0, 4.0, 5.0, 6.0]))
    assert (head(short), tail(short)) == (1.5, 5.5)  # two rows each
    long = series("x", np.arange(40.0))
    assert (head(long), tail(long)) == (2.0, 37.0)  # five rows each
    assert (head(series("x", [3.0])), tail(series("x", [3.0]))) == (3.0, 3.0)


@pytest.mark.parametrize(
    ("values", "course"),
    [
        ([69.0, 29.5, 14.3, 8.9], 0),
        ([69.0, 29.5, 14.3, 8.9, 5.0], -1),
        ([0.335, 0.481, 0.459, 0.438], 0),
        ([0.1, 0.2, 0.6, 0.7, 0.75], 1),
        ([0.05, 0.4, 0.81, 0.84, 0.8], 1),  # level at the end, far from the start
        ([0.05, 0.4, 0.81, 0.6, 0.8], 0),
        ([6.0, 0.3, 0.2, 0.25, 0.2], -1),
    ],
)
def test_five_rows_in_order_or_level_at_the_end_have_a_direction(values, course):
    steps = np.array([1, 4, 6, 8, 9])[: len(values)]
    assert direction(series("x", np.array(values), steps)) == course
