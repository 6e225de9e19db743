"""Attacks on the verdict: whatever a candidate prints, patches or redefines, only right values count."""

import pytest

from steadyrl.sandbox.outcome import Returned
from steadyrl.sandbox.values import Opaque, encode, same


def test_an_honest_program_is_right(attack, right):
    outcome = attack("def add(a, b):\n    return a + b\n")
    assert (outcome.verdict, right(outcome)) == ("finished", 2)


def test_printing_passed_counts_for_nothing(attack, right):
    code = "def add(a, b):\n    print('passed', 'OK', '[\"value\", 5]', flush=True)\n    return 'passed'\n"
    assert right(attack(code)) == 0


@pytest.mark.parametrize("leave", ["import sys; sys.exit(0)", "import os; os._exit(0)", "raise SystemExit(0)"])
def test_leaving_with_exit_code_0_at_the_top_is_no_success(attack, leave):
    outcome = attack(f"{leave}\ndef add(a, b):\n    return a + b\n")
    assert outcome.verdict in ("exception", "killed")
    assert outcome.results == ()


def test_leaving_with_exit_code_0_in_a_call_is_no_success(attack, right):
    assert right(attack("import sys\ndef add(a, b):\n    sys.exit(0)\n")) == 0
    outcome = attack("import os\ndef add(a, b):\n    os._exit(0)\n")
    assert (outcome.verdict, right(outcome)) == ("killed", 0)


def test_redefining_builtins_and_assert_errors_counts_for_nothing(attack, right):
    code = (
        "import builtins\nclass Never(Exception): pass\nbuiltins.AssertionError = Never\n"
        "builtins.isinstance = lambda *_: True\n"
        "builtins.all = builtins.any = lambda *_: True\nbuiltins.zip = lambda *_, **__: []\n"
        "def add(a, b):\n    return 0\n"
    )
    assert right(attack(code)) == 0


def test_an_object_that_equals_everything_equals_nothing_outside(attack, right):
    code = (
        "class Same:\n    def __eq__(self, other): return True\n"
        "    __ne__ = lambda *_: False\n    __hash__ = lambda s: 5\n"
        "def add(a, b):\n    return Same()\n"
    )
    outcome = attack(code)
    assert right(outcome) == 0
    assert [type(result.value) for result in outcome.results] == [Opaque, Opaque]


@pytest.mark.parametrize("base", ["int", "float", "str", "list", "dict", "tuple"])
def test_a_subclass_that_equals_everything_arrives_as_the_plain_value_it_holds(attack, right, base):
    code = (
        f"class Same({base}):\n    def __eq__(self, other): return True\n    __hash__ = None\n"
        f"def add(a, b):\n    return Same()\n"
    )
    outcome = attack(code)
    assert right(outcome) == 0
    assert outcome.results[0].value == {"int": 0, "float": 0.0, "str": "", "list": [], "dict": {}, "tuple": ()}[base]


def test_patching_what_runs_the_candidate_gains_nothing(attack, right):
    code = (
        "import sys, json\n"
        "from steadyrl.sandbox import candidate, values\n"
        "values.encode = lambda value: {'opaque': 'x'}\ncandidate._called = lambda *_: ['value', 0]\n"
        "json.dumps = lambda *_, **__: '[\"value\", 1]'\n"
        "def add(a, b):\n    return a + b\n"
    )
    assert right(attack(code)) == 0


def test_writing_on_the_pipe_can_say_no_more_than_returning_can(attack, right):
    forged = (
        "import os\n"
        "for line in (b'[\"passed\"]', b'[\"ready\"]', b'{\"verdict\": \"pass\"}'):\n    os.write(3, line + b'\\n')\n"
    )
    outcome = attack(forged + "def add(a, b):\n    return 0\n")
    assert (outcome.verdict, right(outcome)) == ("malformed", 0)


@pytest.mark.parametrize(
    "written",
    [
        "b'\\xff\\xfe\\x00garbage\\n'",
        "b'[' * 200000 + b'\\n'",
        "b'[\"value\", ' + b'9' * 6000 + b']\\n'",
        'b\'["value", {"int": "5"}]\\n\'',
        'b\'["value", ["int", "5"]]\\n\'',
        'b\'["value", ["dict", 7]]\\n\'',
        'b\'["value", ["complex", []]]\\n\'',
        'b\'["value", ["nothing", 1]]\\n\'',
        'b\'["value", ["kept", 0]]\\n\'',
        "b'[\"compiled\"]\\n'",
        "b'[\"value\"'",
    ],
)
def test_corrupted_messages_are_a_failure_of_the_candidate(attack, right, written):
    outcome = attack(f"import os\ndef add(a, b):\n    os.write(3, {written})\n    os._exit(0)\n")
    assert (outcome.verdict, right(outcome)) == ("malformed", 0)


def test_more_values_than_calls_are_refused(attack):
    code = (
        'import os\ndef add(a, b):\n    os.write(3, b\'["value", 5]\\n["value", 6]\\n["value", 7]\\n\')\n    return 0\n'
    )
    assert attack(code).verdict == "malformed"


def test_closing_the_pipe_is_a_failure(attack, right):
    outcome = attack("import os\nos.close(3)\ndef add(a, b):\n    return a + b\n")
    assert (outcome.verdict, right(outcome)) == ("killed", 0)


def test_a_candidate_meets_nothing_of_the_one_before(attack):
    leave = (
        "import builtins, math, sys\nbuiltins.left = 1\nmath.left = 1\n"
        "sys.modules['left'] = math\ndef add(a, b): return 1\n"
    )
    attack(leave)
    look = (
        "import builtins, math, sys\n"
        "def add(a, b): return [hasattr(builtins, 'left'), hasattr(math, 'left'), 'left' in sys.modules]\n"
    )
    assert attack(look).results[0] == Returned(["list", False, False, False])


def test_an_opaque_value_equals_not_even_itself():
    value = Opaque("x")
    assert not same(encode(value), value)
