import tracemalloc

import numpy as np
import pytest
import scipy

from steadyrl.core.errors import DataError
from steadyrl.core.stats import (
    block_mean_slope,
    difference_of_means,
    mcnemar_exact,
    paired_difference,
    sign_flip_p_value,
    smallest_detectable,
    student_quantile,
)

# paired_difference


def test_paired_difference_of_hand_computed_problems():
    # differences 1, 2, 0, 5: mean 2, variance (1 + 0 + 4 + 9) / 3 = 14 / 3, error sqrt(14 / 12) = 1.080123
    result = paired_difference([1.0, 1.0, 4.0, 0.0], [2.0, 3.0, 4.0, 5.0], resamples=100)
    assert result.n == 4
    assert (result.mean_before, result.mean_after, result.difference) == (1.5, 3.5, 2.0)
    assert result.standard_error == pytest.approx(1.080123, rel=1e-6)


def test_a_constant_change_has_an_interval_of_no_width():
    result = paired_difference([1.0, 5.0, 9.0], [1.5, 5.5, 9.5])
    assert (result.difference, result.low, result.high) == (0.5, 0.5, 0.5)


def test_the_interval_is_near_the_normal_one_for_many_problems():
    differences = np.random.default_rng(0).normal(0.1, 1.0, size=400)
    result = paired_difference(np.zeros(400), differences)
    reach = 1.959964 * differences.std(ddof=1) / 20  # sqrt(400) = 20
    assert result.low == pytest.approx(differences.mean() - reach, abs=0.006)
    assert result.high == pytest.approx(differences.mean() + reach, abs=0.006)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(1)
    hits = 0
    for seed in range(200):
        difficulty = rng.normal(0.0, 3.0, size=60)
        after = difficulty + rng.normal(0.3, 1.0, size=60)
        result = paired_difference(difficulty, after, seed=seed, resamples=1000)
        hits += result.low <= 0.3 <= result.high
    assert 180 <= hits <= 198


def test_more_confidence_needs_a_wider_interval():
    before, after = np.random.default_rng(2).normal(size=(2, 50))
    narrow = paired_difference(before, after, resamples=2000, confidence=0.5)
    wide = paired_difference(before, after, resamples=2000, confidence=0.99)
    # Half-widths of a normal interval: 0.674 and 2.576 errors
    assert (wide.high - wide.low) / (narrow.high - narrow.low) == pytest.approx(2.576 / 0.674, rel=0.1)


def test_equal_seeds_give_equal_intervals_and_others_do_not():
    before, after = np.random.default_rng(3).normal(size=(2, 30))
    first = paired_difference(before, after, seed=5, resamples=500)
    assert first == paired_difference(before, after, seed=5, resamples=500)
    assert first.low != paired_difference(before, after, seed=6, resamples=500).low


def test_swapping_before_and_after_turns_the_interval_round():
    before, after = np.random.default_rng(4).normal(size=(2, 30))
    there, back = paired_difference(before, after), paired_difference(after, before)
    assert there.difference == pytest.approx(-back.difference)
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low))


def test_the_bootstrap_of_many_problems_fits_in_fifty_megabytes():
    # All indices and values at once would be 1000 * 5000 * 12 bytes = 60 MB.
    before, after = np.random.default_rng(5).normal(size=(2, 5000))
    tracemalloc.start()
    paired_difference(before, after, resamples=1000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50e6


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ([1.0, 2.0], [1.0], "one length"),
        ([[1.0, 2.0]], [[1.0, 2.0]], "one length"),
        ([1.0], [2.0], "at least 2"),
        ([], [], "at least 2"),
        ([1.0, np.nan], [1.0, 2.0], "1 of 2 problems"),
        ([1.0, 2.0, 3.0], [np.inf, np.nan, 3.0], "2 of 3 problems"),
    ],
)
def test_measurements_that_do_not_pair_are_refused(before, after, message):
    with pytest.raises(DataError, match=message):
        paired_difference(before, after)


# block_mean_slope


def test_block_mean_slope_of_hand_computed_blocks():
    # Blocks (0, 0), (1, 1), (5, 5) at steps 0.5, 2.5, 4.5: means 0, 1, 5 around 2, steps -2, 0, 2 around 2.5
    # slope = (-2 * -2 + 0 * -1 + 2 * 3) / (4 + 0 + 4) = 10 / 8 = 1.25
    # residuals 0.5, -1, 0.5: squares sum to 1.5; error = sqrt(1.5 / 1 / 8) = 0.4330127
    # t(0.975, 1 degree) = 12.7062047, times the error = 5.5019481
    slope = block_mean_slope([0, 0, 1, 1, 5, 5], blocks=3)
    assert slope is not None
    assert slope.per_step == pytest.approx(1.25)
    assert slope.low == pytest.approx(1.25 - 5.5019481, rel=1e-6)
    assert slope.high == pytest.approx(1.25 + 5.5019481, rel=1e-6)


@pytest.mark.parametrize("steps", [3, 7, 10, 99, 1000])
def test_a_straight_line_gives_its_own_slope(steps):
    slope = block_mean_slope(3.0 - 0.5 * np.arange(steps))
    assert slope is not None
    assert (slope.low, slope.per_step, slope.high) == pytest.approx((-0.5, -0.5, -0.5))


def test_a_constant_has_no_slope():
    slope = block_mean_slope(np.full(50, 0.1))
    assert slope is not None
    assert (slope.low, slope.per_step, slope.high) == pytest.approx((0.0, 0.0, 0.0), abs=1e-15)


def test_missing_steps_keep_their_place_on_the_line():
    line = 2.0 * np.arange(40.0)
    line[[0, 3, 4, 5, 6, 7, 8, 9, 20, 39]] = np.nan
    slope = block_mean_slope(line, blocks=5)
    assert slope is not None
    assert slope.per_step == pytest.approx(2.0)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [1.0, np.nan, 2.0, np.inf]])
def test_fewer_than_three_blocks_have_no_judgeable_slope(values):
    assert block_mean_slope(values) is None
    assert block_mean_slope(np.arange(100.0), blocks=2) is None


def test_the_slope_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(200):
        slope = block_mean_slope(0.01 * np.arange(200) + rng.normal(size=200))
        hits += slope.low <= 0.01 <= slope.high
    assert 180 <= hits <= 198


def test_slow_noise_without_a_trend_rarely_passes_for_one():
    # Each step keeps 0.8 of the one before; blocks of 100 are much longer than that memory of some 5 steps.
    rng = np.random.default_rng(1)
    false_alarms = 0
    for _ in range(100):
        noise = rng.normal(size=1000)
        for t in range(1, 1000):
            noise[t] += 0.8 * noise[t - 1]
        slope = block_mean_slope(noise)
        false_alarms += not slope.low <= 0.0 <= slope.high
    assert false_alarms <= 12


# sign_flip_p_value


def test_sign_flips_of_hand_computed_differences():
    # Sums of +-1 +-2 +-3: 6, 4, 2, 0, 0, -2, -4, -6; as far out as 1 + 2 + 3 are two of eight, as 3 + 2 - 1 four.
    assert sign_flip_p_value([1.0, 2.0, 3.0]) == 2 / 8
    assert sign_flip_p_value([-1.0, 2.0, 3.0]) == 4 / 8


def test_problems_without_a_difference_have_no_say():
    assert sign_flip_p_value([0.0, 1.0, 0.0, 2.0, 3.0, 0.0]) == 2 / 8
    assert sign_flip_p_value([0.0, 0.0]) == 1.0


def test_drawn_signs_come_near_all_signs():
    differences = np.random.default_rng(0).normal(0.4, 1.0, 20)
    signs = 2.0 * ((np.arange(2**20)[:, None] >> np.arange(20)) & 1) - 1.0
    exact = (np.abs(signs @ differences) >= abs(differences.sum()) - 1e-9).mean()
    assert sign_flip_p_value(differences) == pytest.approx(exact, abs=0.015)


def test_a_drawn_p_value_is_never_0():
    assert sign_flip_p_value(np.ones(100), resamples=999) == 1 / 1000


def test_the_sign_does_not_matter_to_the_p_value():
    differences = np.random.default_rng(1).normal(0.2, 1.0, 50)
    assert sign_flip_p_value(differences) == sign_flip_p_value(-differences)


# mcnemar_exact


@pytest.mark.parametrize(
    ("gained", "lost", "p"),
    [
        (0, 0, 1.0),
        (1, 1, 1.0),  # 2 * (1 + 2) / 4, more than 1
        (5, 0, 2 / 32),
        (6, 0, 2 / 64),
        (8, 1, 2 * (1 + 9) / 512),
        (2, 10, 2 * (1 + 12 + 66) / 4096),
    ],
)
def test_mcnemar_counts_coin_throws(gained, lost, p):
    assert mcnemar_exact(gained, lost) == pytest.approx(p)
    assert mcnemar_exact(lost, gained) == pytest.approx(p)


def test_sign_flips_of_passes_are_mcnemar():
    assert sign_flip_p_value([1.0] * 8 + [-1.0]) == pytest.approx(mcnemar_exact(8, 1))


# smallest_detectable


def test_the_smallest_difference_of_many_problems_is_2_8_errors():
    assert smallest_detectable(0.01, 100_000) == pytest.approx(0.01 * (1.959964 + 0.841621), rel=1e-4)


def test_the_smallest_difference_of_few_problems_uses_t():
    # t(0.975, 9 degrees) = 2.262157, t(0.8, 9) = 0.883404
    assert smallest_detectable(1.0, 10) == pytest.approx(3.145561, rel=1e-6)


# the intervals of small sets


@pytest.mark.parametrize("n", [6, 10, 20])
def test_the_interval_of_few_problems_covers_the_truth_too(n):
    rng = np.random.default_rng(n)
    hits = 0
    for seed in range(400):
        result = paired_difference(np.zeros(n), rng.normal(0.3, 1.0, n), seed=seed, resamples=1000)
        hits += result.low <= 0.3 <= result.high
    assert 363 <= hits <= 393  # 380 expected, three deviations are 13; plain percentiles cover 340 to 370


def test_swapping_turns_the_interval_round_to_the_last_digit():
    before, after = np.random.default_rng(12).normal(size=(2, 31))
    there, back = paired_difference(before, after), paired_difference(after, before)
    assert (there.low, there.high) == (-back.high, -back.low)


def test_difference_of_means_by_hand():
    """1, 3 and 2, 4, 6: errors squared 1 and 4/3, degrees (7/3)^2 / (1 + 8/9) = 2.882, t = 3.2572."""
    difference, low, high = difference_of_means([1.0, 3.0, np.nan], [2.0, 4.0, 6.0])
    assert difference == 2.0
    assert (high - low) / 2 == pytest.approx(3.2572 * (7 / 3) ** 0.5, rel=1e-4)


def test_difference_of_means_needs_two_on_either_side_and_knows_constants():
    assert difference_of_means([1.0], [2.0, 3.0]) is None
    assert difference_of_means([1.0, np.inf], [2.0, 3.0]) is None
    assert difference_of_means([1.0, 1.0], [4.0, 4.0, 4.0]) == (3.0, 3.0, 3.0)


@pytest.mark.parametrize("probability", [0.5, 0.8, 0.9, 0.975, 0.9995])
def test_quantiles_of_students_t_are_scipys(probability):
    degrees = [*range(1, 31), 2.5, 31, 400]
    found = [student_quantile(freedom, probability) for freedom in degrees]
    assert found == pytest.approx(scipy.special.stdtrit(degrees, probability).tolist(), rel=1e-9, abs=1e-12)
