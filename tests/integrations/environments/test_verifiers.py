"""Tasksets of verifiers, by the package's own environments, harness, servers of tools and scoring."""

import os
import time
from pathlib import Path

import pytest

from steadyrl.core.errors import ConfigError, EpisodeError
from steadyrl.core.types import Problem
from tests.integrations.environments.played import calls, environment, says, task_of, ten_steps
from tests.needs import skip_without_packages

skip_without_packages("verifiers", extra="verifiers")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what it imports


@pytest.fixture(autouse=True)
def tasks(monkeypatch):
    """Install the tasksets of the folder, for the servers that verifiers starts as well."""
    folder = str(Path(__file__).with_name("verifiers_tasks"))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", folder, prepend=os.pathsep)


def episode_of(id, number=0, **settings):
    return task_of(environment("verifiers", {"id": id, **settings})).episode(Problem("p", "", {"seed": number}), 0)


@pytest.mark.parametrize(("answer", "reward"), [("b", 2.25), ("a b", 0.25), ("c", 0.0)])
def test_a_task_of_one_turn_is_scored_by_its_weighted_rewards(answer, reward):
    episode = episode_of("letter-tasks", 1)
    assert [(m["role"], m["content"]) for m in episode.open()] == [("system", "Be short."), ("user", "Say b.")]
    turn = episode.step(says(answer))
    assert (turn.observation, turn.reward, turn.done) == ("", reward, True)
    assert episode.close() == {"length": len(answer), "stop": "agent_completed"}


def test_the_last_fifth_is_held_out_and_settings_are_those_of_the_taskset():
    numbers = (0, 3, 4, 1 << 20, 1 << 21)
    prompts = [episode_of("letter-tasks", number, letters="vwxyz").open()[-1]["content"] for number in numbers]
    assert prompts == ["Say v.", "Say y.", "Say v.", "Say z.", "Say z."]


def test_its_tools_are_called_by_its_own_server():
    task = task_of(environment("verifiers", {"id": "adding-tasks"}))
    (add,) = (tool["function"] for tool in task.tools)
    assert (add["name"], add["description"]) == ("sums_add", "Add two numbers.")
    assert list(add["parameters"]["properties"]) == ["a", "b"]
    episode = task.episode(Problem("p", "", {"seed": 3}), 0)
    assert episode.open()[-1]["content"] == "Add 3 and 2."
    turn = episode.step(calls(sums_add={"a": 3, "b": 2}))
    assert [(m["role"], m["content"], m["tool_call_id"]) for m in turn.observation] == [("tool", "5", "c0")]
    start = time.monotonic()
    wrong = episode.step(calls(sums_add={"a": "three", "b": 2}))
    assert time.monotonic() - start < 0.4  # verifiers' own first wait before it tries again is longer
    assert [(m["content"], m["tool_call_id"]) for m in wrong.observation] == [
        ("error: wrong arguments of sums_add: arguments: $.a 'three' is not of type 'integer'", "c0")
    ]
    unknown = episode.step(calls(subtract={}))
    assert unknown.observation[0]["content"].startswith("error: there is no tool 'subtract'")
    assert episode.step(says("5")).reward == 1.0


def test_its_user_is_read_turn_by_turn():
    episode = episode_of("asking-tasks")
    assert episode.open() == [{"role": "user", "content": "Ready?"}]
    assert episode.step(says("yes")).observation == [{"role": "user", "content": "Sure?"}]
    turn = episode.step(says("no"))
    assert (turn.reward, turn.done) == (0.5, True)


def test_a_conversation_that_begins_anew_ends_the_episode():
    episode = episode_of("twice-tasks")
    episode.open()
    with pytest.raises(EpisodeError, match="do not go on from the turn before"):
        episode.step(says("yes"))
    assert episode.close() == {}


def test_an_episode_that_is_closed_under_way_has_no_outcome():
    episode = episode_of("asking-tasks")
    episode.open()
    assert episode.close() == {}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"id": "no-such-tasks"}, "'no-such-tasks' of verifiers cannot be loaded: ModuleNotFoundError"),
        ({"id": "letter-tasks", "colour": "red"}, "colour"),
        ({"id": "letter-tasks", "letters": ""}, "has no tasks"),
        ({"id": "pair-tasks"}, "has the agents first, second; expected one agent"),
    ],
)
def test_what_cannot_be_played_is_refused(arguments, why):
    with pytest.raises(ConfigError) as refused:
        task_of(environment("verifiers", arguments))
    assert why in str(refused.value) and "\n" not in str(refused.value)


def test_it_trains_ten_steps(tmp_path):
    task = environment("verifiers", {"id": "letter-tasks"}, max_turns=2)
    lines = ten_steps(tmp_path, task, {"episode_return": 1.0})
    assert all(0 <= line["reward/mean"] <= 2.25 for line in lines)


def needs_example(name):
    """Skip the test unless an example of the folder `environments` of verifiers' repository is installed."""
    skip_without_packages(name, extra="verifiers", beside=f"git+REPOSITORY#subdirectory=environments/{name}")


EXAMPLES = {
    "glossary": ("<answer>{}</answer>", 'look up "Ada Lovelace"', "facts_lookup", {"name": "Ada Lovelace"}),
    "scratchpad": ("{}", 'word="alpha"', "scratchpad_roundtrip", {"word": "alpha"}),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of_verifiers_are_played(name):
    needs_example(name)
    answer, asked, tool, arguments = EXAMPLES[name]
    episode = episode_of(name)
    assert asked in episode.open()[-1]["content"]
    (result,) = episode.step(calls(**{tool: arguments})).observation
    turn = episode.step(says(answer.format(result["content"])))
    assert (turn.reward, turn.done) == (1.0, True)


def test_the_example_reverse_text_is_played(tmp_path):
    needs_example("reverse_text")
    (tmp_path / "train.jsonl").write_text('{"prompt": "abcd"}\n')
    episode = episode_of("reverse-text", dataset_name=str(tmp_path))
    assert episode.open()[-1]["content"] == "abcd"
    assert episode.step(says("<reversed_text>dcba</reversed_text>")).reward == 1.0
