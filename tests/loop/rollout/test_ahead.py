"""Rollouts drawn ahead: by which policy, the same after a resume, beside the update where the sampler is elsewhere."""

import json
import os
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from steadyrl.backends.toy import ToyBackend
from steadyrl.core.errors import CheckpointError, EngineError
from steadyrl.core.metrics import Clock, repeatable
from steadyrl.core.rundir import RunDir, read_lines
from steadyrl.core.types import Drawn, Group, Problem, Rollout
from steadyrl.loop.checkpoint import State
from steadyrl.loop.curriculum.memory import Memory
from steadyrl.loop.rollout.ahead import rollouts_of_step
from steadyrl.loop.rollout.collect import collect
from steadyrl.loop.train import Watch, train
from steadyrl.maths.batch import plain_drawn, recall_drawn

EVERY = ("run.rollouts_every=1", "curriculum.name=learnability", "sampling.top_p=0.9")


def steady(run):
    """Metrics without what a clock or a resume changes."""
    return [repeatable(line) for line in run.metrics()]


def texts(run, step):
    return [line["completion"] for line in read_lines(run.rollouts_file(step))]


@pytest.mark.parametrize("ahead", [1, 4])
def test_a_step_trains_on_what_the_policy_of_so_many_steps_earlier_draws(toy, tmp_path, ahead):
    session, run, policies = toy(*EVERY[:1], f"rollout.ahead={ahead}", "run.steps=7"), RunDir(tmp_path / "run"), []
    backend = session.backend
    policies.append(dict(backend.parameters))
    train(session, run, watch=Watch(step=lambda line: policies.append(dict(backend.parameters))))
    fresh = toy("rollout.ahead=0")
    for step in range(7):
        fresh.backend.parameters = policies[max(0, step - ahead)]
        problems = [line["problem"] for line in read_lines(run.rollouts_file(step))][::2]
        by_id = {problem.id: problem for problem in fresh.problems}
        drawn = draw_again(fresh, [by_id[name] for name in problems], step)
        assert texts(run, step) == drawn
    assert [line["staleness"] for line in run.metrics()] == [4.0 * min(step, ahead) for step in range(7)]


def draw_again(session, problems, step):
    groups = collect(session.backend, problems, 2, session.sampling, (0, step))
    return [rollout.text for group in groups for rollout in group.rollouts]


def test_without_rollouts_ahead_nothing_waits_and_no_staleness_is_measured(toy, tmp_path):
    run = RunDir(tmp_path / "run")
    train(toy(), run)
    assert json.loads((run.checkpoint_folder(6) / "state.json").read_text())["in_flight"] == []
    assert all("staleness" not in line for line in run.metrics())


def test_stale_rollouts_are_corrected_from_the_step_on_that_measures_them(toy, tmp_path):
    run = RunDir(tmp_path / "run")
    train(toy("rollout.ahead=2"), run)
    lines = run.metrics()
    assert "correction/weight" not in lines[0] and lines[0]["sampler_gap"] < 1e-6
    assert all(line["sampler_gap"] > 1e-3 and "correction/weight" in line for line in lines[1:])
    assert all(0 < line["importance/ess_seq"] < 1 for line in lines[1:])
    # The mean -log p of tokens that another policy drew does not estimate the entropy.
    assert ["entropy_sampled" in line for line in lines] == [True] + [False] * 5


def test_a_stopped_and_resumed_run_equals_an_unbroken_one(toy, whole_and_broken):
    whole, broken = whole_and_broken(lambda: toy(*EVERY, "rollout.ahead=2"))
    assert [line["attempt"] for line in broken.metrics()] == [0, 0, 0, 1, 1, 1]
    assert steady(broken) == steady(whole)
    assert all(texts(broken, step) == texts(whole, step) for step in range(6))
    assert len({line["reward/mean"] for line in whole.metrics()}) > 2


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_a_torch_run_with_rollouts_ahead_resumes_on_the_same_ones(toy, tiny_models, whole_and_broken):
    torch = ("backend.name=torch", "backend.device=cpu", "backend.threads=1", f"model.path={tiny_models['llama']}")
    more = ("run.steps=4", "rollout.ahead=2", "update.learning_rate=2e-3", "update.correction=icepop,geometric")
    whole, broken = whole_and_broken(lambda: toy(*torch, *more), after=2)
    assert steady(broken) == steady(whole)
    assert all(line["correction/masked"] > 0 for line in whole.metrics()[1:])


def test_a_step_that_fails_leaves_its_rollouts_in_flight(toy):
    state, backend = State(step=5, updates=20), ToyBackend()

    def draw(place, clock):
        return [Group(Problem(str(place.step), ""), ())], Memory(), {}

    with pytest.raises(RuntimeError), rollouts_of_step(state, 2, draw, backend, Clock()) as due:
        assert due.groups[0].problem.id == "5"
        raise RuntimeError
    assert [drawn.groups[0].problem.id for drawn in state.in_flight] == ["5", "6"]
    assert state.problems_drawn == 2
    with rollouts_of_step(state, 2, draw, backend, Clock()) as due:
        assert due.groups[0].problem.id == "5"
    assert [drawn.groups[0].problem.id for drawn in state.in_flight] == ["6", "7"]


# in a checkpoint


def drawn_example():
    rollout = Rollout(
        problem_id="é",
        prompt_ids=np.array([1, 2], np.int32),
        completion_ids=np.array([3, 2**31 - 1, 5], np.int32),
        completion_mask=np.array([True, False, True]),
        sampling_logprobs=np.array([-0.1, np.nan, -1e-30], np.float32),
        text="a\nb",
        stop_reason="length",
        policy_version=3,
        kept_ids=(np.array([3, 4], np.int32), np.array([], np.int32), np.array([5], np.int32)),
        reward=1 / 3,
        parts={"x": 0.1},
        turns=("a", "b"),
        seen=("x", "y", "z"),
        outcome={"won": True},
        observations=2,
    )
    unscored = replace(rollout, reward=None, unscored="broken", kept_ids=None, turns=(), trains=False)
    problem = Problem("é", "ask", {"n": [1, 2]}, ({"role": "user", "content": "hi"},))
    return Drawn(7, (Group(problem, (rollout, unscored), "why"),), {"curriculum/entropy": 0.5})


def same(a, b):
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if isinstance(a, tuple) and a and isinstance(a[0], np.ndarray):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def test_rollouts_come_back_from_a_checkpoint_as_they_were():
    drawn = drawn_example()
    back = recall_drawn(json.loads(json.dumps(plain_drawn(drawn))))
    assert (back.version, back.numbers) == (drawn.version, drawn.numbers)
    assert (back.groups[0].problem, back.groups[0].why) == (drawn.groups[0].problem, "why")
    for one, other in zip(drawn.groups[0].rollouts, back.groups[0].rollouts, strict=True):
        assert [name for name in vars(one) if not same(getattr(one, name), getattr(other, name))] == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda rollout: rollout.pop("text"), "text"),
        (lambda rollout: rollout.update(completion_ids="!"), "base64|[Oo]nly"),
        (lambda rollout: rollout.update(completion_mask="AQ=="), "1, 6"),
        (lambda rollout: rollout.update(kept_lengths=None, kept=3), "TypeError"),
        (lambda rollout: rollout.update(kept_lengths="many"), "cannot be read"),
    ],
)
def test_damaged_rollouts_in_flight_are_refused_when_the_checkpoint_is_read(toy, tmp_path, change, told):
    run = RunDir(tmp_path / "run")
    train(toy(*EVERY, "rollout.ahead=1", "run.steps=2"), run)
    file = run.checkpoint_folder(2) / "state.json"
    state = json.loads(file.read_text())
    change(state["in_flight"][0]["groups"][0]["rollouts"][0])
    file.write_text(json.dumps(state))
    with pytest.raises(CheckpointError, match=rf"state\.json: in_flight(?s:.)*({told})"):
        train(toy(*EVERY, "rollout.ahead=1", "run.steps=4"), run)


# beside the update


class Elsewhere(ToyBackend):
    """A toy whose sampler keeps the policy that it was given, and waits with every draw until the update has begun."""

    updating = threading.Event()
    beside, fails = 0, ()

    @contextmanager
    def sampler_apart(self):
        self._given = dict(self.parameters)
        Elsewhere.updating.clear()
        yield True

    def generate(self, prompts, sampling, seeds):
        if threading.current_thread() is threading.main_thread():
            return super().generate(prompts, sampling, seeds)
        assert Elsewhere.updating.wait(10), "the update waits for the sampler"
        Elsewhere.beside += 1
        if Elsewhere.beside in Elsewhere.fails:
            raise EngineError("the server is gone")
        sampler = ToyBackend()
        sampler.parameters = self._given
        return sampler.generate(prompts, sampling, seeds)

    def step(self, *args):
        found = super().step(*args)
        Elsewhere.updating.set()
        return found


@pytest.fixture
def elsewhere(monkeypatch):
    monkeypatch.setattr(Elsewhere, "beside", 0)
    monkeypatch.setattr(Elsewhere, "fails", ())
    return f"backend.name={__name__}:Elsewhere"


def test_a_sampler_elsewhere_draws_beside_the_update_and_changes_no_result(toy, tmp_path, elsewhere):
    here, there = RunDir(tmp_path / "here"), RunDir(tmp_path / "there")
    train(toy(*EVERY, "rollout.ahead=2"), here)
    train(toy(*EVERY, "rollout.ahead=2", elsewhere), there)
    assert Elsewhere.beside == 6
    assert steady(there) == steady(here)


def test_what_a_failing_sampler_did_not_draw_is_drawn_by_the_next_step(toy, tmp_path, elsewhere, caplog, monkeypatch):
    monkeypatch.setattr(Elsewhere, "fails", (2,))
    run = RunDir(tmp_path / "run")
    assert train(toy(*EVERY, "rollout.ahead=1", elsewhere), run) == "finished"
    assert "the rollouts of step 2 were not drawn beside the update: the server is gone" in caplog.text
    assert [line["staleness"] for line in run.metrics()] == [0, 4, 0, 4, 4, 4]


def test_a_sampler_that_stays_away_ends_the_run_with_a_checkpoint_before_any_further_update(
    toy, tmp_path, elsewhere, monkeypatch
):
    run = RunDir(tmp_path / "run")
    session = toy(*EVERY, "rollout.ahead=1", elsewhere)
    monkeypatch.setattr(Elsewhere, "fails", (2,))

    def gone(*args):
        raise EngineError("the server is gone")

    def leave(line):
        if line["step"] == 1:
            session.backend.generate = gone

    with pytest.raises(EngineError, match="the server is gone"):
        train(session, run, watch=Watch(step=leave))
    assert run.checkpoints() == [2]
    monkeypatch.setattr(Elsewhere, "fails", ())
    assert train(toy(*EVERY, "rollout.ahead=1", elsewhere), run, 1) == "finished"
    assert [line["step"] for line in run.metrics()] == list(range(6))


def test_a_reward_that_hangs_beside_the_update_does_not_hold_an_interrupt(toy, tmp_path, elsewhere, monkeypatch):
    """The step whose rollouts it was to score is not lost: its updates are made again by the resume."""
    gone = threading.Event()
    whole, run = RunDir(tmp_path / "whole"), RunDir(tmp_path / "run")
    train(toy(*EVERY, "rollout.ahead=1"), whole)
    session = toy(*EVERY, "rollout.ahead=1", elsewhere)
    (term,) = session.terms

    def hangs(pairs):
        if threading.current_thread() is not threading.main_thread() and pairs[0][1].policy_version >= 8:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            gone.wait(60)
        return term.reward(pairs)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    began = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            train(replace(session, heldout=(), terms=[replace(term, reward=hangs)]), run)
    finally:
        signal.signal(signal.SIGINT, before)
        gone.set()
    assert time.monotonic() - began < 30
    assert run.checkpoints() == [2]
    assert train(toy(*EVERY, "rollout.ahead=1", elsewhere), run, 1) == "finished"
    assert steady(run) == steady(whole)
