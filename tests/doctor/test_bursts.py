import numpy as np

from steadyrl.doctor.statistics.signals import bursts
from tests.doctor.checks.series_for_values import noise, series


def level(n=200, seed=0):
    return np.exp(noise(np.random.default_rng(seed), n, 0.3))


def test_neighbouring_spikes_are_confirmed_and_a_single_one_is_not():
    values = level()
    values[100] = 500.0
    assert bursts(series("x", values), 5.0).tolist() == []
    values[102] = 500.0
    assert bursts(series("x", values), 5.0).tolist() == [100, 102]


def test_three_single_spikes_count_without_neighbours():
    values = level()
    values[[60, 100, 150]] = 500.0
    assert bursts(series("x", values), 5.0).tolist() == [60, 100, 150]


def test_spikes_below_the_factor_do_not_count():
    values = np.full(200, 1.0) * np.exp(noise(np.random.default_rng(0), 200, 0.01))
    values[[100, 101]] = 3.0
    assert bursts(series("x", values), 5.0).tolist() == []
    assert bursts(series("x", values), 2.0).tolist() == [100, 101]


def test_values_that_are_not_above_0_are_passed_over_and_indices_stay_those_of_the_series():
    values = level()
    values[::7] = 0.0
    values[[100, 101, 102]] = 500.0
    assert bursts(series("x", values), 5.0).tolist() == [100, 101, 102]


def test_the_first_thirty_points_are_not_judged():
    values = level()
    values[[24, 25, 26]] = 500.0
    assert bursts(series("x", values), 5.0).tolist() == []
    assert len(bursts(series("x", values[:29]), 5.0)) == 0


def test_noise_with_a_memory_and_heavy_tails_has_no_bursts():
    for seed in range(100):
        assert not len(bursts(series("x", np.exp(noise(np.random.default_rng(seed), 300, 0.5))), 5.0)), seed
