"""How a rate and a coefficient move: towards what is wanted, within bounds."""

import math

import pytest

from steadyrl.control import Band, coefficient_after, rate_factor, scale_after

BAND = Band(0.01, 0.16)  # middle 0.04


def test_inside_the_band_the_rate_stays():
    assert [rate_factor(kl, BAND, searching) for kl in (0.01, 0.04, 0.16) for searching in (True, False)] == [1.0] * 6


@pytest.mark.parametrize(("kl", "searching", "factor"), [
    (0.0025, True, 4.0),  # a sixteenth of the middle: four times the rate
    (0.64, True, 0.25),
    (1e-12, True, 10.0),
    (0.0, True, 10.0),
    (1e6, True, 0.1),
    (math.inf, True, 0.1),
    (math.nan, True, 0.1),
    (0.0025, False, 1.3),
    (0.64, False, 0.5),
    (math.nan, False, 0.5),
])  # fmt: skip
def test_outside_the_factor_brings_the_kl_to_the_middle_within_bounds(kl, searching, factor):
    assert rate_factor(kl, BAND, searching) == pytest.approx(factor)


def test_where_the_kl_follows_the_square_of_the_rate_one_factor_is_enough():
    rate, kl = 3e-4, 2e-3
    factor = rate_factor(kl, BAND, searching=True)
    assert kl * (rate * factor / rate) ** 2 == pytest.approx(0.04)


def test_warm_up_and_schedule_lower_the_lower_end_only_and_ease_lowers_both():
    assert BAND.at(0.5, 1.0) == Band(0.0025, 0.16)
    assert BAND.at(1.0, 0.5) == Band(0.0025, 0.04)


def test_the_scale_stays_within_a_million_and_three_times_what_was_found():
    assert scale_after(5e5, 10.0, None) == 1e6
    assert scale_after(5e-6, 0.1, None) == 1e-6
    assert scale_after(25.0, 1.3, 10.0) == 30.0
    assert scale_after(25.0, 0.5, 10.0) == 12.5


def test_a_coefficient_doubles_within_four_steps_at_twice_its_target():
    coef = 0.1
    for _ in range(4):
        coef = coefficient_after(coef, 12.0, 6.0, 0.1)
    assert 0.19 < coef < 0.25


def test_a_coefficient_moves_a_quarter_a_step_and_from_a_tenth_to_a_hundredfold_in_all():
    assert coefficient_after(0.1, 1e9, 6.0, 0.1) == pytest.approx(0.125)
    assert coefficient_after(0.1, -3.0, 6.0, 0.1) == pytest.approx(0.08)
    assert coefficient_after(9.9, 1e9, 6.0, 0.1) == pytest.approx(10.0)
    assert coefficient_after(0.0101, 0.0, 6.0, 0.1) == pytest.approx(0.01)


def test_a_coefficient_at_its_target_or_without_a_number_stays():
    assert coefficient_after(0.1, 6.0, 6.0, 0.1) == pytest.approx(0.1)
    assert coefficient_after(0.1, math.nan, 6.0, 0.1) == 0.1
