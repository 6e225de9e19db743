import numpy as np
import pytest

from steadyrl.doctor.statistics.jumps import jumps, jumps_at
from tests.doctor.checks.series_for_values import noise, rise, series


def stepped(n, at, size, seed=0, memory=0.0):
    return series("x", 1.0 + size * (np.arange(n) >= at) + noise(np.random.default_rng(seed), n, 0.1, memory))


@pytest.mark.parametrize("n", [40, 60, 400])
@pytest.mark.parametrize("size", [1.0, -1.0])
def test_a_level_that_changes_at_once_is_dated_to_its_step(n, size):
    found = jumps(stepped(n, 20, size))
    assert [jump.step for jump in found] == [20]
    assert found[0].change == pytest.approx(size, abs=0.15)


def test_the_same_change_over_twenty_steps_is_no_jump():
    ramp = np.clip((np.arange(60) - 20) / 20.0, 0.0, 1.0)
    assert jumps(series("x", 1.0 + ramp + noise(np.random.default_rng(0), 60, 0.02, 0.0))) == []


def test_a_quick_start_that_saturates_is_no_jump():
    for seed in range(50):
        values = rise(60, 0.4, 1.2, pace=12.0) + noise(np.random.default_rng(seed), 60, 0.03, 0.0)
        assert jumps(series("x", values)) == [], seed


def test_single_points_are_no_jump():
    values = stepped(60, 99, 0.0).values
    values[[20, 33]] = 50.0
    assert jumps(series("x", values)) == []


def test_two_jumps_are_both_told_the_clearer_one_first():
    values = stepped(90, 30, 1.0).values + 3.0 * (np.arange(90) >= 60)
    assert [jump.step for jump in jumps(series("x", values))] == [60, 30]


def test_a_factor_is_a_jump_of_the_logarithm():
    values = np.where(np.arange(60) < 25, 1.0, 8.0) * np.exp(noise(np.random.default_rng(1), 60, 0.1, 0.0))
    (jump,) = jumps(series("x", values), logarithm=True)
    assert jump.step == 25
    assert jump.change == pytest.approx(np.log(8.0), abs=0.15)


def test_noise_with_a_memory_has_hardly_any_jumps():
    alarms = [
        bool(jumps(series("x", noise(np.random.default_rng(seed), 200, 1.0, memory))))
        for memory in (0.0, 0.5, 0.8, 0.9)
        for seed in range(250)
    ]
    assert sum(alarms) <= 3  # measured: at most 1 in 1000 series


def test_a_jump_in_a_log_of_a_hundred_thousand_steps_and_more_is_found_where_it_is():
    (jump,) = jumps(stepped(250_000, 100_000, 2.0))
    assert abs(jump.step - 100_000) <= 5  # of means of five


def test_a_short_or_missing_series_jumps_nowhere():
    assert jumps(series("x", np.r_[np.zeros(12), np.ones(12)])) == []
    assert not jumps_at(None, 10, 2)
    assert jumps_at(stepped(60, 20, 1.0), 22, 2) and not jumps_at(stepped(60, 20, 1.0), 23, 2)
