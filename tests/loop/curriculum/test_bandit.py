import numpy as np
import pytest

from steadyrl.core.errors import DataError
from steadyrl.core.types import Problem
from steadyrl.loop.curriculum import bandit
from steadyrl.loop.curriculum.choice import Request
from steadyrl.loop.curriculum.memory import Memory
from tests.group_of_rewards import group

PROBLEMS = [Problem(f"{level}-{i}", "", {"difficulty": level}) for level in (1, 2, 3) for i in range(4 * level)]


def built(**settings):
    return bandit.build(bandit.Settings(**settings))


def levels(bandit, memory, draws=300):
    """Which share of single draws falls on each level."""
    drawn = [
        bandit.choose(Request(PROBLEMS, 1, i, 1, 0), memory).problems[0].columns["difficulty"] for i in range(draws)
    ]
    return np.bincount(drawn, minlength=4)[1:] / draws


def test_arms_are_drawn_by_their_worth_whatever_the_number_of_their_problems():
    """Mean |advantage| 0, 1/2 and 1/4: worth 0, 1 and 1/2 of the best; at temperature 1/2 weights e^-2, 1, e^-1."""
    bandit = built(temperature=0.5, uniform_share=0.0)
    groups = [group("a", 1.0, 1.0, difficulty=1), group("b", 0.0, 1.0, difficulty=2), group("c", 0, 0.5, difficulty=3)]
    memory = bandit.observe(Memory(), groups, 0)
    assert sorted(memory.seen) == ["1", "2", "3"]
    weights = np.exp([-2.0, 0.0, -1.0])
    np.testing.assert_allclose(levels(bandit, memory), weights / weights.sum(), atol=0.08)


def test_an_arm_that_was_never_drawn_is_worth_the_best():
    bandit = built(temperature=0.1, uniform_share=0.0)
    memory = bandit.observe(Memory(), [group("a", 1.0, 1.0, difficulty=1), group("b", 0.0, 1.0, difficulty=2)], 0)
    shares = levels(bandit, memory)
    assert shares[0] == 0
    assert abs(shares[1] - shares[2]) < 0.15


def test_no_arm_is_left_out():
    bandit = built(temperature=0.01, uniform_share=0.3)
    groups = [group("a", 1.0, 1.0, difficulty=1), group("b", 0.0, 1.0, difficulty=2), group("c", 1.0, difficulty=3)]
    np.testing.assert_allclose(levels(bandit, bandit.observe(Memory(), groups, 0)), [0.1, 0.8, 0.1], atol=0.07)


def test_the_entropy_is_that_of_the_problems():
    """Three arms of 4, 8 and 12 problems, all alike: log 3, and the mean of log 4, log 8, log 12 inside."""
    choice = built().choose(Request(PROBLEMS, 2, 0, 0, 0), Memory())
    assert choice.entropy == pytest.approx(np.log(3) + np.log([4, 8, 12]).mean())
    assert choice.why[0].endswith("probability 0.333 of 3 arms")


def test_problems_without_the_column_are_refused():
    with pytest.raises(DataError, match=r"needs the column 'level'.*curriculum\.args\.column"):
        built(column="level").choose(Request(PROBLEMS, 1, 0, 0, 0), Memory())


def test_a_column_that_is_no_category_is_refused():
    problems = [Problem(str(i), "", {"difficulty": i / 7}) for i in range(101)]
    with pytest.raises(DataError, match="101 different values"):
        built().choose(Request(problems, 1, 0, 0, 0), Memory())


def test_a_single_arm_is_refused():
    with pytest.raises(DataError, match="all problems have kind = sum, so that the curriculum 'bandit' has nothing"):
        bandit.build(bandit.Settings(column="kind")).choose(
            Request([Problem(str(i), "", {"kind": "sum"}) for i in range(4)], 2, 0, 0, 0), Memory()
        )
