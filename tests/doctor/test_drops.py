"""One change point: what was lost at once and stays lost, at any length."""

import numpy as np

from steadyrl.doctor.series import Series
from steadyrl.doctor.statistics.levels import drop


def series(values):
    return Series("reward", "", "", "reward", np.arange(len(values)), np.asarray(values, float))


def test_four_points_show_a_loss():
    found = drop(series([0.7, 0.06, 0.05, 0.055]))
    assert found is not None and (found.step, round(found.before, 3)) == (1, 0.7)
    assert abs(found.after - 0.055) < 1e-9


def test_one_bad_point_at_the_end_is_no_loss():
    assert drop(series([0.7] * 20 + [0.1])) is None


def test_a_rise_and_a_steady_decline_are_no_loss():
    assert drop(series(np.linspace(0.0, 1.0, 40))) is None
    assert drop(series(np.linspace(1.0, 0.0, 40))) is None


def test_stationary_noise_is_taken_for_a_loss_in_at_most_one_of_two_hundred_runs():
    rng = np.random.default_rng(0)
    found = 0
    for n in (4, 5, 6, 8, 12, 30, 200):
        found += sum(drop(series(rng.normal(size=n))) is not None for _ in range(300))
    assert found <= 10, found


def test_a_fall_within_seven_steps_of_120_is_found_where_it_is():
    length = np.concatenate([np.array([22.0, 21, 17, 10, 5, 2]), np.ones(114)])
    found = drop(series(length))
    assert found is not None and 2 <= found.step <= 6 and found.after < 1.2
