import time

import numpy as np
import pytest

from steadyrl.doctor.check import Check
from steadyrl.doctor.checks import (
    ending,
    gradient,
    hacking,
    jump,
    kl_penalty,
    length,
    non_finite,
    reward,
    reward_scale,
    signal,
    values,
)
from steadyrl.doctor.series import Run
from tests.doctor.checks.series_for_values import healthy, make_run, noise

MODULES = (
    gradient,
    hacking,
    jump,
    kl_penalty,
    length,
    non_finite,
    reward,
    reward_scale,
    signal,
    ending,
    values,
)
CHECKS = {name: c for module in MODULES for name, c in vars(module).items() if isinstance(c, Check)}
WITHOUT_NEEDS = {"grad_norm", "non_finite"}


def alarms(run):
    """Return everything above info that the checks say of a run."""
    results = [(name, result) for name, check in CHECKS.items() for result in check(run)]
    return [(name, r) for name, r in results if r.harms]


@pytest.mark.halved
@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
@pytest.mark.parametrize(
    "n", [30, pytest.param(60, marks=pytest.mark.weekly), 200, pytest.param(600, marks=pytest.mark.weekly)]
)
def test_healthy_runs_of_many_seeds_raise_no_alarm(n, algorithm):
    found = [(seed, *alarm) for seed in range(50) for alarm in alarms(healthy(seed, n, algorithm=algorithm))]
    assert found == []


def test_a_run_that_only_wanders_is_called_flat_or_unclear_at_most():
    for seed in range(50):
        rng = np.random.default_rng(seed)
        run = healthy(seed, 300, reward=0.5 + noise(rng, 300, 0.05), heldout__retrieval=0.4 + noise(rng, 300, 0.05))
        assert {name for name, _ in alarms(run)} <= {"reward_flat"}, seed


def test_an_empty_log_is_unclear_and_never_healthy():
    silent = {name for name, check in CHECKS.items() if check(Run("p", "unknown", "", {}))[0].state != "unknown"}
    assert silent == {"non_finite"}  # its answer is about numbers that are there
    for name, check in CHECKS.items():
        if name in silent:
            continue
        for result in check(Run("p", "unknown", "", {})):
            assert result.state == "unknown" and result.check == name
            assert result.would_tell


@pytest.mark.parametrize("name", CHECKS)
def test_a_log_of_three_steps_raises_no_alarm(name):
    run = healthy(0, 3)
    assert not any(r.harms for r in CHECKS[name](run))


@pytest.mark.parametrize("name", CHECKS)
def test_every_check_explains_itself_to_a_newcomer(name):
    check = CHECKS[name]
    assert check.title and check.symptom and check.healthy and check.source and check.causes
    assert all(cause.sign and cause.remedy for cause in check.causes)


def test_findings_and_unclears_carry_the_name_of_their_check():
    for name, check in CHECKS.items():
        assert {r.check for r in check(healthy(1))} <= {name}


@pytest.mark.weekly
def test_a_million_steps_take_less_than_half_a_second_per_check():
    rng = np.random.default_rng(0)
    n = 1_000_000
    small = healthy(0, 1000)
    columns = {name: np.resize(s[0].values, n) * (1 + 0.01 * rng.random(n)) for name, s in small.series.items()}
    run = make_run(columns, settings=small.settings)
    for name, check in CHECKS.items():
        check(run)  # the first call also pays for fresh memory
        start = time.process_time()
        check(run)
        assert time.process_time() - start < 0.5, name  # about 0.1 on an idle machine
