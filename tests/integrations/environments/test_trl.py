"""The objects of TRL's environment_factory, unchanged."""

import importlib.util
from pathlib import Path

import pytest

from steadyrl.core import config, plugins
from steadyrl.core.errors import ConfigError
from steadyrl.core.types import Problem
from tests.integrations.environments.played import (
    PROBLEM,
    calls,
    environment,
    says,
    task_of,
    ten_steps,
)
from tests.needs import skip_without_packages

HERE = "tests.integrations.environments.played"


@pytest.mark.parametrize("name", ["CounterEnv", "AsyncCounterEnv"])
def test_its_methods_are_tools_and_its_reward_is_the_episode_s(name):
    task = task_of(environment("trl", {"factory": f"{HERE}:{name}"}))
    assert [tool["function"]["name"] for tool in task.tools] == ["increment"]
    first, second = task.episode(PROBLEM, 0), task.episode(PROBLEM, 0)
    problem = Problem("p", "Count.", {"level": 1})
    assert task.episode(problem, 0).open() == [{"role": "user", "content": "Count. The target is 3."}]
    for episode in (first, second):
        assert episode.open() == [{"role": "user", "content": " The target is 3."}]
    turn = first.step(calls(increment={"step": 2}))
    assert (turn.observation[0]["content"], turn.done, turn.reward) == ("2", False, None)
    assert first.step(calls(increment={})).calls[0].result == "3"
    assert first.step(says("done")).done
    assert second.step(says("done")).done  # its counter is its own
    assert (first.close()["reward"], second.close()["reward"]) == (1.0, pytest.approx(-0.3))
    assert first.close()["counter"] == 3


def test_the_row_reaches_reset_and_the_conversation_stays():
    task = task_of(environment("trl", {"factory": f"{HERE}:CounterEnv"}))
    messages = ({"role": "system", "content": "You count."}, {"role": "user", "content": "Go."})
    episode = task.episode(Problem("p", "Go.", {"level": 1}, messages), 0)
    assert episode.open() == [messages[0], {"role": "user", "content": "Go. The target is 3."}]
    assert episode._environment._environment.seen == ["level", "prompt"]


def test_its_code_is_the_user_s_own():
    task = environment("trl", {"factory": f"{HERE}:CounterEnv"})
    settings = config.resolve({"task": task, "rewards": {"episode_return": 1.0}}).task.args
    assert sorted(plugins.own_code(settings.import_paths())) == [HERE]


def test_what_is_no_environment_of_trl_is_refused():
    with pytest.raises(ConfigError, match="has no method reset, which TRL's environment_factory expects"):
        task_of(environment("trl", {"factory": f"{HERE}:nothing"}))


def test_it_trains_ten_steps(tmp_path):
    lines = ten_steps(
        tmp_path, environment("trl", {"factory": f"{HERE}:CounterEnv"}, max_turns=2), {"episode_return": 1.0}
    )
    assert all(-10 <= line["reward/mean"] <= 1 for line in lines)


def test_these_are_what_trl_s_trainer_uses_of_it():
    """Its source is read: an import would need accelerate and datasets."""
    skip_without_packages("trl", extra="torch,data", beside="trl")
    source = (Path(importlib.util.find_spec("trl").origin).parent / "trainer" / "grpo_trainer.py").read_text()
    assert "inspect.getmembers(type(instance), predicate=inspect.isfunction)" in source
    assert 'elif member_name == "get_reward":' in source
    assert 'elif not member_name.startswith("_"):' in source
    assert "environment.reset(**reset_kwargs)" in source
