"""Time, memory and disk of a run, from numbers whose outcome is known by hand."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from steadyrl.backends.settings import GradientSettings
from steadyrl.backends.torch import device_memory
from steadyrl.backends.torch.device_memory import Memory, memory_now
from steadyrl.core.counting.count import duration
from steadyrl.doctor.check import judged
from steadyrl.loop.preflight import forecast as module
from steadyrl.loop.preflight.forecast import COSTS, Measured, affine
from steadyrl.loop.preflight.trial import Timed, begin_trial
from steadyrl.loop.preflight.trial_updates import TrialUpdates

NOW = Memory(0, 1, "machine")


def told(trial, updates=TrialUpdates(()), before=NOW):  # noqa: B008  # frozen
    return {verdict.check: verdict for verdict in judged(COSTS, Measured(trial, updates, before, memory_now()))}


def test_a_cost_per_call_and_one_per_row_are_told_apart():
    """One second a call and a tenth a row: 10 rows take 2 s, 40 take 5 s; 100 rows in 2 calls take 12 s."""
    assert affine(Timed(10, 2.0), Timed(40, 5.0), rows=100, calls=2) == pytest.approx(12.0)


def test_a_call_that_took_longer_with_fewer_rows_costs_the_same_whatever_the_rows():
    assert affine(Timed(10, 6.0), Timed(40, 5.0), rows=100, calls=2) == pytest.approx(10.0)


def test_rows_never_cost_more_than_all_of_the_time():
    """10 rows in no time and 40 in 5 s: at most an eighth of a second a row, and no negative cost of the call."""
    assert affine(Timed(10, 0.0), Timed(40, 5.0), rows=80, calls=1) == pytest.approx(10.0)


def test_one_size_alone_is_scaled_by_rows():
    assert affine(Timed(8, 2.0), Timed(8, 2.0), rows=32, calls=1) == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.012, "12 ms"),
        (0.123, "0.12 s"),
        (9.0, "9 s"),
        (42.4, "42 s"),
        (200, "3 min 20 s"),
        (3599.9, "1 h 0 min"),
        (18180, "5 h 3 min"),
        (183600, "2 d 3 h"),
    ],
)
def test_durations_are_said_as_a_person_does(seconds, text):
    assert duration(seconds) == text


@pytest.fixture
def timed(toy):
    """Return a function that begins a trial and gives it the times of 16 rollouts."""

    def begin(*overrides):
        session = toy("run.steps=100", "update.epochs=2", "update.minibatches=4", *overrides)
        trial = replace(
            begin_trial(session),
            sampling=(Timed(4, 0.5), Timed(16, 1.1)),  # 0.3 s a call and 0.05 s a row
            reward=Timed(16, 0.16),
            scoring=Timed(16, 0.32),
        )
        return trial, TrialUpdates((), (Timed(4, 0.3), Timed(16, 0.9)), 10**6)  # 0.1 s a call and 0.05 s a row

    return begin


def bounded(trial, **limits):
    """Return the trial as of a backend that computes only so much at once; the toy has no such settings."""
    config = trial.session.config
    backend = config.backend.model_copy(update={"args": GradientSettings(**limits)})
    return replace(trial, session=replace(trial.session, config=config.model_copy(update={"backend": backend})))


def test_the_time_of_a_run_by_hand(timed):
    """A step of 32 rollouts: 0.3 + 1.6 sampling, 0.32 rewards, 0.64 scoring, 8 x 0.1 + 2 x 1.6 updates = 6.86 s.

    An evaluation of 4 problems, sampled and greedy: 2 x (0.3 + 0.2 + 0.04) = 1.08 s, before, after and 3 between.
    """
    verdict = told(*timed("rollout.prompts_per_step=16", "evaluate.every=25"))["time"]
    assert verdict.state == "ok"
    assert verdict.message.startswith(
        "about 11 min 31 s: 100 steps of 6.9 s (sampling 1.9 s, rewards 0.32 s, scoring 0.64 s, updates 4 s) and 5 "
        "evaluations of 1.1 s; "
    )
    assert verdict.message.endswith("measured on 16 rollouts; a step has 32")


def test_prompts_beyond_the_rows_of_one_generation_cost_further_calls(timed):
    """32 rollouts in 4 calls: 4 x 0.3 + 1.6 s."""
    trial, updates = timed("rollout.prompts_per_step=16")
    message = told(bounded(trial, generate_rows=8), updates)["time"].message
    assert "sampling 2.8 s" in message


def test_without_an_update_there_is_no_forecast_of_time_and_disk(timed):
    trial, _ = timed()
    found = told(trial)
    assert (found["time"].state, found["disk"].state) == ("unknown", "unknown")


def test_memory_grows_with_the_rollouts_but_for_the_moments(timed, monkeypatch):
    """16 of 64 rollouts added 3 GiB less the moments to 1 GiB: three times as much again."""
    trial, updates = timed("rollout.prompts_per_step=32")
    trial = bounded(trial)
    gib, parameters = 2**30, trial.session.backend.describe()["parameters"]

    def memory(total):
        peak = 4 * gib + 8 * parameters
        monkeypatch.setattr(device_memory, "peak_device_memory", lambda: (peak, total))
        return told(trial, updates, Memory(gib, total, "CUDA device"))["memory"]

    fits = memory(14 * gib)
    assert fits.state == "ok"
    assert "peak so far 4.00 GiB, at most 13.00 GiB in a full step; the CUDA device has 14.00 GiB" in fits.message
    tight = memory(12 * gib)
    assert (tight.state, tight.severity, tight.cause) == ("found", "warning", "memory")
    assert tight.overrides == ("backend.args.micro_batch_tokens=4096", "backend.args.generate_rows=128")


def test_a_folder_that_cannot_be_written_fails(timed, monkeypatch, tmp_path):
    trial, updates = timed(f"run.folder={tmp_path}/new/runs")
    monkeypatch.setattr(module.os, "access", lambda path, mode: path != tmp_path)
    verdict = told(trial, updates)["disk"]
    assert (verdict.state, verdict.cause) == ("found", "not_writable") and f"'{tmp_path}'" in verdict.message


def test_a_disk_without_room_for_the_checkpoints_fails(timed, monkeypatch):
    """Two are kept and a third is written before the oldest goes: 3 MB."""
    trial, updates = timed("run.checkpoint_every=10")
    for free, passed in ((3 * 10**6, True), (3 * 10**6 - 1, False)):
        monkeypatch.setattr(module.shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free))
        verdict = told(trial, updates)["disk"]
        assert (verdict.state, verdict.overrides) == (
            "ok" if passed else "found",
            () if passed else ("run.keep_checkpoints=1",),
        )


def test_the_best_checkpoint_needs_room_beside_the_newest(timed):
    message = told(*timed("run.checkpoint_every=10", "evaluate.every=10"))["disk"].message
    assert message.startswith("a checkpoint takes 1.0 MiB, 4 at a time 3.8 MiB")


def test_what_is_held_from_step_to_step_is_told(timed, monkeypatch):
    trial, updates = timed()
    described = trial.session.backend.describe() | {"memory": {"weights": 2**30, "optimizer": 3 * 2**30}}
    monkeypatch.setattr(trial.session.backend, "describe", lambda: described)
    assert "; from step to step it holds weights 1.00 GiB, optimizer 3.00 GiB" in told(trial, updates)["memory"].message
