"""Episodes in the preflight and in the loop: limits in tokens, worlds that are broken, and rollouts without a turn."""

from dataclasses import replace

import numpy as np
import pytest

from steadyrl.core.errors import DataError
from steadyrl.core.rundir import RunDir
from steadyrl.loop.preflight.run import preflight
from steadyrl.loop.train import train

NO_ROOM = r"rollout\.max_tokens = 12 leaves no room.* take 20 to 51 tokens.* = 3; set rollout\.max_tokens to 54 or more"
NOBODY = r"none of \d+ rollouts could be scored; the first reason: nobody is there"


@pytest.fixture
def talking(toy):
    """Return a function that opens a session of episodes; a toy token is a character."""

    def open_talking(*overrides, words="[2, 4, 6, 8]"):
        settings = ("task.name=talk_task:TalkTask", f"task.args={{words={words}}}", "sampling.max_new_tokens=3")
        return toy(*settings, "run.steps=2", "algorithm.name=grpo", *overrides, reward="said_a")

    return open_talking


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_limit_in_which_no_turn_fits_is_said_before_anything_is_trained(talking, tmp_path, algorithm):
    session = talking("rollout.max_tokens=12", f"algorithm.name={algorithm}")
    with pytest.raises(DataError, match=NO_ROOM):
        preflight(session)
    with pytest.raises(DataError, match=NO_ROOM):
        train(replace(session, heldout=[]), RunDir(tmp_path / "run"))


def test_worlds_that_are_all_broken_are_named_with_the_first_reason(talking, tmp_path):
    session = talking(words="[0]")
    with pytest.raises(DataError, match=NOBODY):
        preflight(session)
    with pytest.raises(DataError, match=NOBODY):
        train(replace(session, heldout=[]), RunDir(tmp_path / "run"))


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
@pytest.mark.parametrize("words", ["[2, 40]", "[2, 0, 0, 0]"])
def test_where_only_some_rollouts_hold_a_turn_these_are_trained_on(talking, tmp_path, algorithm, words):
    session = talking("rollout.max_tokens=100", f"algorithm.name={algorithm}", "update.minibatches=4", words=words)
    verdicts = {verdict.check: verdict for verdict in preflight(session)}
    assert verdicts["continuation"].state == "ok"
    assert verdicts["sampler_parity"].state == "ok"
    run = RunDir(tmp_path / "run")
    assert train(replace(session, heldout=[]), run) == "finished"
    lines = run.metrics()
    assert len(lines) == 2
    assert all(np.isfinite(line["grad_norm"]) and 0 < line["completion/empty"] < 1 for line in lines)


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
@pytest.mark.parametrize("turns", ["together", "ready"])
def test_episodes_train_with_credit_by_turn_in_either_order_of_their_turns(talking, tmp_path, algorithm, turns):
    """The toy backend's numbers do not depend on which rows it samples together."""
    settings = (f"algorithm.name={algorithm}", "algorithm.args={credit='turn', gamma=0.9}", "run.preflight=off")
    run, other = RunDir(tmp_path / "run"), RunDir(tmp_path / "other")
    assert train(talking(*settings, f"rollout.turns={turns}"), run) == "finished"
    assert train(talking(*settings), other) == "finished"
    for line, expected in zip(run.metrics(), other.metrics(), strict=True):
        assert np.isfinite(line["grad_norm"])
        for name in ("reward/mean", "grad_norm", "completion/length"):
            assert line[name] == expected[name]


def test_a_run_with_cut_observations_resumes_as_the_unbroken_one(talking, whole_and_broken):
    settings = ("rollout.observation_tokens=20", "run.steps=6")
    whole, broken = whole_and_broken(lambda: talking(*settings))
    for name in ("reward/mean", "grad_norm", "observation/cut"):
        assert [line[name] for line in broken.metrics()] == [line[name] for line in whole.metrics()]
    # Observations take 14, 24, 34 and 44 tokens: a quarter fits. Two steps are a pass over all problems.
    cut = [line["observation/cut"] for line in whole.metrics()]
    assert [np.mean(cut[i : i + 2]) for i in (0, 2, 4)] == pytest.approx([0.75] * 3)
    assert all(line["sampler_gap"] < 1e-5 for line in whole.metrics())
