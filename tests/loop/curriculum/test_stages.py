"""Levels in order: the next one comes when the present one is solved, and what is passed is not lost."""

import json

import numpy as np
import pytest

from steadyrl.core.errors import DataError
from steadyrl.core.types import Problem
from steadyrl.loop.curriculum import stages
from steadyrl.loop.curriculum.choice import Request
from steadyrl.loop.curriculum.memory import Memory, recall
from tests.group_of_rewards import group

PROBLEMS = [Problem(f"{level}-{i}", "", {"level": level}) for level in (1, 2, 5) for i in range(10)]


def built(**settings):
    return stages.build(stages.Settings(**{"rollouts": 4, "success": 0.7, **settings}))


def chosen(curriculum, memory, count=5, draws=40):
    """Return the share of each level among many draws, and the memory after the last."""
    found = []
    for i in range(draws):
        choice = curriculum.choose(Request(PROBLEMS, count, i * count, i, 0), memory)
        found += [problem.columns["level"] for problem in choice.problems]
    return {level: found.count(level) / len(found) for level in (1, 2, 5)}, choice.memory


def after(curriculum, memory, *rewards, level):
    return curriculum.observe(memory, [group("x", *rewards, level=level)], 0)


def test_the_easiest_level_comes_first_and_alone():
    shares, _ = chosen(built(), Memory())
    assert shares == {1: 1.0, 2: 0.0, 5: 0.0}


def test_a_level_is_passed_by_success_and_by_enough_rollouts():
    curriculum = built()
    _, memory = chosen(curriculum, Memory())
    assert chosen(curriculum, after(curriculum, memory, 1.0, 1.0, 1.0, level=1))[0][2] == 0.0  # three rollouts
    assert chosen(curriculum, after(curriculum, memory, 1.0, 1.0, 0.0, 0.0, level=1))[0][2] == 0.0  # half solved
    shares, memory = chosen(curriculum, after(curriculum, memory, 1.0, 1.0, 1.0, 0.0, level=1))
    assert shares[2] == pytest.approx(0.8, abs=0.1)
    assert shares[1] == pytest.approx(0.2, abs=0.1)
    assert shares[5] == 0.0


def test_success_on_a_passed_level_moves_nothing_and_the_last_one_stays():
    curriculum = built(earlier_share=0.0)
    _, memory = chosen(curriculum, Memory())
    _, memory = chosen(curriculum, after(curriculum, memory, *[1.0] * 4, level=1))
    assert chosen(curriculum, after(curriculum, memory, *[1.0] * 8, level=1))[0] == {1: 0.0, 2: 1.0, 5: 0.0}
    _, memory = chosen(curriculum, after(curriculum, memory, *[1.0] * 4, level=2))
    assert chosen(curriculum, after(curriculum, memory, *[1.0] * 8, level=5))[0] == {1: 0.0, 2: 0.0, 5: 1.0}


def test_a_checkpoint_keeps_the_stage():
    curriculum = built()
    _, memory = chosen(curriculum, Memory())
    _, memory = chosen(curriculum, after(curriculum, memory, *[1.0] * 4, level=1))
    again = recall(json.loads(json.dumps(memory.plain(), allow_nan=False)))
    assert chosen(curriculum, again) == chosen(curriculum, memory)


def test_a_level_with_fewer_problems_than_asked_for_gives_all_of_them_and_more():
    choice = built().choose(Request(PROBLEMS, 12, 0, 0, 0), Memory())
    levels = np.array([problem.columns["level"] for problem in choice.problems])
    assert (levels == 1).sum() == 10
    assert any(why.startswith("beyond level 1") for why in choice.why)


def test_problems_without_a_level_are_refused():
    with pytest.raises(DataError, match=r"level = None.*curriculum\.args\.column"):
        built().choose(Request([Problem("a", "")], 1, 0, 0, 0), Memory())


def test_a_single_level_is_refused():
    with pytest.raises(DataError, match="all problems have level = 3, so that the curriculum 'stages' has nothing"):
        built().choose(Request([Problem(str(i), "", {"level": 3}) for i in range(4)], 2, 0, 0, 0), Memory())
