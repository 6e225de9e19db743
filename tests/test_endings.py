"""Whatever ends a run after its first step, a resume goes on behind the last whole step, as if nothing had happened."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from steadyrl.core.errors import AccessError, DataError, DivergedError, EngineError
from steadyrl.core.metrics import repeatable
from steadyrl.core.rundir import RunDir
from steadyrl.loop import checkpoint
from steadyrl.loop.train import Watch, train
from tests.file_limit import files_end_after

SETTINGS = (
    "run.steps=8", "run.checkpoint_every=100", "update.schedule=cosine", "algorithm.args.kl_control=adaptive",
    "rollout.prompts_per_step=2", "run.doctor_every=4", "run.rollouts_every=1",
    "run.token_details_every=0",
)  # fmt: skip
BROKEN = 5  # the step that fails; 5 are whole


def steady(run):
    """Metrics without what a clock or a resume changes."""
    return [repeatable(line) for line in run.metrics()]


@pytest.fixture(scope="module")
def trained_once():
    """Runs of this file by name; no test changes them."""
    return {}


@pytest.fixture
def unbroken(toy, tmp_path_factory, trained_once):
    if "unbroken" not in trained_once:
        run = RunDir(tmp_path_factory.mktemp("trained") / "unbroken")
        train(toy(*SETTINGS), run)
        trained_once["unbroken"] = run
    return trained_once["unbroken"]


def at_step(number, function, error, beside=lambda *args: None):
    """Return a function that raises once a run is at a step, and else does what another does."""
    calls = []

    def called(*args, **kwargs):
        calls.append(args)
        if len(calls) == number:
            beside(*args)
            raise error
        return function(*args, **kwargs)

    return called


def broken(toy, run, error, place, number=BROKEN + 1):
    """Train until an error at a step's ``number``-th call of something; return the error and what was noted."""
    session, notes = toy(*SETTINGS), []
    if place in ("prepare", "select", "adapt"):
        function = getattr(session.algorithm, place)
        session = replace(session, algorithm=replace(session.algorithm, **{place: at_step(number, function, error)}))
    elif place == "reward":
        (term,) = session.terms
        session = replace(session, terms=[replace(term, reward=at_step(number, term.reward, error))])
    else:
        setattr(session.backend, place, at_step(number, getattr(session.backend, place), error))
    with pytest.raises(type(error)):
        train(replace(session, heldout=()), run, watch=Watch(note=notes.append))
    return notes


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("reward", KeyboardInterrupt()),
        ("reward", DataError("no")),
        ("select", SystemExit(3)),
        ("prepare", ValueError("refused")),
        ("adapt", ValueError("refused")),  # behind all updates of the step
        ("generate", EngineError("gone")),
        ("score", MemoryError()),
    ],
)
def test_a_run_that_anything_ends_goes_on_behind_its_last_whole_step(toy, tmp_path, unbroken, place, error):
    run = RunDir(tmp_path / "broken")
    notes = broken(toy, run, error, place)
    assert run.checkpoints() == [BROKEN]
    assert notes == [f"the policy after {BROKEN} steps is saved; go on with: steadyrl train --resume {run.path}"]
    assert train(toy(*SETTINGS), run, 1) == "finished"
    assert steady(run) == steady(unbroken)


@pytest.mark.parametrize(
    ("error", "update"),
    [(MemoryError(), 1), (MemoryError(), 4), (DivergedError("not finite"), 2), (KeyboardInterrupt(), 2)],
)
def test_the_updates_of_a_step_that_fails_between_two_of_them_are_taken_back(toy, tmp_path, unbroken, error, update):
    run = RunDir(tmp_path / "broken")
    broken(toy, run, error, "step", 4 * BROKEN + update)  # two epochs of two minibatches
    assert run.checkpoints() == [BROKEN]
    assert train(toy(*SETTINGS), run, 1) == "finished"
    assert steady(run) == steady(unbroken)


def test_where_updates_cannot_be_taken_back_no_half_made_step_is_saved(toy, tmp_path, unbroken, monkeypatch):
    monkeypatch.setattr("steadyrl.backends.toy.ToyBackend.remember", lambda self: None)
    run = RunDir(tmp_path / "broken")
    notes = broken(toy, run, MemoryError(), "step", 4 * BROKEN + 2)
    assert run.checkpoints() == [] and "between two updates" in notes[0]
    whole = RunDir(tmp_path / "whole")
    broken(toy, whole, MemoryError(), "step", 4 * BROKEN + 1)  # the first update had not begun to move the weights
    assert whole.checkpoints() == [BROKEN]
    for one in (run, whole):
        assert train(toy(*SETTINGS), one, 1) == "finished"
        assert steady(one) == steady(unbroken)


def test_a_run_that_ends_in_its_first_step_saves_nothing(toy, tmp_path):
    run = RunDir(tmp_path / "broken")
    assert broken(toy, run, MemoryError(), "reward", 1) == []
    assert not run.checkpoint_folder(0).parent.exists()


def test_a_failure_behind_the_updates_takes_the_whole_step_back(toy, tmp_path, unbroken):
    """What the doctor and the autopilot would have done behind it is then not lost."""
    run = RunDir(tmp_path / "broken")

    def fail(line):
        if line["step"] == BROKEN:
            raise OSError("the screen is gone")

    with pytest.raises(OSError, match="screen"):
        train(toy(*SETTINGS), run, watch=Watch(step=fail))
    assert run.checkpoints() == [BROKEN]
    assert train(toy(*SETTINGS), run, 1) == "finished"
    assert steady(run) == steady(unbroken)
    checks = [{line["check"] for line in one.findings()} for one in (run, unbroken)]
    assert checks[0] == checks[1] != set()


@pytest.mark.parametrize("size", [2000, 20_000])
def test_on_a_full_disk_nothing_is_half_written_and_no_step_is_lost_twice(toy, tmp_path, unbroken, size):
    run, session = RunDir(tmp_path / "broken"), toy(*SETTINGS)

    def fill(line):
        if line["step"] == BROKEN - 1:
            limit.enter_context(files_end_after(size))

    with ExitStack() as limit, pytest.raises(AccessError, match="File too large"):
        train(session, run, watch=Watch(step=fill))
    assert not list(tmp_path.rglob("*.part"))
    assert train(toy(*SETTINGS), run, 1) == "finished"
    assert steady(run) == steady(unbroken)


def test_a_failing_save_hides_nothing_of_what_ended_the_run(toy, tmp_path, monkeypatch):
    def full(*args):
        raise AccessError("no space")

    monkeypatch.setattr(checkpoint, "save", full)
    notes = broken(toy, RunDir(tmp_path / "broken"), DataError("the reward's own words"), "reward")
    assert notes == [f"the policy after {BROKEN} steps could not be saved: no space"]


SCRIPT = """
import json, sys
import steadyrl
from steadyrl.loop.train import Watch

def step(line):
    if line["step"] == 2:
        print("ready", flush=True)

try:
    steadyrl.run(json.loads(sys.argv[1]), watch=Watch(step=step))
except KeyboardInterrupt:
    sys.exit(77)
"""
HANGING = """
import asyncio, time

async def awaits(problem, rollout):
    await asyncio.sleep(0 if rollout.policy_version < 12 else 3600)
    return 1.0 * len(rollout.text)

async def awaits_all(completions, trainer_state, **kwargs):
    await asyncio.sleep(0 if trainer_state.global_step < 12 else 3600)
    return [float(len(text)) for text in completions]

def sleeps(problem, rollout):
    time.sleep(0 if rollout.policy_version < 12 else 3600)
    return 1.0 * len(rollout.text)

def sleeps_all(completions, trainer_state, **kwargs):
    time.sleep(0 if trainer_state.global_step < 12 else 3600)
    return [float(len(text)) for text in completions]
"""


def settings(folder, reward):
    """Return a run of the toy backend whose reward hangs in its fourth step."""
    return {
        "run": {"steps": 8, "folder": f"{folder}/runs", "preflight": "off", "doctor_every": 0},
        "backend": {"name": "toy"},
        "task": {"name": "prompts", "args": {"path": f"{folder}/prompts.jsonl"}},
        "rewards": {f"hanging:{reward}": 1.0},
        "sampling": {"max_new_tokens": 4},
        "evaluate": {"problems": 1},
        "rollout": {"prompts_per_step": 2, "samples_per_prompt": 2},
    }


def hear_signals():
    """Hear what a program in the background, or one started by nohup, would ignore."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("reward", "number"),
    [
        pytest.param("sleeps", "SIGTERM", marks=pytest.mark.weekly),
        pytest.param("sleeps_all", "SIGINT", marks=pytest.mark.weekly),
        ("awaits", "SIGINT"),
        pytest.param("awaits_all", "SIGHUP", marks=pytest.mark.weekly),
    ],
)
def test_a_hanging_reward_does_not_hold_a_signal_and_its_step_alone_is_lost(tmp_path, toy, reward, number):
    (tmp_path / "hanging.py").write_text(HANGING)
    path = f"{tmp_path}:{Path(__file__).parent.parent}"
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, json.dumps(settings(tmp_path, reward))],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        preexec_fn=hear_signals,
    )
    with process, ExitStack() as ends:
        ends.callback(process.kill)
        assert process.stdout.readline() == b"ready\n"
        time.sleep(0.5)
        process.send_signal(getattr(signal, number))
        assert process.wait(60) == 77
    (run,) = (RunDir(folder) for folder in (tmp_path / "runs").iterdir())
    assert (run.status, run.checkpoints(), len(run.metrics())) == ("interrupted", [3], 3)
