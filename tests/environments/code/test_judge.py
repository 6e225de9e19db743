import gzip
import json
import random
from pathlib import Path

import pytest

from steadyrl.core.errors import DataError
from steadyrl.environments.code.judge_tests import judge
from steadyrl.environments.code.problems import Case, CodeProblem, from_asserts, is_python, program
from steadyrl.environments.code.published import load_problems
from steadyrl.environments.code.sandbox.choose import SandboxSettings, open_sandbox
from steadyrl.environments.code.sandbox.outcome import Returned
from steadyrl.environments.code.sandbox.pool import Limits, Sandbox
from steadyrl.loop.tasks.jsonl import Line
from tests import needs
from tests.environments.code.sandbox.memory_scan import SCAN, secret


@pytest.fixture(scope="module")
def sandbox():
    needs.skip_without("jail")
    with open_sandbox(SandboxSettings(wall_s=2.0)) as pool:
        yield pool


def problem(*cases, script="", **more):
    return CodeProblem("p", "prompt", "f", cases=tuple(Case(a, e) for a, e in cases), script=script, **more)


def test_each_right_value_counts_once(sandbox):
    found = judge(sandbox, "def f(x):\n    return x * 2", problem(((1,), 2), ((2,), 4), ((3,), 7)))
    assert (found.passed, found.total) == (2, 3)
    assert found.note == "f(3) is 6, expected 7"


def test_a_prefix_of_the_results_is_not_all_of_them(sandbox):
    code = "import os\ndef f(x):\n    if x == 3: os._exit(0)\n    return x"
    found = judge(sandbox, code, problem(((1,), 1), ((2,), 2), ((3,), 3), ((4,), 4)))
    assert (found.passed, found.total) == (2, 4)


def test_a_program_that_always_returns_none_passes_nothing(sandbox):
    asked = problem(((1,), 1), ((0,), None))
    assert judge(sandbox, "def f(x): pass", asked).passed == 0
    assert judge(sandbox, "def f(x):\n    return x or None", asked).passed == 2


def test_none_everywhere_is_right_where_it_is_asked_for(sandbox):
    assert judge(sandbox, "def f(x): pass", problem(((1,), None), ((0,), None))).passed == 2


@pytest.fixture(scope="module", params=["bubblewrap", "landlock"])
def patient(request):
    """Return a pool in a jail that holds here, whose programs have the time to read all their memory."""
    needs.skip_without(request.param)
    with Sandbox(request.param, Limits(wall_s=60.0, cpu_s=30, memory_mib=512)) as pool:
        yield pool


def secrets_seen(sandbox, asked, argument):
    """Return which secrets an answer finds in all its memory, after right answers were judged in the same worker."""
    for _ in range(4):
        right = judge(sandbox, program(asked.canonical_solution, asked), asked)
        assert right.passed == right.total
    verdict = judge(sandbox, f"{SCAN}\ndef f(*_):\n    return scan()\n", asked)
    assert verdict.passed == 0
    found, read = next(r for r in verdict.outcome.results if isinstance(r, Returned)).value
    assert read > 8 << 20
    assert (argument in found) or not argument
    return set(found) - {argument}


def test_nothing_of_cases_and_solutions_lies_in_an_answers_memory(patient):
    argument, expected, solution = secret(), secret(), secret()
    code = f"def f(x, n=2):\n    KEPT = {solution!r}\n    return {expected[:9]!r} + {expected[9:]!r} * (n == 2)\n"
    asked = problem(((argument,), expected), ((1,), expected), canonical_solution=code)
    assert secrets_seen(patient, asked, argument) == set()


def test_nothing_of_hidden_test_scripts_and_solutions_lies_in_an_answers_memory(patient):
    expected, solution, comment, given = secret(), secret(), secret(), secret()
    code = f"def f(n):\n    KEPT = {solution!r}\n    return {expected[:9]!r} + {expected[9:]!r} * (n < 9)\n"
    script = f"assert f(1) == EXPECTED  # {comment}\nfor i in range(5):\n    assert f(i)[2:] == {expected!r}[2:]\n"
    asked = problem(script=script, canonical_solution=code, preamble=f"EXPECTED = {expected!r}\nOTHER = {given!r}\n")
    assert secrets_seen(patient, asked, "") == set()


def test_an_answer_that_replays_asserts_found_in_memory_passes_nothing(patient):
    """The attack that once passed all hidden asserts: read the tests in freed memory, and return what they expect."""
    numbers = random.Random(7).sample(range(10**6), 8)
    # A job of this size leaves its text in freed memory that the next one does not overwrite.
    script = "# why each of these holds\n" * 3000
    script += "".join(f"assert f({i}) == {number}\n" for i, number in enumerate(numbers))
    thief = SCAN.replace('rb"S[E]CRE[T]-[0-9a-f]{16}"', r'rb"assert\s+f\([0-9]+\) == [0-9]+"') + (
        "STOLEN = [text.split() for text in scan()[0]]\n"
        "def f(x):\n    return next((int(w[3]) for w in STOLEN if w[1] == f'f({x})'), 0)\n"
    )
    table = f"def f(x):\n    return {numbers}[x]\n"
    asked = problem(script=script, canonical_solution=table)
    for _ in range(3):
        assert judge(patient, table, asked).passed == 8
    assert judge(patient, thief, asked).passed == 0


SCRIPT = """
import math
def check(candidate):
    for i in range(3):
        assert candidate(i) == i + 1
    assert math.fabs(candidate(10) - 11) < 1e-6, "close"
    assert not candidate(-1)
check(candidate)
"""


def test_an_assert_in_a_loop_counts_once_by_the_share_of_its_rounds(sandbox):
    found = judge(sandbox, "def f(x):\n    return x + 1", problem(script=SCRIPT))
    assert (found.passed, found.total, found.note) == (3, 3, "")
    found = judge(sandbox, "def f(x):\n    return x + 1 if x < 2 else 0", problem(script=SCRIPT))
    assert (found.passed, found.total) == (pytest.approx(2 / 3 + 0 + 1), 3)
    assert found.note == "2 of 3 asserts do not hold"


LOOP = (
    "for x in candidate(1):\n    assert x >= 0\nassert candidate(2) == [2]\nassert candidate(3) == [3]\n"
    "assert candidate(4) == [4]\n"
)


@pytest.mark.parametrize(
    ("code", "passed"),
    [
        ("def f(x):\n    return [x]", 4),
        ("def f(x):\n    return [0] * 5000", 1),  # many rounds that hold are one test
        ("def f(x):\n    return [0] * 5000 if x == 1 else [x]", 4),
        ("def f(x):\n    return [0] * 4999 + [-1] if x == 1 else [x]", 3 + 4999 / 5000),
        ("def f(x):\n    return [] if x == 1 else [x]", 3),  # no round at all is none that holds
    ],
)
def test_what_an_answer_has_the_tests_loop_over_does_not_change_their_weight(sandbox, code, passed):
    found = judge(sandbox, code, problem(script=LOOP))
    assert (found.passed, found.total) == (pytest.approx(passed, rel=1e-12), 4)
    assert (found.passed == found.total) == (found.note == "") == (passed == 4)


def test_tests_that_end_early_count_what_was_not_reached_and_one_more(sandbox):
    script = "for x in candidate(1):\n    assert x >= 0\n    assert x < 9 - 1 / x\ny = 1 // candidate(2)[0]\nassert y\n"
    found = judge(sandbox, "def f(x):\n    return [x]", problem(script=script.replace("candidate(2)[0]", "1")))
    assert (found.passed, found.total) == (3, 3)
    found = judge(sandbox, "def f(x):\n    return [1, 1, 0, 1] if x == 1 else [0]", problem(script=script))
    assert (found.passed, found.total) == (1 + 3 / 4, 4)
    assert found.note == "2 of 3 asserts do not hold"


def test_tests_that_end_early_behind_the_last_assert_do_not_pass(sandbox):
    script = "assert candidate(1) == 1\n1 // candidate(2)\n"
    found = judge(sandbox, "def f(x):\n    return x % 2", problem(script=script))
    assert (found.passed, found.total, found.note) == (1, 2, "the tests do not come to their end")


def test_thousands_of_asserts_that_all_hold_are_all_passed(sandbox):
    script = "\n".join(f"for y in range({i % 7 + 1}):\n    assert candidate({i}) == {i}" for i in range(300))
    found = judge(sandbox, "def f(x):\n    return x", problem(script=script))
    assert found.passed == found.total == 300


def test_calls_that_depend_on_results_are_found(sandbox):
    script = "first = candidate(1)\nsecond = candidate(first)\nassert second == 4\nassert candidate(second) == 8\n"
    assert judge(sandbox, "def f(x):\n    return 2 * x", problem(script=script)).passed == 2


def test_a_test_that_expects_an_exception_gets_one(sandbox):
    script = (
        "try:\n    candidate(0)\n    ok = False\nexcept ZeroDivisionError:\n    ok = True\n"
        "assert ok\nassert candidate(1) == 1\n"
    )
    assert judge(sandbox, "def f(x):\n    return 1 // x", problem(script=script)).passed == 2
    assert judge(sandbox, "def f(x):\n    return 1", problem(script=script)).passed == 1


def test_leading_the_test_code_astray_does_not_shrink_the_number_of_tests(sandbox):
    script = (
        "assert candidate(0) == 0\nx = candidate(1) + 1\nassert x == 2\n"
        "assert candidate(2) == 2\nassert candidate(3) == 3\n"
    )
    found = judge(sandbox, "def f(x):\n    return x if x == 0 else 'x'", problem(script=script))
    assert (found.passed, found.total) == (1, 5)  # the four asserts, and the end that was not reached


@pytest.mark.parametrize(
    "code",
    [
        "class A:\n    def __eq__(self, o): return True\n    def __bool__(self): return True\n"
        "    def __lt__(self, o): return True\n"
        "    def __sub__(self, o): return self\n    def __float__(self): return 0.0\ndef f(x):\n    return A()",
        "def f(x):\n    raise AssertionError",
        "import sys\ndef f(x):\n    sys.exit(0)",
        "def f(x):\n    return 'passed'",
    ],
)
def test_test_code_cannot_be_fooled_either(sandbox, code):
    assert judge(sandbox, code, problem(script=SCRIPT)).passed == 0


def test_huge_and_odd_values_can_be_told_to_a_reader(sandbox):
    code = "def f(x):\n    return [10 ** 5000, [0] * 1000, 10 ** 400, object()][x]"
    asked = problem(((0,), 1.5), ((1,), 1), ((2,), 1.5), ((3,), 1))
    assert judge(sandbox, code, asked).note == "f(0) is an integer of 16610 bits, expected 1.5"


def test_asserts_become_cases_where_they_can():
    cases, script = from_asserts(
        ["assert f(1, [2]) == (3, {'a': -4})", "assert f(0) == None"], "f", Line(Path("x"), 1, {})
    )
    assert (cases, script) == ((Case((1, [2]), (3, {"a": -4})), Case((0,), None)), "")
    for line in (
        "assert f(1) < 2",
        "assert f(x=1) == 2",
        "assert g(1) == 2",
        "assert f(a) == 2",
        "assert f(1) == 2 == 2",
    ):
        assert from_asserts([line], "f", Line(Path("x"), 1, {})) == ((), f"\n{line}")


STARTER = "import math\n\ndef f(x):\n    '''Double it.'''\n"


@pytest.mark.parametrize(
    ("answer", "starter", "expected"),
    [
        ("    return 2 * x\n", STARTER, STARTER + "    return 2 * x\n"),
        ("    return 2\n\ndef g():\n    pass\n", STARTER, STARTER + "    return 2\n"),
        ("    return 2\nprint(f(1))", STARTER, STARTER + "    return 2"),
        ("def f(x):\n    return 2 * x", STARTER, STARTER + "\ndef f(x):\n    return 2 * x"),
        ("Sure:\n```python\ndef f(x):\n    return 1\n```\nand\n```\nother\n```", "", "def f(x):\n    return 1\n"),
        ("```\n    return 3\n```", STARTER, STARTER + "    return 3\n"),
        ("```python\ndef f(x):\n    return 1", "", "def f(x):\n    return 1"),
        (" x + 3", "def f(x):\n    return", "def f(x):\n    return x + 3"),
        ("", "", ""),
    ],
)
def test_answers_become_programs(answer, starter, expected):
    assert program(answer, CodeProblem("p", "prompt", "f", starter_code=starter)) == expected


def write(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


OURS = {"id": "a", "prompt": "double", "entry_point": "f", "tests": [[[1], 2]]}
HUMAN_EVAL = {
    "task_id": "HumanEval/x",
    "prompt": 'def f(x):\n    """Double."""\n',
    "entry_point": "f",
    "canonical_solution": "    return 2 * x\n",
    "test": "def check(candidate):\n    assert candidate(1) == 2\n    assert True, 'said'\n",
}
MBPP = {
    "task_id": 7,
    "text": "Double it.",
    "code": "def f(x):\r\n    return 2 * x",
    "test_list": ["assert f(1) == 2", "assert f(2) == 4"],
    "test_setup_code": "",
    "challenge_test_list": [],
}


@pytest.mark.parametrize(
    ("record", "total"), [(OURS | {"canonical_solution": "def f(x):\n    return 2 * x"}, 1), (HUMAN_EVAL, 1), (MBPP, 2)]
)
def test_files_of_every_format_load_and_their_solutions_pass(tmp_path, sandbox, record, total):
    [loaded] = load_problems(write(tmp_path / "p.jsonl", record))
    found = judge(sandbox, program(loaded.canonical_solution, loaded), loaded)
    assert (found.passed, found.total) == (total, total)
    assert judge(sandbox, program("    pass\n", loaded), loaded).passed == 0


def test_mbpp_shows_one_test_and_keeps_the_others(tmp_path):
    [loaded] = load_problems(write(tmp_path / "p.jsonl", MBPP))
    assert loaded.id == "MBPP/7"
    assert "assert f(1) == 2" in loaded.prompt and "f(2)" not in loaded.prompt


def test_setup_and_imports_of_mbpp_may_be_null(tmp_path):
    [plain] = load_problems(write(tmp_path / "p.jsonl", MBPP))
    [loaded] = load_problems(write(tmp_path / "p.jsonl", MBPP | {"test_setup_code": None, "test_imports": None}))
    assert loaded == plain and loaded.script == ""


def test_the_sanitized_mbpp_with_imports_runs_as_a_script(tmp_path, sandbox):
    record = {k: v for k, v in MBPP.items() if k not in ("text", "test_setup_code")} | {
        "prompt": "Double it.",
        "test_imports": ["import math"],
        "test_list": ["assert math.isclose(f(1.0), 2.0)"],
    }
    [loaded] = load_problems(write(tmp_path / "p.jsonl", record))
    assert judge(sandbox, "def f(x):\n    return 2 * x", loaded).passed == 1


def test_packed_files_load(tmp_path):
    path = tmp_path / "p.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(HUMAN_EVAL).encode()))
    assert [p.id for p in load_problems(path)] == ["HumanEval/x"]
    path.write_bytes(b"not packed")
    with pytest.raises(DataError, match="no gzip file"):
        load_problems(path)
    packed = bytearray(gzip.compress(json.dumps([{**HUMAN_EVAL, "task_id": str(i)} for i in range(99)]).encode()))
    packed[10:40] = b"\xff" * 30
    path.write_bytes(packed)
    with pytest.raises(DataError, match="no gzip file"):
        load_problems(path)


@pytest.mark.parametrize(
    ("good", "change", "said"),
    [
        (OURS, {"tests": []}, "line 2: 'tests' is"),
        (OURS, {"tests": [[1, 2]]}, "line 2: the test"),
        (OURS, {"tests": ["assert f("]}, "line 2: the tests are not valid Python"),
        (OURS, {"entry_point": 3}, "line 2: 'entry_point' is a number"),
        (OURS, {"tests": ["x = 1", "f(1)"]}, "line 2: the tests have no assert"),
        (OURS, {"entry_point": "f g("}, "line 2: 'entry_point' is 'f g\\('; expected the name of a function"),
        (OURS, {"entry_point": "class"}, "line 2: 'entry_point' is 'class'"),
        (OURS, {"canonical": "x"}, "line 2: unknown key 'canonical'; did you mean 'canonical_solution'"),
        (OURS, {"Starter_code": "x"}, "line 2: unknown key 'Starter_code'; did you mean 'starter_code'"),
        (HUMAN_EVAL, {"test": "def check(: pass"}, "line 2: the tests are not valid Python"),
        (HUMAN_EVAL, {"test": "assert True"}, "line 2: 'test' has no function check"),
        (HUMAN_EVAL, {"test": "def check(candidate):\n    candidate(1)\n"}, "line 2: the tests have no assert"),
        (HUMAN_EVAL, {"entry_point": "f g("}, "line 2: 'entry_point' is 'f g\\('"),
        (HUMAN_EVAL, {"entry_point": "g"}, "line 2: 'prompt' does not define the function 'g'"),
        (HUMAN_EVAL, {"prompt": " "}, "line 2: 'prompt' is empty"),
        (MBPP, {"test_list": "assert"}, "line 2: 'test_list' is"),
        (MBPP, {"code": "x = 1"}, "line 2: no test calls a function"),
        (MBPP, {"test_list": ["f(1)", "f(2)"]}, "line 2: the tests have no assert"),
        (MBPP, {"test_setup_code": "if 1:", "test_list": ["assert f(1)"]}, "line 2: the tests are not valid Python"),
        (MBPP, {"test_setup_code": 3}, "line 2: 'test_setup_code' is a number; expected text"),
        (MBPP, {"test_imports": "import math"}, "line 2: 'test_imports' is 'import math'; expected a list of lines"),
        (MBPP, {"test_imports": [None]}, r"line 2: 'test_imports' is \[None\]; expected a list of lines"),
        (OURS, {}, "line 2: the id 'a' is there twice, first in line 1"),
    ],
)
def test_malformed_lines_are_named(tmp_path, good, change, said):
    with pytest.raises(DataError, match=said):
        load_problems(write(tmp_path / "p.jsonl", good, good | change))


ABSURD = ["not " * 100_000 + "f(1)", "not " * 2_000 + "f(1)", "(" * 9_000, "f(1) == " + "1+" * 50_000 + "1", "f(1)\0"]


@pytest.mark.parametrize("test", [*ABSURD, "f('\ud800')"], ids=["deep", "less deep", "brackets", "sum", "null", "half"])
def test_tests_that_python_cannot_read_are_named_by_line(tmp_path, test):
    for good, change in (
        (OURS, {"tests": [f"assert {test}"]}),
        (MBPP, {"test_list": [f"assert {test}"]}),
        (HUMAN_EVAL, {"test": f"def check(candidate):\n    assert {test}\n"}),
    ):
        with pytest.raises(DataError, match="line 2: "):
            load_problems(write(tmp_path / "p.jsonl", good, good | change | {"id": "b", "task_id": "b"}))


def test_code_of_an_author_that_python_cannot_read_is_no_python():
    for text in ("not " * 100_000 + "1", "(" * 9_000, "1+" * 50_000 + "1", "1\0", "'\ud800'"):
        assert not is_python(f"x = {text}")


def test_tests_as_values_that_are_nested_too_deeply_are_named_by_line(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"id": "a", "prompt": "p", "entry_point": "f", "tests": [[[' + "[" * 700 + "]" * 700 + "], 1]]}\n")
    with pytest.raises(DataError, match="line 1: "):
        load_problems(path)


def test_other_keys_of_the_author_are_passed_over(tmp_path):
    own = OURS | {"level": 3, "topic": "numbers", "author": "me", "idea": ""}
    assert [p.id for p in load_problems(write(tmp_path / "p.jsonl", own))] == ["a"]


def test_files_without_problems_are_named(tmp_path):
    with pytest.raises(DataError, match="has no problem"):
        load_problems(write(tmp_path / "p.jsonl"))
    with pytest.raises(DataError, match="line 1: has question"):
        load_problems(write(tmp_path / "p.jsonl", {"question": "?"}))
    with pytest.raises(DataError, match="there is no file"):
        load_problems(tmp_path / "none.jsonl.gz")


SORTS = "def f(xs):\n    return sorted(xs)"
COUNTS = (  # leaves each value once, and returns how many there are
    "def f(xs):\n    seen = sorted(set(xs))\n    xs[:] = seen + xs[len(seen):]\n    return len(seen)"
)


@pytest.mark.parametrize("solution", [None, SORTS, "def f(xs):\n    xs.sort()\n    return xs"])
@pytest.mark.parametrize(
    "script",
    [
        "for xs in ([5, 4, 9], [2, 1]):\n    assert f(xs) == sorted(xs)\n",
        "xs = [5, 4, 9]\nresult = f(xs)\nassert result == sorted(xs)\n",
        "xs = [5, 4, 9]\nys = xs\nassert f(xs) == sorted(ys)\n",
        "def check(candidate):\n    xs = [5, 4]\n    assert len(candidate(xs)) == len(xs)\ncheck(candidate)\n",
        "xs = [5, 4]\nout = f(xs)\nassert all(x in out for x in xs)\n",
    ],
)
def test_an_answer_cannot_choose_what_it_is_compared_with_by_changing_its_argument(sandbox, script, solution):
    asked = problem(script=script, canonical_solution=solution)
    for code in (SORTS, "def f(xs):\n    xs.sort()\n    return xs"):
        assert judge(sandbox, code, asked).passed == 1
    found = judge(sandbox, "def f(xs):\n    xs.clear()\n    return xs", asked)
    assert found.passed == 0
    assert "changes the arguments" in found.note
    assert judge(sandbox, "def f(xs):\n    return []", asked).passed == 0


@pytest.mark.parametrize("solution", [None, "def f(xs):\n    xs.sort()"])
@pytest.mark.parametrize(
    "script",
    [
        "xs = [3, 1, 2]\nf(xs)\nassert xs == [1, 2, 3]\n",
        "def check(candidate):\n    xs = [3, 1, 2]\n    candidate(xs)\n    assert xs == [1, 2, 3]\ncheck(candidate)\n",
    ],
)
def test_a_function_that_works_in_place_passes_whatever_it_returns_beside(sandbox, script, solution):
    asked = problem(script=script, canonical_solution=solution)
    for code in ("def f(xs):\n    xs.sort()", "def f(xs):\n    xs.sort()\n    return xs"):
        assert judge(sandbox, code, asked).passed == 1
    assert judge(sandbox, "def f(xs):\n    return sorted(xs)", asked).passed == 0


def test_a_function_that_changes_its_argument_and_returns_a_value_is_judged_by_what_the_solution_leaves(sandbox):
    script = "xs = [1, 1, 2]\nn = f(xs)\nassert xs[:n] == [1, 2]\nassert n == len(set(xs))\n"
    asked = problem(script=script, canonical_solution=COUNTS)
    assert judge(sandbox, COUNTS, asked).passed == 2
    assert judge(sandbox, "def f(xs):\n    xs.clear()\n    return 0", asked).passed == 0


def test_an_answer_that_changes_what_it_must_leave_alone_fails(sandbox):
    asked = problem(script="xs = [2, 1]\nassert f(xs) == [1, 2]\nassert xs == [2, 1]\n", canonical_solution=SORTS)
    assert judge(sandbox, SORTS, asked).passed == 2
    assert judge(sandbox, "def f(xs):\n    xs.sort()\n    return xs", asked).passed == 1


NAMES = (
    "number kind steps taken take plain call changed refused in_place update _ours _refuse _steps value wire type_name "
    "get set __dict__ __name__ __self__ x"
).split()


@pytest.mark.parametrize("name", NAMES)
def test_an_object_may_have_any_attribute(sandbox, name):
    """Names that our own stand-ins use are no exception."""
    code = f"class Box:\n    pass\ndef f(n):\n    box = Box()\n    box.{name} = {{'x': n}}\n    return box\n"
    script = (
        f"box = f(41)\nassert box.{name} == {{'x': 41}}\nbox.{name} = {{'x': 42}}\nassert box.{name} == {{'x': 42}}"
    )
    asked = problem(script=script)
    assert judge(sandbox, code, asked).passed == 2
    assert judge(sandbox, code.replace("'x': n", "'x': 0"), asked).passed == 1


def test_the_attributes_of_an_object_can_be_looked_at_as_a_dict(sandbox):
    code = "class Box:\n    def __init__(self, n):\n        self.number = n\ndef f(n):\n    return Box(n)\n"
    assert judge(sandbox, code, problem(script="assert vars(f(3)) == {'number': 3}")).passed == 1
