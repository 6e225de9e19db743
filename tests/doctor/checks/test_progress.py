import numpy as np

from steadyrl.doctor.checks.progress import stalled, throughput_decay
from tests.doctor.checks.series_for_values import finding, healthy, make_run, noise, rise, said, unclear

N = 200


def test_a_night_without_a_step_is_a_pause():
    clock = np.cumsum(np.full(N, 10.0))
    clock[120:] += 7200.0
    found = finding(stalled(healthy(n=N, time_logged=clock)))
    assert (found.cause, found.severity, found.since_step) == ("paused", "info", 119)
    assert "2 hours" in found.message


def test_evaluations_of_some_minutes_are_no_pause():
    clock = np.cumsum(np.where(np.arange(N) % 50 == 49, 400.0, 10.0))
    assert said(stalled(healthy(n=N, time_logged=clock))) == []


def test_a_run_that_ended_early_is_worth_knowing():
    found = finding(stalled(healthy(n=N, settings={"steps": 600})))
    assert (found.cause, found.since_step) == ("ended_early", 199)


def test_without_a_clock_and_a_plan_it_is_unclear():
    run = make_run({"reward": np.arange(30.0)})
    assert unclear(stalled(run)).would_tell == ("time_logged", "steps")


def test_tokens_that_take_ever_longer_are_slower():
    speed = 900 / rise(N, 1.0, 2.6, 2.0) + noise(np.random.default_rng(0), N, 10.0)
    found = finding(throughput_decay(healthy(n=N, tokens_per_second=speed)))
    assert (found.cause, found.severity) == ("slower", "warning")
    mild = 900 / rise(N, 1.0, 1.6, 4.0) + noise(np.random.default_rng(0), N, 10.0)
    assert finding(throughput_decay(healthy(n=N, tokens_per_second=mild))).severity == "info"


def test_steps_that_take_longer_for_longer_texts_are_not_slower():
    length = rise(N, 50.0, 200.0)
    run = healthy(n=N, length=length, time_step=length / 10, without=["tokens_per_second"])
    assert said(throughput_decay(run)) == []
    slow = healthy(n=N, length=np.full(N, 50.0), time_step=length / 10, without=["tokens_per_second"])
    assert finding(throughput_decay(slow)).cause == "slower"


def test_without_any_time_throughput_is_unclear():
    run = healthy(n=N, without=["tokens_per_second", "time_step"])
    assert unclear(throughput_decay(run)).would_tell == ("time_step|tokens_per_second",)
