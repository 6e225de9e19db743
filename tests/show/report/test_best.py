"""The best checkpoint by held-out score, and early stopping: chosen, kept, said, and the same after a kill."""

import dataclasses
import json
import shutil

import pytest

from steadyrl.core import config
from steadyrl.core.errors import ConfigError, DataError, RunError
from steadyrl.core.rundir import RunDir
from steadyrl.loop import checkpoint, launch
from steadyrl.loop.checkpoint import Best, State
from steadyrl.loop.evaluate import best_message, follow_best, held_out_score, out_of_patience, require_metric
from steadyrl.loop.train import Watch, train

# Nothing is learned, so that every evaluation has the same score: the first one stays the best.
STILL = ("update.learning_rate=0", "evaluate.every=1", "run.keep_checkpoints=1")


def records(*metrics):
    """Return an evaluation with these metrics; None is an answer that could not be scored."""
    return [{"problem": str(i), "answers": {"sampled": {"metric": m}}} for i, m in enumerate(metrics)]


def test_the_score_is_the_mean_of_what_could_be_scored():
    found = held_out_score(records(1.0, None, 0.0, 0.5), 7, "sampled")
    assert (found.step, found.score, found.problems) == (7, 0.5, 3)
    assert found.low < 0.5 < found.high
    assert held_out_score(records(0.25), 3, "sampled") == Best(3, 0.25, None, None, 1)
    assert held_out_score(records(None, None), 3, "sampled") is None


def test_the_best_is_chosen_by_the_answers_that_will_be_used():
    lines = [{"answers": {"sampled": {"metric": 0.25}, "greedy": {"metric": 0.75}}}]
    state = State(step=5)
    assert [follow_best(state, lines, deploy).score for deploy in ("sampled", "greedy")] == [0.25, 0.75]
    assert state.best.score == 0.75


def test_a_metric_that_no_reward_gives_is_refused_before_training(toy, tmp_path):
    found = [{"answers": {"sampled": {"parts": {"length": 1.0}}, "greedy": {"parts": {"form": 1.0}}}}]
    for metric in ("", "length", "form"):
        require_metric(found, metric, ())
    with pytest.raises(DataError, match=r"no reward part is called 'nosuch'.*there are: form, length"):
        require_metric(found, "nosuch", ())
    require_metric([{"answers": {"sampled": {"parts": {}}}}], "nosuch", ())  # nothing was scored: that is another fault
    session = toy()
    session.task.metric = "nosuch"
    with pytest.raises(DataError, match="no reward part is called 'nosuch'"):
        train(session, RunDir(tmp_path / "run"))
    assert not RunDir(tmp_path / "run").metrics()


def test_only_a_better_score_replaces_the_best():
    state, seen = State(), []
    for step, score in enumerate([0.2, 0.5, 0.5, 0.4, 0.6], start=1):
        state.step = step
        follow_best(state, records(score, score), "sampled")
        seen.append((state.best.step, state.evaluations_since_best))
    assert seen == [(1, 0), (2, 0), (2, 1), (2, 2), (5, 0)]


def test_an_evaluation_without_a_score_says_nothing():
    state = State(step=4, best=Best(2, 0.5, None, None, 1), evaluations_since_best=1)
    assert follow_best(state, records(None), "sampled") is None
    assert (state.best.step, state.evaluations_since_best) == (2, 1)


def test_patience_counts_evaluations_in_a_row():
    state = State(evaluations_since_best=2)
    assert [out_of_patience(patience, state) for patience in (0, 1, 2, 3)] == [False, True, True, False]


def test_what_is_said_of_a_best_and_of_an_end():
    state = State(step=8)
    found = follow_best(state, records(0.0, 1.0), "sampled")
    assert best_message(state, found, 2).startswith("held-out score 0.500 [")
    state.step = 16
    assert best_message(state, follow_best(state, records(0.0), "sampled"), 2) == ""
    state.step = 24
    assert best_message(state, follow_best(state, records(0.0), "sampled"), 2) == (
        "stopping early after 24 steps: 2 evaluations in a row without a better score than 0.500 after 8 steps "
        "(evaluate.patience)"
    )


def test_the_best_checkpoint_stays_beside_the_newest(toy, tmp_path):
    run = RunDir(tmp_path)
    train(toy(*STILL, "run.checkpoint_every=2"), run)
    assert run.checkpoints() == [1, 6]
    assert checkpoint.read_state(run, 6).best.step == 1
    assert checkpoint.read_state(run, 6).evaluations_since_best == 5


def test_without_evaluations_no_checkpoint_is_the_best(toy, tmp_path):
    run = RunDir(tmp_path)
    train(toy("run.checkpoint_every=2", "run.keep_checkpoints=1"), run)
    assert run.checkpoints() == [6]
    assert checkpoint.read_state(run, 6).best is None


def test_the_best_of_every_checkpoint_that_stays_is_kept(toy, tmp_path):
    """A run that goes back to an earlier checkpoint finds the best of that time."""
    run, backend = RunDir(tmp_path), toy().backend
    first, second = Best(1, 0.2, None, None, 1), Best(4, 0.3, None, None, 1)
    for step, best in ((1, first), (2, first), (3, first), (4, second), (5, second)):
        checkpoint.save(run, backend, State(step=step, algorithm={"kl_coef": 0.1}, best=best), 2)
        if step == 4:
            assert run.checkpoints() == [1, 3, 4]
    assert run.checkpoints() == [4, 5]


def test_a_run_stops_early_and_says_so(toy, tmp_path):
    run, said = RunDir(tmp_path), []
    session = toy(*STILL, "evaluate.patience=2", "run.steps=50")
    assert train(session, run, watch=Watch(note=said.append)) == "finished"
    assert [line["step"] for line in run.metrics()] == [0, 1, 2]
    assert run.checkpoints() == [1, 3]
    assert [line.split(" after ")[1].partition(" step")[0] for line in said] == ["1", "3"]
    assert run.evaluation_file("after").read_text() == run.evaluation_file("000003").read_text()


def test_the_last_step_is_evaluated_once(toy, tmp_path):
    """Its answers are those of "after"; a step that is none of ``evaluate.every`` has an evaluation only as the last"""
    run, phases = RunDir(tmp_path), []
    train(toy("evaluate.every=4"), run, watch=Watch(phase=phases.append))
    assert [line["step"] for line in run.metrics() if "heldout/reward" in line] == [3, 5]
    assert len(phases) == 1 and "before" in phases[0]
    assert run.evaluation_file("after").read_text() == run.evaluation_file("000006").read_text()
    assert run.evaluation_file("after").read_text() != run.evaluation_file("000004").read_text()


@pytest.mark.parametrize("after", [1, 4, *(pytest.param(step, marks=pytest.mark.weekly) for step in (2, 5))])
def test_a_stopped_and_resumed_run_has_the_same_best_and_the_same_end(toy, tmp_path, after):
    """One run learns, the other stops early; each has the state of the unbroken run at its end."""
    for name, settings in (
        ("learns", ("evaluate.every=2", "run.keep_checkpoints=1")),
        ("stops", (*STILL, "evaluate.patience=4", "run.steps=20")),
    ):
        whole, broken, done = RunDir(tmp_path / f"{name}-whole"), RunDir(tmp_path / f"{name}-{after}"), []
        train(toy(*settings), whole)
        train(toy(*settings), broken, watch=Watch(step=done.append, stop=lambda done=done: len(done) == after))
        train(toy(*settings), broken, attempt=1)
        last = whole.checkpoints()[-1]
        assert broken.checkpoints()[-1] == last
        assert checkpoint.read_state(broken, last) == checkpoint.read_state(whole, last)
        assert checkpoint.read_state(whole, last).best.step in broken.checkpoints()
        assert broken.evaluation_file("after").read_text() == whole.evaluation_file("after").read_text()


def test_a_run_killed_after_its_early_end_makes_no_further_step(toy, tmp_path):
    """The process dies between the last checkpoint and the evaluation after training."""

    class Killed(Exception):
        pass

    def die(text):
        if "before" not in text:
            raise Killed

    run = RunDir(tmp_path)
    settings = (*STILL, "evaluate.patience=1", "run.steps=20")
    train(toy(*settings), run)
    after = run.evaluation_file("after").read_text()
    run.evaluation_file("after").unlink()
    run.evaluation_file("000002").unlink()
    with pytest.raises(Killed):
        train(toy(*settings), run, attempt=1, watch=Watch(phase=die))
    train(toy(*settings), run, attempt=2)
    assert [line["attempt"] for line in run.metrics()] == [0, 0]
    assert run.evaluation_file("after").read_text() == after


@pytest.fixture
def settings(toy):
    """Return the settings of a toy run as a mapping, so that the front door can start it."""
    return lambda *overrides: config.dump(toy("run.preflight=off", *overrides).config)


def test_run_json_says_the_best_and_the_early_end_and_a_resume_needs_more_patience(settings):
    run = launch.run(settings(*STILL, "evaluate.patience=2", "run.steps=20"))
    info, best = run.info(), checkpoint.read_state(run, 3).best
    assert info["status"] == "finished"
    assert info["best"] == json.loads(json.dumps(dataclasses.asdict(best)))
    assert info["stopped_early"] == {"step": 3, "patience": 2}
    with pytest.raises(RunError, match=r"stopped early after 3 of 20 steps, with evaluate.patience = 2; add a larger"):
        launch.run(resume=run)
    again = launch.run(overrides=["evaluate.patience=4"], resume=run)
    assert again.info()["stopped_early"] == {"step": 5, "patience": 4}
    whole = launch.run(overrides=["evaluate.patience=0", "run.steps=7"], resume=run)
    assert (whole.info()["stopped_early"], whole.checkpoints()) == (None, [1, 7])


def test_a_run_that_stopped_early_and_lost_its_checkpoints_begins_again(settings):
    run = launch.run(settings(*STILL, "evaluate.patience=2", "run.steps=20"))
    shutil.rmtree(run.path / "checkpoints")
    assert launch.run(resume=run).checkpoints() == [1, 3]
    assert [line["attempt"] for line in run.metrics()] == [1, 1, 1]


def test_a_run_without_evaluations_has_no_best(settings):
    info = launch.run(settings("run.steps=2")).info()
    assert (info["best"], info["stopped_early"]) == (None, None)


def test_patience_without_evaluations_is_refused():
    with pytest.raises(ConfigError, match=r"evaluate.patience: got 3; expected 0 while evaluate.every is 0"):
        config.resolve({"rewards": {"length": 1.0}}, ["evaluate.patience=3"])


def test_patience_without_held_out_problems_is_refused(toy, tmp_path, monkeypatch):
    (tmp_path / "train_only.py").write_text(
        "from steadyrl.loop.tasks.prompts import PromptsTask\n\n\n"
        "class Task(PromptsTask):\n"
        "    def problems(self, split):\n"
        "        return super().problems(split) if split == 'train' else ()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    alone = ("task.name=train_only:Task", "evaluate.every=1")
    assert train(toy(*alone), RunDir(tmp_path / "run")) == "finished"
    with pytest.raises(DataError, match=r"evaluate.patience is 2, and the task 'train_only:Task' has no held-out"):
        toy(*alone, "evaluate.patience=2")
