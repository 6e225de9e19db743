"""A server of OpenEnv and its client, by the package itself."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from steadyrl.core.errors import ConfigError
from tests.integrations.environments.played import PROBLEM, calls, environment, says, task_of, ten_steps
from tests.needs import skip_without_packages

skip_without_packages("openenv", extra="openenv")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what it imports


@pytest.fixture(scope="module")
def url():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(Path(__file__).with_name("openenv_server.py")), str(port)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": ":".join(sys.path)}) as server:
        for _ in range(300):
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert server.poll() is None
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
        server.terminate()


def test_episodes_have_sessions_of_their_own(url):
    task = task_of(environment("openenv", {"url": url, "observation": "word"}))
    first, second = task.episode(PROBLEM, 1), task.episode(PROBLEM, 1)
    (opening,) = first.open()
    assert opening == second.open()[0]
    word = opening["content"].removeprefix("say ")
    turn = first.step(says("z"))
    assert (turn.observation[0]["content"], turn.reward, turn.done) == ("you said z", -0.5, False)
    assert [(turn.reward, turn.done) for turn in (second.step(says(word)), first.step(says(word)))] == [(1.0, True)] * 2
    assert first.close() == second.close() == {}


def test_all_fields_are_read_where_none_is_named(url):
    task = task_of(environment("openenv", {"url": url}))
    episode = task.episode(PROBLEM, 1)
    assert '"word": "say ' in episode.open()[0]["content"]
    episode.close()


@pytest.mark.parametrize("action", ["message", ""])
def test_a_server_that_does_not_answer_is_refused_when_it_is_named(action):
    with pytest.raises(
        ConfigError, match=r"environment_args = .*: ConnectionError: Failed to connect to ws://127.0.0.1:1/"
    ):
        task_of(environment("openenv", {"url": "http://127.0.0.1:1", "action": action}))


def test_actions_are_calls_of_the_server_s_tools_where_no_field_is_named(url):
    task = task_of(environment("openenv", {"url": f"{url}/tools", "action": ""}))
    (tool,) = [tool["function"] for tool in task.tools]
    assert (tool["name"], tool["description"], tool["parameters"]["required"]) == (
        "add",
        "Add two numbers.",
        ["a", "b"],
    )
    episode = task.episode(PROBLEM, 1)
    assert episode.open() == [{"role": "user", "content": ""}]
    for arguments, read in (({"a": 1, "b": 3}, "4"), ({"a": 6, "b": 7}, "error: Error calling tool 'add': not 13")):
        turn = episode.step(calls(add=arguments))
        assert ([m["content"] for m in turn.observation], turn.reward, turn.done) == ([read], 0.25, False)
    refused = episode.step(calls(add={"a": "x", "b": 1}, sub={}))
    assert [(call.name, call.end) for call in refused.calls] == [("add", "arguments"), ("sub", "unknown")]
    assert (refused.reward, refused.done) == (None, False)
    assert episode.step(calls(add={"a": 2, "b": 3})).done
    assert task.episode(PROBLEM, 1).step(says("five")).done


def test_it_trains_ten_steps(url, tmp_path):
    task = environment("openenv", {"url": url, "observation": "word"}, max_turns=2)
    lines = ten_steps(tmp_path, task, {"episode_return": 1.0})
    assert all(-1 <= line["reward/mean"] <= 1 for line in lines)
