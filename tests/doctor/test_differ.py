"""Two runs: what is set differently, what parts first, and what is behind it."""

import numpy as np

from steadyrl.doctor.differ import differ, sentences
from tests.doctor.checks.series_for_values import healthy, noise, rise

N = 200


def test_two_seeds_of_one_config_do_not_part():
    parted = 0
    for seed in range(20):
        found = differ(healthy(seed, N, algorithm="grpo"), healthy(seed + 100, N, algorithm="grpo"))
        assert found.settings == ()
        parted += bool(found.parted)
    assert parted <= 2, parted


def test_a_learning_rate_is_named_by_meaning_and_by_key_with_the_quantity_that_it_moves():
    rng = np.random.default_rng(0)
    slow, fast = (0.01 * np.exp(noise(rng, N, 0.2)), 0.08 * np.exp(noise(rng, N, 0.2)))
    one = healthy(1, N, kl_old=slow, settings={"learning_rate": 1e-5})
    other = healthy(1, N, kl_old=fast, settings={"learning_rate": 1e-4})
    found = differ(one, other)
    assert [(s.name, s.values) for s in found.settings] == [("learning_rate", (1e-5, 1e-4))]
    assert found.settings[0].keys == ("update.learning_rate", "update.learning_rate")
    assert found.parted[0].quantity == "kl_old" and found.parted[0].step == 0
    assert found.cause.startswith("kl_old parts first") and "learning_rate moves it directly" in found.cause


def test_the_quantity_that_parts_first_leads_and_its_step_is_near_the_truth():
    entropy = np.full(N, 2.0) + noise(np.random.default_rng(3), N, 0.02)
    reward = rise(N, 0.4, 0.6) + noise(np.random.default_rng(4), N, 0.01)
    later = np.arange(N)
    one = healthy(1, N, entropy=entropy, reward=reward)
    other = healthy(1, N, entropy=entropy - 1.0 * (later >= 60), reward=reward - 0.3 * (later >= 120))
    found = differ(one, other)
    assert [part.quantity for part in found.parted] == ["entropy", "reward"]
    assert 55 <= found.parted[0].step <= 65 and 115 <= found.parted[1].step <= 125
    assert "no setting that is known of both differs" in found.cause
    assert sentences(found)[0] == f"likely: {found.cause}"


def test_a_run_does_not_part_from_itself():
    run = healthy(5, N)
    found = differ(run, run)
    assert found.parted == () and found.settings == ()
    assert "reward" in found.together


def test_a_coefficient_that_is_logged_and_not_equal_is_what_was_set():
    one, other = healthy(1, N, kl_coef=np.full(N, 0.02)), healthy(2, N, kl_coef=np.full(N, 0.0005))
    found = differ(one, other)
    assert (found.parted[0].quantity, found.parted[0].step) == ("kl_coef", 0)
    assert found.cause == "kl_coef parts first, from step 0 on: it is set differently, 0.02 and 0.0005"
