"""How a rate and a coefficient move: towards what is wanted, within bounds."""

import math

import numpy as np
import pytest

from steadyrl.loop.autopilot.band import (
    Band,
    clearly_rising,
    coefficient_after,
    hold_factor,
    scale_after,
    search_factor,
)

BAND = Band(0.01, 0.16)  # middle 0.04


def test_the_search_leaves_a_rate_inside_the_band_alone():
    assert [search_factor(kl, BAND) for kl in (0.01, 0.04, 0.16)] == [1.0] * 3


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
    assert (search_factor(kl, BAND) if searching else hold_factor(kl, BAND, 0.04)) == pytest.approx(factor)


def test_where_the_kl_follows_the_square_of_the_rate_one_factor_is_enough():
    kl = 2e-3
    assert kl * search_factor(kl, BAND) ** 2 == pytest.approx(0.04)


@pytest.mark.parametrize(("kl", "factor"), [
    (0.04, 1.0),  # at the aim
    (0.035, (0.04 / 0.035) ** 0.25),  # slowly towards it
    (0.16, 1 / 1.2),  # a fifth a step at most
    (0.01, 1.2),
])  # fmt: skip
def test_inside_the_band_the_rate_settles_slowly(kl, factor):
    assert hold_factor(kl, BAND, 0.04) == pytest.approx(factor)


def test_without_an_aim_the_rate_stays_inside_the_band():
    assert [hold_factor(kl, BAND) for kl in (0.01, 0.04, 0.16)] == [1.0] * 3


def test_settling_ends_at_the_aim_where_the_kl_follows_the_square_of_the_rate():
    rate = 1.0
    for _ in range(60):
        rate *= hold_factor(0.15 * rate**2, BAND, 0.02)
    assert 0.15 * rate**2 == pytest.approx(0.02, rel=1e-3)


def test_a_reward_that_rises_is_worth_longer_steps_and_a_schedule_shortens_both():
    assert BAND.aim(rising=False) == pytest.approx(0.04)
    assert BAND.aim(rising=True) == pytest.approx(0.08)  # 0.01 to 0.16: doubled three times of four
    assert BAND.at_rate_share(0.25, 1.0).aim(rising=True) == pytest.approx(0.01)


def test_only_a_rise_that_stands_out_from_the_noise_is_one():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(2000, 16))
    slow, steep = 0.02 * np.arange(16), 0.5 * np.arange(16)  # of a standard deviation per step

    def share(lines):
        return np.mean([clearly_rising(list(line)) for line in lines])

    assert share(noise) < 0.003
    assert share(noise + slow) < 0.02
    assert share(noise + steep) > 0.99
    assert share(noise - steep) == 0.0
    assert [clearly_rising(list(steep[:count])) for count in (7, 8)] == [None, True]


def test_a_quarter_of_the_rate_has_an_eighth_of_the_band_and_a_multiplier_its_square():
    assert BAND.at_rate_share(0.25, 1.0) == Band(0.00125, 0.02)
    assert BAND.at_rate_share(1.0, 0.5) == Band(0.0025, 0.04)


def test_the_scale_stays_within_a_million_and_three_times_what_was_found():
    assert scale_after(5e5, 10.0, None) == 1e6
    assert scale_after(5e-6, 0.1, None) == 1e-6
    assert scale_after(25.0, 1.3, 10.0) == 30.0
    assert scale_after(25.0, 0.5, 10.0) == 12.5


def test_while_the_reward_rises_the_scale_may_go_to_ten_times_and_comes_down_by_its_factors():
    assert scale_after(25.0, 1.3, 10.0, rising=True) == 32.5
    assert scale_after(99.0, 1.3, 10.0, rising=True) == 100.0
    assert scale_after(99.0, 1.3, 10.0) == 99.0
    assert scale_after(99.0, 0.9, 10.0) == pytest.approx(89.1)


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
