import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from steadyrl.core import config
from steadyrl.core.rundir import RunDir
from steadyrl.core.types import Problem

EXAMPLES = Path(__file__).parent.parent / "examples"
CONFIGS = sorted(path for path in EXAMPLES.rglob("*.toml") if path.name != "pyproject.toml")


def command_line(folder, *arguments):
    """Run steadyrl in a folder, as a user would; return what it printed."""
    code = "from steadyrl.cli.main import main; main()"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.relative_to(EXAMPLES).as_posix())
def test_every_example_is_a_valid_config(path):
    found = config.load(path)
    assert config.resolve(config.dump(found)) == found


def test_rewards_of_ones_own_and_those_written_for_trl_are_learned_from(tmp_path):
    folder = EXAMPLES / "own_reward"
    printed = command_line(folder, "train", "config.toml", f"run.folder={tmp_path}")
    run = RunDir.open(next(tmp_path.iterdir()))
    metrics = run.metrics()
    assert len(metrics) == 40
    first, last = metrics[0], metrics[-1]
    assert first["reward/echo"] < 0.1 < 0.9 < last["reward/echo"]
    for line in (first, last):
        total = line["reward/echo"] + 0.05 * line["reward/brevity"]
        assert line["reward/mean"] == pytest.approx(total, rel=1e-9)
    summary = json.loads((run.report_folder / "summary.json").read_text())
    # four problems are too few for a verdict, however large the gain
    assert (summary["metric"], summary["verdict"], summary["n"]) == ("echo", "undecided", 4)
    assert summary["before"] < 0.1 < 0.9 < summary["after"]
    assert "held-out echo, sampled: " in printed


@pytest.mark.weekly
def test_the_example_task_is_sound():
    printed = command_line(EXAMPLES / "own_reward", "task", "check", "config.toml")
    assert [line.split()[0] for line in printed.splitlines()] == ["ok"] * 5


@pytest.fixture(scope="module")
def agents(tmp_path_factory):
    """The folder of the agents with their problems, 20 of each file."""
    folder = tmp_path_factory.mktemp("agents") / "agents"
    shutil.copytree(EXAMPLES / "agents", folder, ignore=shutil.ignore_patterns("*.jsonl", "__pycache__", "runs"))
    environment = os.environ | {"PYTHONPATH": str(EXAMPLES.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "problems.py"], cwd=folder, env=environment, capture_output=True, check=True)
    for path in folder.glob("*.jsonl"):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[:: len(lines) // 20]))
    return folder


@pytest.mark.parametrize(("agent", "earned"), [("searcher", r"0\.[4-7]\d\d"), ("calculator", r"1\.000")])
def test_an_agent_s_expert_plays_well_and_nothing_else_does(agents, agent, earned):
    gold, empty, scripted, looping = command_line(agents, "task", "check", f"{agent}.toml").splitlines()[1:5]
    assert re.match(rf"ok    gold answer: mean reward {earned},", gold)
    assert empty.startswith("ok    empty answer: mean reward 0.000")
    assert re.match(r"ok    scripted policy: .*; (\d+) calls: \1 ok$", scripted)  # none fails
    assert looping.startswith("ok    looping policy: mean reward 0.000")


@pytest.mark.weekly
def test_the_agents_play_without_their_tools(agents):
    printed = command_line(agents, "task", "check", "searcher.toml", "task.args.environment_args={search=false}")
    assert re.search(r"ok    gold answer: mean reward 0\.[2-5]\d\d", printed)
    assert "calls" not in printed.split("looping policy")[0]
    printed = command_line(agents, "task", "check", "calculator.toml", "task.args.environment_args={tool=false}")
    assert "ok    gold answer: mean reward 1.000" in printed


@pytest.fixture
def calculator(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES / "agents")
    return importlib.import_module("calculator")


@pytest.mark.parametrize(
    ("expression", "result"),
    [("3 * (4 + 5)", "27"), ("-2 * 3.5", "-7"), ("1 / 3", "0.333333"), ("7 - 10", "-3"), ("0.1 + 0.2", "0.3")],
)
def test_the_calculator_calculates_exactly(calculator, expression, result):
    assert calculator.calculate(expression) == result


@pytest.mark.parametrize("expression", ["2 ** 9", "__import__('os')", "'a' * 9", "x", "1 if 2 else 3", "1+" * 50 + "1"])
def test_the_calculator_evaluates_nothing_but_arithmetic(calculator, expression):
    with pytest.raises(ValueError, match="expected"):
        calculator.calculate(expression)


def test_the_calculator_s_expert_writes_what_the_question_asks_for(calculator):
    question = "Each of 3 children has 4 pens, and Ana has 5 times as many as one child. How many pens in all?"
    assert calculator.solution(question, 32) == "(3 + 5) * 4"
    assert calculator.solution("Ana has 9 pens and gives 2 of them to Ben. How many are left?", 7) == "9 - 2"
    with pytest.raises(ValueError, match="comes to 1000"):
        calculator.solution("Ana has 9 pens.", 1000)


@pytest.fixture
def searcher(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES / "agents")
    return importlib.import_module("searcher")


FOUND = ["queue.Queue.put", "os.putenv", "queue.Empty"]
MORE = ["queue.Full", "queue.Queue.put_nowait", "asyncio.Queue.put", "queue.Queue.get"]


@pytest.mark.parametrize(
    ("answer", "later"),
    [("queue put", ["queue.Queue.put_nowait"]), ("queue get full", ["queue.Full", "queue.Queue.get"]), ("queue", [])],
)
def test_the_searcher_s_answer_picks_of_a_module_what_has_a_word(searcher, monkeypatch, answer, later):
    """All of the module among the first results, and of the later ones what has one of the words."""
    monkeypatch.setattr(searcher, "RESULTS", len(FOUND))
    assert searcher.picked(answer, FOUND + MORE) == ["queue.Queue.put", "queue.Empty", *later]
    assert searcher.picked(answer.replace("queue", "heapq"), FOUND + MORE) == searcher.picked("", FOUND) == []


def test_the_searcher_s_policy_reads_numbered_titles_and_earns_f1(searcher, monkeypatch):
    lists = {"Put an item.": FOUND, "queue put": FOUND + MORE}
    monkeypatch.setattr(searcher, "ranked", lambda query, count: lists[query])
    monkeypatch.setattr(searcher, "RESULTS", len(FOUND))
    episode = searcher.Searcher()
    opening = episode.reset(Problem("p", "Put an item.", {"relevant": ["queue.Queue.put", "queue.Queue.get"]}))
    assert opening == "request: put an item.\n1 queue put\n2 os putenv\n3 queue empty"
    assert episode.search("1") == "4 queue full\n5 queue put nowait\n6 asyncio put"
    assert episode.spelled("4 and 7") == "queue full and 7"
    # 3 results with 1 of 2 relevant: 2 * 1 / (3 + 2)
    assert episode.step({"role": "assistant", "content": "1"}) == (None, 0.4, True)
    assert episode.close()["answer"] == ["queue.Empty", "queue.Queue.put", "queue.Queue.put_nowait"]


def test_the_searcher_s_expert_searches_for_what_is_worth_most(searcher, monkeypatch):
    """Going on from "queue put" adds put_nowait, so F1 is 2 * 2 / (3 + 2); no other choice comes to as much."""
    monkeypatch.setattr(searcher, "new_results", lambda query, earlier: MORE if query == "queue put" else ["os.putb"])
    monkeypatch.setattr(searcher, "RESULTS", len(FOUND))
    relevant = frozenset(["queue.Queue.put", "queue.Queue.put_nowait"])
    assert searcher.plan(FOUND, relevant, searches=True) == "queue put"
    assert searcher.plan(FOUND, relevant, searches=False) == "queue put"
    assert searcher.plan(FOUND, frozenset(["heapq.merge"]), searches=True) is None


def test_the_calculator_s_expert_writes_the_problem_s_own_expression(calculator):
    episode = calculator.Calculator()
    episode.reset(Problem("p", "3 dogs, 6 ants", {"answer": 48, "expression": "3 * 4 + 6 * 6"}))
    (call,) = episode.expert()["tool_calls"]
    assert call["function"]["arguments"] == {"expression": "3 * 4 + 6 * 6"}
