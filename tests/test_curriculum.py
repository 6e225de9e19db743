import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steadyrl.curriculum import uniform

LIGHT = settings(max_examples=100, deadline=None, derandomize=True)


@pytest.mark.parametrize("problems", [1, 2, 7, 20])
def test_every_pass_draws_every_problem_once(problems):
    drawn = uniform(problems, 0, 3 * problems, seed=0)
    for turn in range(3):
        assert sorted(drawn[turn * problems : (turn + 1) * problems]) == list(range(problems))


@LIGHT
@given(st.integers(1, 9), st.integers(0, 30), st.integers(0, 20), st.integers(0, 20), st.integers(0, 3))
def test_drawing_in_two_goes_equals_drawing_in_one(problems, drawn, first, second, seed):
    one = uniform(problems, drawn, first + second, seed)
    two = uniform(problems, drawn, first, seed) + uniform(problems, drawn + first, second, seed)
    assert one == two
    assert len(one) == first + second


def test_passes_have_orders_of_their_own():
    drawn = uniform(20, 0, 60, seed=0)
    assert len({tuple(drawn[start : start + 20]) for start in (0, 20, 40)}) == 3


def test_the_order_follows_the_seed():
    assert uniform(20, 0, 20, seed=1) == uniform(20, 0, 20, seed=1)
    assert uniform(20, 0, 20, seed=1) != uniform(20, 0, 20, seed=2)


def test_each_problem_comes_first_about_equally_often():
    first = [uniform(4, 0, 1, seed)[0] for seed in range(400)]
    assert all(70 <= first.count(problem) <= 130 for problem in range(4))
