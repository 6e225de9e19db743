"""Environments of Gymnasium: its own FrozenLake, and one of texts."""

import pytest

from steadyrl.core.errors import ConfigError
from steadyrl.core.types import Problem
from tests.integrations.environments.played import PROBLEM, environment, says, task_of, ten_steps
from tests.needs import skip_without_packages

skip_without_packages("gymnasium", extra="gymnasium")
import gymnasium  # noqa: E402

LAKE = {"id": "FrozenLake-v1", "render_mode": "ansi", "is_slippery": False}
NAMES = ["left", "down", "right", "up"]


class Echo(gymnasium.Env):
    """The action that the observation shows earns."""

    action_space = gymnasium.spaces.Text(20)
    observation_space = gymnasium.spaces.Text(20)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.letter = "abc"[int(self.np_random.integers(3))]
        return self.letter, {}

    def step(self, action):
        return "again", float(self.letter in action), self.letter in action, False, {}


class Arrays(Echo):
    action_space = gymnasium.spaces.Box(0, 1)


def test_the_shortest_way_over_the_lake():
    episode = task_of(environment("gymnasium", LAKE | {"actions": NAMES, "instruction": "Cross."})).episode(PROBLEM, 3)
    (opening,) = episode.open()
    assert opening["content"].split() == ["Cross.", "[S]FFF", "FHFH", "FFFH", "HFFG"]
    assert episode.step(says("nowhere")).observation[0]["content"] == (
        "There is no action in that; expected one of left, down, right, up."
    )
    turns = [episode.step(says(text)) for text in ("go down", "DOWN", "not up but right", "right", "down", "right.")]
    assert [turn.reward for turn in turns] == [0, 0, 0, 0, 0, 1]
    assert [turn.done for turn in turns] == [False] * 5 + [True]
    assert episode.close() == {"terminated": True, "truncated": False}


def test_numbers_are_actions_where_there_are_no_names():
    episode = task_of(environment("gymnasium", LAKE)).episode(PROBLEM, 3)
    assert episode.open()[0]["content"].startswith("Each turn is one of 0, 1, 2, 3.\n\n")
    assert "no action" in episode.step(says("12 or -1")).observation[0]["content"]
    assert not episode.step(says("2 then 1")).done  # the last counts: down
    assert episode.step(says("I take 2.")).done  # the hole at (1, 1)


def test_a_seed_is_the_same_for_all_attempts_and_texts_are_actions():
    task = task_of(environment("gymnasium", {"factory": f"{__name__}:Echo"}))
    letters = [task.episode(Problem("p", "Say it."), seed).open()[0]["content"] for seed in (1, 1, 2**63, 4)]
    assert letters[0] == letters[1] and letters[0].startswith("Say it.\n\n") and len(set(letters)) > 1
    episode = task.episode(PROBLEM, 1)
    (opening,) = episode.open()
    assert episode.step(says("?")).observation == [{"role": "user", "content": "again"}]
    assert episode.step(says(f"it is {opening['content']}")).reward == 1.0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({}, "needs either 'id'"),
        ({"id": "FrozenLake-v1", "actions": ["left"]}, "has 4 actions and 1 names"),
        ({"factory": f"{__name__}:Arrays"}, "expected spaces.Text or Discrete"),
        ({"id": "NoSuchLake-v1"}, "NoSuchLake"),
    ],
)
def test_what_cannot_be_played_is_refused(arguments, why):
    with pytest.raises(ConfigError) as refused:
        task_of(environment("gymnasium", arguments))
    assert why in str(refused.value) and "\n" not in str(refused.value)


def test_it_trains_ten_steps(tmp_path):
    task = environment("gymnasium", {"factory": f"{__name__}:Echo"}, max_turns=3)
    lines = ten_steps(tmp_path, task, {"episode_return": 1.0})
    assert all(0 <= line["reward/mean"] <= 1 for line in lines)
