import importlib.util
import json
import re
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from steadyrl.core import config, plugins
from steadyrl.core.errors import ConfigError, DataError
from steadyrl.environments.code.generated import generated_problems
from steadyrl.environments.code.problems import CodeProblem, program
from steadyrl.environments.code.quality import inspect
from steadyrl.environments.code.sandbox.pool import JailError
from steadyrl.environments.code.task import OWN_PROBLEMS, CodeSettings, CodeTask
from steadyrl.loop.rewards.combine import make_terms, score_texts
from steadyrl.loop.tasks.check import check_task
from tests import needs

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def own():
    needs.skip_without("jail")
    return CodeTask(CodeSettings())


@pytest.fixture(scope="module")
def terms(own):
    return make_terms({"tests": 1.0, "compiles": 0.1, "quality": 0.1, "brevity": 0.1}, own)


def both(task):
    return [*task.problems("train"), *task.problems("heldout")]


def test_there_are_two_hundred_problems_of_six_topics_half_of_them_held_out(own):
    train, heldout = own.problems("train"), own.problems("heldout")
    assert len(train) + len(heldout) >= 200
    assert abs(len(train) - len(heldout)) <= 1
    topics = Counter(p.id.split("/")[0] for p in both(own))
    assert set(topics) == {"arithmetic", "strings", "lists", "dicts", "recursion", "parsing"}
    assert min(topics.values()) >= 30


def test_the_problem_file_is_what_its_sources_say():
    path = ROOT / "scripts" / "code_problems" / "build.py"
    spec = importlib.util.spec_from_file_location("build_code_problems", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert OWN_PROBLEMS.read_text(encoding="utf-8") == module.text()


def test_prompts_show_two_examples_and_hide_the_other_tests():
    for line in OWN_PROBLEMS.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        assert record["prompt"].count(">>>") == 2
        assert len(record["tests"]) > 2


def test_each_part_of_the_reward_is_measured(own, terms):
    problem = next(p for p in both(own) if p.id == "arithmetic/is_even")
    plain, long, half, broken = score_texts(
        [
            (problem, "    return n % 2 == 0\n"),
            (problem, "    unused = 1\n    if (n % 2 == 0) == True:\n        return True\n    return False\n"),
            (problem, "    return True\n"),
            (problem, "    return ((\n"),
        ],
        terms,
    )
    assert plain.parts == {
        "tests": 1.0, "passed_all": 1.0, "compiles": 1.0, "timed_out": 0.0, "quality": 1.0, "brevity": 1.0,
    }  # fmt: skip
    assert long.parts["tests"] == 1.0
    assert long.parts["quality"] == pytest.approx(0.6)  # two objections
    assert 0.3 < long.parts["brevity"] < 0.9
    assert half.parts["tests"] == pytest.approx(3 / 5)  # 4, 0 and -2 of 4, 7, 0, -2, -3
    assert (half.parts["quality"], half.parts["brevity"], half.parts["compiles"]) == (0.0, 0.0, 1.0)
    assert (broken.parts["tests"], broken.parts["compiles"], broken.reward) == (0.0, 0.0, 0.0)
    assert "SyntaxError" in broken.note


UNREADABLE = {
    "400 signs": "\ndef unused():\n    return " + "-" * 400 + "1\n",
    "blocks in blocks": "\ndef unused():\n" + "".join(" " * n + "if 1:\n" for n in range(1, 90)) + " " * 90 + "pass\n",
    "long": "\n" + "# x\n" * 30_000,
    "a sum of 2000": "\ndef unused():\n    return " + "1+" * 2000 + "1\n",
    "calls of calls": "\ndef unused():\n    return " + "f" + "()" * 900 + "\n",
}


@pytest.mark.parametrize("addition", UNREADABLE)
def test_a_program_that_works_and_cannot_be_read_earns_nothing_for_its_form(own, addition):
    terms = make_terms({"tests": 1.0, "compiles": 1.0, "quality": 1.0, "brevity": 1.0}, own)
    problem = next(p for p in both(own) if p.id == "arithmetic/is_even")
    code = "def is_even(number):\n    return number % 2 == 0\n"
    plain, padded = score_texts([(problem, code), (problem, code + UNREADABLE[addition])], terms)
    assert (plain.parts["tests"], padded.parts["tests"]) == (1.0, 1.0)
    assert padded.reward < plain.reward - 0.5


@pytest.mark.parametrize(
    "text", ["", " \n", "# return n % 2 == 0", "\n\t# a\n  # b\n", "```\n```", "```python\n# x\n```"]
)
def test_an_answer_that_adds_nothing_to_its_starter_is_not_paid_for_being_python(own, terms, text):
    some = both(own)[::20]
    assert {r.parts["compiles"] for r in score_texts([(p, text) for p in some], terms)} == {0.0}


def test_answers_that_lost_their_first_indentation_still_continue_the_starter(own):
    """A policy may leave out the first indentation: that line stands at the margin, the others where they were."""
    for task in (own, CodeTask(CodeSettings(problems="generated", generated_count=40))):
        pairs = [(problem, task.gold(problem).strip()) for problem in both(task)]
        scored = score_texts(pairs, make_terms({"tests": 1.0}, task))
        assert [rollout.note for rollout in scored if rollout.parts["tests"] != 1.0] == []


def test_a_continuation_is_put_where_the_starter_ends():
    def joined(starter, answer):
        return program(answer, CodeProblem("p", "p", "f", starter_code=starter))

    assert joined("def f(x):\n    return", "x + 1") == "def f(x):\n    return x + 1"
    assert joined("def f(x):\n    return ", "x + 1") == "def f(x):\n    return x + 1"
    assert joined("def f(x):\n", "y = x\n    return y") == "def f(x):\n    y = x\n    return y"
    assert joined('def f(x):\n    """Add: it."""\n', "return x") == 'def f(x):\n    """Add: it."""\n    return x'
    assert joined("def f(x):\n", "  return x") == "def f(x):\n  return x"
    assert joined("def f(x):\n", " y = x\n    return y\n") == "def f(x):\n    y = x\n    return y"
    assert joined("def f(x):\n    return", "\n x + 1 ") == "def f(x):\n    return x + 1"
    assert joined("def f(x):\n", " def f(x):\n  return x\n") == "def f(x):\n  return x"
    assert joined("def f(x):\n", "\n ```python\n  return x\n```\n") == "def f(x):\n  return x\n"


@pytest.mark.jail
def test_all_or_nothing_pays_for_all_tests_only():
    task = CodeTask(CodeSettings(all_or_nothing=True))
    problem = next(p for p in both(task) if p.id == "arithmetic/is_even")
    rollouts = score_texts(
        [(problem, "    return True\n"), (problem, task.gold(problem))], make_terms({"tests": 1}, task)
    )
    assert [r.reward for r in rollouts] == [0.0, 1.0]


def test_a_failure_of_the_machine_leaves_answers_unscored(own, terms, monkeypatch):
    def lost(*_):
        raise JailError("the worker died")

    monkeypatch.setattr(own._sandbox, "run", lost)
    [rollout] = score_texts([(own.problems("train")[0], "    return 'never judged before'\n")], terms)
    assert rollout.reward is None
    assert "the worker died" in rollout.unscored


@pytest.mark.parametrize(
    "built",
    [
        *(f"x = []\n    for _ in range({depth}): x = [x]" for depth in (101, 330, 492, 700, 5000)),
        "x = {index * (2**61 - 1) for index in range(3000)}",
        "x = dict.fromkeys(index * (2**61 - 1) for index in range(3000))",
        "import json, os\n    x = [index * (2**61 - 1) for index in range(31_000)]\n"
        "    os.write(3, json.dumps(['value', ['set', *x]]).encode() + b'\\n'); os._exit(0)",
        "import os\n    x = 0\n    os.write(3, b'[\"value\", ' + b'[\"list\", ' * 492 + b'1' + b']' * 493 + b'\\n')",
        "x = '\\ud800' * 100",
    ],
)
def test_values_that_are_deep_or_costly_score_nothing_and_not_unknown(own, built):
    problems = [p for p in both(own) if p.id.startswith("lists/")][:2]
    terms = make_terms({"tests": 1.0, "compiles": 0.1, "quality": 0.1, "brevity": 0.1}, own)
    names = [problem.columns["entry_point"] for problem in problems]
    answers = [f"def {name}(*_):\n    {built}\n    return x\n" for name in names]
    began = time.process_time()
    rollouts = score_texts(list(zip(problems, answers, strict=True)), terms)
    assert time.process_time() - began < 3  # it took 19 s where such values were rebuilt
    assert [(r.parts["tests"], r.unscored) for r in rollouts] == [(0.0, None)] * 2
    assert all(r.note and r.note.encode() for r in rollouts)


def test_a_problem_of_the_users_own_words_cannot_be_scored(own, terms):
    [rollout] = score_texts([(own.ask("write a function"), "x")], terms)
    assert "there are no tests" in rollout.unscored


def test_show_tells_what_there_is_to_object_to(own):
    assert own.show("def f(x):\n    return x\n") == ["nothing to object to"]
    assert own.show("def f(x, y):\n    return x\n") == ["line 1: the argument y is not used"]
    assert own.show("def f(:")[0].startswith("syntax: ")


@pytest.mark.parametrize(
    ("code", "objections"),
    [
        ("def f(x):\n    return x\n", 0),
        ("import os\ndef f(x):\n    return x\n", 1),
        ("def f(x, seen=[]):\n    return seen + [x]\n", 1),
        ("def f(x):\n    try:\n        return int(x)\n    except:\n        return 0\n", 1),
        ("def f(x):\n    return x == None\n", 1),
        ("def f(x):\n    return x\n    x += 1\n", 1),
        ("def f(list):\n    return eval(list)\n", 2),
        ("def f(x):\n    def g():\n        return x\n    return g()\n", 0),
        ("def f(n):\n    for _ in range(n):\n        n += 1\n    return n\n", 0),
    ],
)
def test_objections_are_those_of_a_reader(code, objections):
    found, size = inspect(code)
    assert len(found) == objections, found
    assert size > 5


def test_generated_problems_are_distinct_repeat_and_can_be_told_from_doing_nothing():
    problems = generated_problems(300, seed=1)
    assert len({p.id for p in problems}) == len({p.prompt for p in problems}) == 300
    assert generated_problems(300, seed=1) == problems != generated_problems(300, seed=2)
    for p in problems:
        assert any(case.expected != case.arguments[0] for case in p.cases)
        assert compile(program(p.canonical_solution, p), p.id, "exec")
    add = next(p for p in generated_problems(800) if p.id == "one-expression/add 10: x")
    assert (add.prompt, add.canonical_solution) == ("# add 10: x\ndef f(x):\n    return", " x + 10")
    assert add.cases[0].expected == 17


@pytest.mark.parametrize("args", [{}, {"problems": "generated", "generated_count": 60}])
@pytest.mark.jail
def test_the_task_is_sound(args):
    rewards = {"tests": 1.0, "compiles": 0.1, "quality": 0.1, "brevity": 0.05} if args else {"tests": 1.0}
    settings = config.resolve({"task": {"name": "code", "args": args}, "rewards": rewards})
    checks = {check.check: check for check in check_task(settings)}
    assert [check.message for check in checks.values() if check.state == "found"] == []
    # Of all problems, and not of some: every canonical solution passes, and every wrong one fails a test.
    assert re.fullmatch(r"(\d{2,}) of \1 score \S+", checks["gold answer"].message)
    assert args or re.fullmatch(r"(\d{3}) of \1 score below 1", checks["wrong answer"].message)


@pytest.mark.human_eval
@pytest.mark.jail
def test_the_check_runs_all_reference_solutions_of_human_eval():
    settings = {"task": {"name": "code", "args": {"problems": str(needs.HUMAN_EVAL)}}, "rewards": {"tests": 1.0}}
    found = {check.check: (check.state != "found", check.message) for check in check_task(config.resolve(settings))}
    assert found["gold answer"] == (True, "164 of 164 score 1")
    assert found["empty answer"] == (True, "164 of 164 score 0")


@pytest.mark.jail
def test_the_check_names_the_one_solution_in_forty_that_is_wrong(tmp_path):
    lines = [
        {
            "id": f"add {i}", "prompt": "p", "entry_point": "f", "tests": [[[1], 1 + i], [[2], 2 + i]],
            "canonical_solution": f"def f(x): return x + {i if i != 7 else 8}",
            "wrong_solution": f"def f(x): return {1 + i}" if i != 9 else "def f(x): return x + 9",
        }
        for i in range(40)
    ]  # fmt: skip
    lines.append({"id": "none", "prompt": "p", "entry_point": "f", "starter_code": "def f(x):\n    'None.'\n"})
    lines[-1]["tests"] = [[[1], None]]
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = {"task": {"name": "code", "args": {"problems": str(path)}}, "rewards": {"tests": 1.0}}
    found = {check.check: (check.state != "found", check.message) for check in check_task(config.resolve(settings))}
    said = "39 of 40 score 1; 1 of 41 problems have none; not: add 7 (0.000: f(1) is 9, expected 8)"
    assert found["gold answer"] == (False, said)
    assert found["empty answer"] == (False, "40 of 41 score 0; not: none (1.000)")
    said = "39 of 40 score below 1; 1 of 41 problems have none; not: add 9 (1.000)"
    assert found["wrong answer"] == (False, said)


@pytest.mark.jail
def test_wrong_solutions_are_no_baseline_where_no_problem_has_one(own, tmp_path):
    line = {"prompt": "p", "entry_point": "f", "tests": [[[1], 2]]}
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(line | {"id": id}) + "\n" for id in ("a", "b")))
    rules = list(CodeTask(CodeSettings(problems=str(path))).baselines())
    assert rules == ["a body of pass", "return the first argument"]
    assert list(own.baselines()) == ["wrong solution", *rules]


def test_settings_and_files_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"task.args.sandbox.jail"):
        config.resolve({"task": {"name": "code", "args": {"sandbox": {"jail": "none"}}}, "rewards": {"tests": 1}})
    one = tmp_path / "one.jsonl"
    one.write_text('{"id": "a", "prompt": "p", "entry_point": "f", "tests": [[[1], 2]]}\n')
    with pytest.raises(DataError, match="one problem"):
        CodeTask(CodeSettings(problems=str(one)))
    with pytest.raises(DataError, match="'a' is in both files"):
        CodeTask(CodeSettings(problems=str(one), heldout=str(one)))
    assert plugins.load("task", "code") is CodeTask


class Meeting:
    """A sandbox that runs nothing before two ask it at the same time."""

    def __init__(self, sandbox):
        self._sandbox, self._both = sandbox, threading.Barrier(2)

    def run(self, *job):
        self._both.wait(timeout=30)
        return self._sandbox.run(*job)


@pytest.mark.jail
def test_several_workers_run_the_answers_of_a_step_side_by_side():
    task = CodeTask(CodeSettings(sandbox={"workers": 2}))
    task._sandbox = Meeting(task._sandbox)
    terms = make_terms({"tests": 1.0, "compiles": 0.1}, task)
    problems = [p for p in both(task) if task.gold(p)][:3]
    wrong = task.baselines()["wrong solution"]
    answers = [(p, text) for p in problems for text in (task.gold(p), wrong(p), task.gold(p))]
    found = [r.parts["passed_all"] for r in score_texts(answers, terms)]
    assert found == [1.0, 0.0, 1.0] * 3


def test_ruff_objects_to_what_works_and_counts_once_a_line(own):
    needs.skip_without_packages("ruff", extra="code")
    task = CodeTask(CodeSettings(lint="ruff"))
    # Four statements for what is one; and an unused import, to which the syntax tree objects as well.
    clumsy = "import os\n\n\ndef f(x):\n    if x:\n        return True\n    else:\n        return False\n"
    assert len(own.show(clumsy)) == 1
    assert [line.split()[:3] for line in task.show(clumsy)] == [["line", "1:", "F401"], ["line", "5:", "SIM103"]]
    problem = next(p for p in both(own) if "os" not in own.gold(p))
    answer = "import os\n" + own.gold(problem)
    terms = make_terms({"tests": 1.0, "quality": 0.1}, task)
    (plain, with_import) = score_texts([(problem, own.gold(problem)), (problem, answer)], terms)
    assert with_import.parts["quality"] == pytest.approx(plain.parts["quality"] - 0.2)
    assert "F401" in with_import.note
