import pytest

from steadyrl.environments.code.generated import generated_problems
from steadyrl.environments.code.judge_tests import judge
from steadyrl.environments.code.problems import program
from steadyrl.environments.code.sandbox.choose import SandboxSettings, open_sandbox


def ids(*arguments, **named):
    return {problem.id for problem in generated_problems(*arguments, **named)}


def test_the_halves_share_no_problem_whatever_the_seed():
    first, second = ids(600, 0, half="a"), ids(600, 7, half="b")
    assert not first & second
    everything = ids(1200, 0)
    assert everything & first
    assert everything & second


def test_a_half_is_about_half_of_all_problems():
    whole = ids(300, 0, steps="one")
    assert ids(300, 0, steps="one", half="a") | ids(300, 0, steps="one", half="b") == whole
    assert 0.4 < len(ids(300, 0, steps="one", half="a")) / len(whole) < 0.6


@pytest.mark.parametrize(("steps", "low", "high"), [("one", 0, 0), ("two", 200, 200), ("mixed", 20, 120)])
def test_problems_have_the_steps_that_were_asked_for(steps, low, high):
    found = [problem for problem in generated_problems(200, 3, steps) if ", then " in problem.id]
    assert low <= len(found) <= high


def test_what_is_generated_follows_from_the_seed():
    assert [p.id for p in generated_problems(50, 4)] == [p.id for p in generated_problems(50, 4)]
    assert ids(50, 4) != ids(50, 5)


@pytest.mark.jail
def test_two_steps_are_solved_by_their_canonical_solution_and_by_neither_step_alone():
    sandbox = open_sandbox(SandboxSettings())
    problems = generated_problems(60, 1, "two", "b")
    assert all(judge(sandbox, program(p.canonical_solution, p), p).passed == len(p.cases) for p in problems)
    chosen = next(p for p in generated_problems(300, 1, "two") if p.id.startswith("one-expression/square, then add "))
    n = chosen.id.split()[-2].rstrip(":")
    verdicts = [judge(sandbox, program(text, chosen), chosen) for text in ("x ** 2", f"x + {n}", f"x ** 2 + {n}")]
    assert [verdict.passed == verdict.total for verdict in verdicts] == [False, False, True]
