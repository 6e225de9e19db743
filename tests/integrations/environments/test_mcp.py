"""Tools of an MCP server, by the package's own server."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from steadyrl.core.errors import ConfigError
from tests.integrations.environments.played import PROBLEM, calls, environment, task_of, ten_steps
from tests.needs import skip_without_packages

skip_without_packages("mcp", extra="mcp")

SERVER = Path(__file__).with_name("mcp_tools.py")


def command(*more):
    path = ":".join(sys.path[1:])
    return " ".join(["env", f"PYTHONPATH='{path}'", sys.executable, str(SERVER), *map(str, more)])


def result_of(task, **call):
    (done,) = task.episode(PROBLEM, 0).step(calls(**call)).calls
    return done.end, done.result


def test_its_tools_are_called_and_what_fails_is_read(tmp_path):
    task = task_of(environment("", mcp=[command(tmp_path / "starts")], call_seconds=2.0), {"length": 1.0})
    add = task.tools[0]["function"]
    assert (add["name"], add["description"]) == ("add", "Add two numbers.")
    assert add["parameters"]["required"] == ["a"]
    assert result_of(task, add={"a": 2, "b": 40}) == ("ok", "42")
    assert result_of(task, add={"a": 2}) == ("ok", "3")
    assert result_of(task, add={"a": "two"}) == (
        "arguments",
        "error: wrong arguments of add: arguments: $.a 'two' is not of type 'integer'",
    )
    end, result = result_of(task, fail={"why": "no library"})
    assert (end, result) == ("raised", "error: ToolError: Error executing tool fail: no library")
    assert result_of(task, wait={"seconds": 30}) == ("timeout", "error: the call took longer than 2 s")
    assert result_of(task, subtract={}) == (
        "unknown",
        "error: there is no tool 'subtract'; there are add, wait, fail, leave",
    )
    again = task_of(environment("", mcp=[command(tmp_path / "starts")]), {"length": 1.0})
    assert result_of(again, add={"a": 1}) == ("ok", "2")
    assert (tmp_path / "starts").read_text() == "started\n"  # once per process


def test_calls_of_a_server_that_ended_fail_at_once(tmp_path):
    task = task_of(environment("", mcp=[command(tmp_path / "leaves")], call_seconds=20.0), {"length": 1.0})
    start = time.monotonic()
    assert result_of(task, leave={})[0] == "raised"
    assert result_of(task, add={"a": 1})[0] == "raised"
    assert time.monotonic() - start < 10


def test_it_ends_with_the_process(tmp_path):
    text = f"""
from tests.integrations.environments.played import environment, task_of
task_of(environment("", mcp=[{command()!r}]), {{"length": 1.0}})
import subprocess
print(subprocess.run(["pgrep", "-P", str(__import__("os").getpid())], capture_output=True, text=True).stdout)
"""
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[3],
        env={"PYTHONPATH": ":".join([".", *sys.path]), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    (server,) = done.stdout.split()[:1]
    assert not Path(f"/proc/{server}").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("no-such-program", "'no-such-program' cannot be used: FileNotFoundError"),
        (f"{sys.executable} -c 'raise SystemExit(\"no key\")'", ", and it wrote: no key"),
        ("", "has an empty command"),
    ],
    ids=["no program", "ends at once", "empty"],
)
def test_what_is_no_server_is_refused_in_one_line(words, why):
    with pytest.raises(ConfigError) as refused:
        task_of(environment("", mcp=[words]), {"length": 1.0})
    assert why in str(refused.value) and "\n" not in str(refused.value)


class Adding:
    """The expert adds with the server, and says what came of it."""

    def reset(self, problem):
        self.turn = 0
        return "2+3?"

    def step(self, message):
        self.turn += 1
        return None, float(message["content"] == "5"), not message.get("tool_calls")

    def expert(self):
        return calls(add={"a": 2, "b": 3}) if self.turn == 0 else "5"


def test_it_trains_ten_steps(tmp_path):
    task = environment(f"{__name__}:Adding", mcp=[command()], max_turns=3)
    more = {"algorithm": {"name": "sft"}, "sampling": {"max_new_tokens": 16}}
    lines = ten_steps(tmp_path, task, {"episode_return": 1.0}, **more)
    assert [(line["tools/calls"], line["tools/ok"], line["reward/mean"]) for line in lines] == [(1.0, 1.0, 1.0)] * 10
