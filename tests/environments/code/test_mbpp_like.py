"""Test code of the shapes that MBPP's has: right solutions score 1, or the problem is refused with the reason."""

import json

import pytest

from steadyrl.core.errors import DataError
from steadyrl.environments.code.judge_tests import judge
from steadyrl.environments.code.names import names_lacking
from steadyrl.environments.code.problems import program
from steadyrl.environments.code.published import load_problems
from steadyrl.environments.code.sandbox.choose import SandboxSettings, open_sandbox
from steadyrl.environments.code.task import CodeSettings, CodeTask
from steadyrl.loop.rewards.combine import make_terms, score_texts
from tests.environments.code.mbpp_like import PAIR, REFUSED, SHAPES, record


@pytest.fixture(scope="module")
def sandbox():
    with open_sandbox(SandboxSettings(wall_s=2.0)) as pool:
        yield pool


def write(path, records):
    path.write_text("".join(json.dumps(line) + "\n" for line in records))
    return path


@pytest.mark.parametrize("shape", SHAPES)
def test_a_right_solution_scores_1_and_a_wrong_one_less(sandbox, tmp_path, shape):
    solution, wrong, setup, tests = SHAPES[shape]
    [problem] = load_problems(write(tmp_path / "p.jsonl", [record(1, solution, tests, setup)]))
    right = judge(sandbox, program(solution, problem), problem)
    assert (right.passed, right.total, right.note) == (len(tests), len(tests), "")
    assert judge(sandbox, program(wrong, problem), problem).passed < len(tests)
    empty = judge(sandbox, f"def {problem.entry_point}(*_, **__):\n    pass\n", problem)
    assert empty.passed == 0


def test_a_task_of_all_these_shapes_can_be_trained_on(tmp_path):
    lines = [record(i, code, tests, setup) for i, (code, _, setup, tests) in enumerate(SHAPES.values())]
    task = CodeTask(CodeSettings(problems=str(write(tmp_path / "p.jsonl", lines))))
    problems = [*task.problems("train"), *task.problems("heldout")]
    assert len(problems) == len(SHAPES)
    rollouts = score_texts([(p, task.gold(p)) for p in problems], make_terms({"tests": 1.0}, task))
    assert [r.parts["tests"] for r in rollouts] == [1.0] * len(SHAPES)


@pytest.mark.parametrize("shape", REFUSED)
def test_what_cannot_be_judged_without_trusting_the_answer_is_refused_with_the_reason(tmp_path, shape):
    solution, tests, said = REFUSED[shape]
    plain = record(1, "def f(x):\n    return x", ["assert f(1) == 1"])
    path = write(tmp_path / "p.jsonl", [plain, record(7, solution, tests)])
    with pytest.raises(DataError, match=r"tests of 1 of task.args.problems cannot be judged from outside") as error:
        CodeTask(CodeSettings(problems=str(path)))
    assert f"'MBPP/7': they {said}" in str(error.value)


@pytest.mark.parametrize(
    ("solution", "tests"),
    [
        ("def f(n):\n    yield from range(n)", ["assert list(f(3)) == [0, 1, 2]"]),
        ("def f(xs):\n    xs.sort()", ["xs = [2, 1]\nf(xs=xs)\nassert xs == [1, 2]"]),
        ("def f(x):\n    return x", ["assert (x := f(1)) == 1\nassert x == 1"]),
    ],
)
def test_tests_that_their_own_solution_does_not_pass_are_refused_when_loaded(tmp_path, solution, tests):
    path = write(
        tmp_path / "p.jsonl", [record(1, "def g(x):\n    return x", ["assert g(1) == 1"]), record(7, solution, tests)]
    )
    with pytest.raises(DataError, match=r"own solution does not pass them: 'MBPP/7': \d of \d asserts do not hold"):
        CodeTask(CodeSettings(problems=str(path)))


def test_a_name_that_nothing_defines_is_refused_with_its_line(tmp_path):
    lines = [
        record(1, "def f(x):\n    return x", ["assert f(1) == 1"]),
        record(2, "def g(x):\n    return x", ["assert g(1) == limit"]),
    ]
    with pytest.raises(DataError, match="line 2: the tests use 'limit', which neither they nor the solution define"):
        load_problems(write(tmp_path / "p.jsonl", lines))


def test_an_answer_cannot_end_the_loops_of_the_tests(sandbox, tmp_path):
    tests = ["assert all(map(lambda p: f(p[0]) == p[1], [(1, 2), (2, 4)]))"]
    [problem] = load_problems(write(tmp_path / "p.jsonl", [record(1, "def f(x):\n    return 2 * x", tests)]))
    assert judge(sandbox, program("def f(x):\n    return 2 * x", problem), problem).passed == 1
    assert judge(sandbox, program("def f(x):\n    raise StopIteration", problem), problem).passed == 0


def test_objects_that_equal_everything_do_not_pass_tests_that_use_them(sandbox, tmp_path):
    solution, _, setup, tests = SHAPES["methods and attributes of the solution's class"]
    [problem] = load_problems(write(tmp_path / "p.jsonl", [record(1, solution, tests, setup)]))
    forged = (
        "class Stack:\n    def __init__(self, *_): pass\n    def __eq__(self, other): return True\n"
        "    def __getattr__(self, name): return self\n    def __call__(self, *_): return self\n"
        "    def __len__(self): return 2\ndef stack_of(items):\n    return Stack()\n"
    )
    assert judge(sandbox, forged, problem).passed == 0


def test_an_answer_without_the_class_that_the_tests_use_passes_nothing(sandbox, tmp_path):
    solution, _, setup, tests = SHAPES["objects of the solution's class as arguments"]
    [problem] = load_problems(write(tmp_path / "p.jsonl", [record(1, solution, tests, setup)]))
    verdict = judge(sandbox, "def chain(pairs, n):\n    return 21\n", problem)
    assert (verdict.passed, verdict.note != "") == (0, True)


def test_the_solutions_helpers_are_the_authors_and_not_the_answers(sandbox, tmp_path):
    """Were they the answer's, one that has both return 0 would pass."""
    solution, _, setup, tests = SHAPES["another function of the solution"]
    [problem] = load_problems(write(tmp_path / "p.jsonl", [record(1, solution, tests[:1], setup)]))
    assert judge(sandbox, "def double(x):\n    return 0\ndef fourfold(x):\n    return 0\n", problem).passed == 0


@pytest.mark.parametrize(
    ("code", "lacking"),
    [
        ("assert f(1) == limit", {"f", "limit"}),
        ("import math as m\nassert m.pi > n", {"n"}),
        ("def check(c):\n    x = 1\n    assert c(x) == y\ncheck(f)", {"y", "f"}),
        ("def check():\n    global y\n    y = 2\ncheck()\nassert y", set()),
        ("assert [x for x in f(1)] == [z(lambda a: a + b)]", {"f", "z", "b"}),
        ("from math import *\nassert pi", set()),
        ("try:\n    f(1)\nexcept Odd as error:\n    assert error", {"f", "Odd"}),
        ("match f(1):\n    case [a, *b]:\n        assert a", {"f"}),
        (PAIR + "assert Pair(1, 2).a == 1", set()),
    ],
)
def test_the_names_that_code_does_not_define_are_found(code, lacking):
    assert names_lacking(code) == lacking
