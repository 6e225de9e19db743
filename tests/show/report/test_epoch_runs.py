from collections import Counter

import pytest

from steadyrl.core import config
from steadyrl.core.config import in_steps
from steadyrl.core.rundir import RunDir, read_lines
from steadyrl.loop.train import train


def settings(*overrides):
    return config.resolve({"rewards": {"length": 1.0}, "task": {"name": "search"}}, overrides)


@pytest.mark.parametrize(
    ("epochs", "problems", "per_step", "steps"),
    [(1, 64, 64, 1), (7, 400, 40, 70), (3, 10, 8, 4), (1, 5, 64, 1), (2, 5, 64, 1)],
    ids=["one step", "even", "the last step begins a pass", "fewer problems than a step", "two passes in a step"],
)
def test_steps_follow_from_epochs(epochs, problems, per_step, steps):
    found = in_steps(settings(f"run.epochs={epochs}", f"rollout.prompts_per_step={per_step}"), problems)
    assert found.run.steps == steps
    assert in_steps(found, problems) == found


def test_without_epochs_steps_are_as_set():
    assert in_steps(settings("run.steps=12"), 1000).run.steps == 12


def draws(run):
    """How often each problem was drawn."""
    lines = [line for step in range(len(run.metrics())) for line in read_lines(run.rollouts_file(step))]
    return Counter(line["problem"] for line in lines)


def test_an_epoch_takes_every_training_problem_once(toy, tmp_path):
    run = RunDir(tmp_path / "run")
    session = toy("run.epochs=3", "run.rollouts_every=1", "rollout.samples_per_prompt=1", "rollout.prompts_per_step=4")
    problems = len(session.problems)
    assert problems % 4 == 0
    train(session, run)
    assert [line["data_epoch"] for line in run.metrics()] == [4 * (i + 1) / problems for i in range(3 * problems // 4)]
    assert draws(run) == {problem.id: 3 for problem in session.problems}


def test_a_run_by_epochs_resumes_where_it_was(toy, whole_and_broken):
    overrides = ("run.epochs=2", "run.rollouts_every=1", "rollout.prompts_per_step=3")
    whole, broken = whole_and_broken(lambda: toy(*overrides))
    for key in ("data_epoch", "reward/mean", "grad_norm"):
        assert [line[key] for line in broken.metrics()] == [line[key] for line in whole.metrics()]
    assert draws(broken) == draws(whole)
