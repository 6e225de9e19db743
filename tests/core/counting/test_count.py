import threading

import pytest

from steadyrl.core import config
from steadyrl.core.counting.count import heard_by, tell
from steadyrl.core.errors import RunError
from steadyrl.core.types import Problem
from steadyrl.loop import launch
from steadyrl.loop.rewards.combine import text_rollout
from steadyrl.loop.rewards.functions import per_rollout


def test_without_a_listener_nothing_happens_and_a_listener_hears_only_what_runs_inside():
    heard = []
    tell("a", 1, 2)
    with heard_by(lambda *count: heard.append(count)):
        tell("b", 1, 2)
        with pytest.raises(RunError), heard_by(lambda *count: heard.append(("inner", *count))):
            tell("c", 1, 2)
            raise RunError("x")
        tell("d", 2, 2)
        thread = threading.Thread(target=tell, args=("e", 1, 2))
        thread.start()
        thread.join()
    tell("f", 1, 2)
    assert heard == [("b", 1, 2), ("inner", "c", 1, 2), ("d", 2, 2)]


def test_a_reward_counts_what_it_scored():
    heard = []
    reward = per_rollout("odd", lambda problem, rollout: {"": None}.get(rollout.text, 1.0))
    with heard_by(lambda *count: heard.append(count)):
        reward([(Problem("p", "?"), text_rollout(Problem("p", "?"), text)) for text in ("a", "", "b")])
    assert heard == [("rollouts scored by odd", done, 3) for done in (1, 2, 3)]


def test_a_training_counts_its_updates_and_evaluations_and_every_count_ends(toy, tmp_path):
    heard = {}
    settings = config.dump(toy("update.epochs=2", "update.minibatches=2").config)
    with heard_by(lambda what, done, total: heard.setdefault(what, []).append((done, total))):
        launch.run(settings)
    # Each pass over the batch says where it begins.
    assert heard["updates"][:6] == [(0, 4), (1, 4), (2, 4), (2, 4), (3, 4), (4, 4)]
    assert heard["trial updates"] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert [counts[-1][0] == counts[-1][1] for counts in heard.values()] == [True] * len(heard)
