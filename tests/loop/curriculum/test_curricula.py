import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steadyrl.core.types import Problem
from steadyrl.loop.curriculum import learnability, passes
from steadyrl.loop.curriculum import memory as module
from steadyrl.loop.curriculum.choice import Request, draw
from steadyrl.loop.curriculum.memory import Memory, look_up, recall, record_outcomes
from steadyrl.loop.curriculum.passes import uniform
from tests.group_of_rewards import group

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


def test_the_curriculum_of_passes_takes_the_passes_and_remembers_nothing():
    problems = [Problem(str(i), "") for i in range(7)]
    choice = passes.build(passes.Settings()).choose(Request(problems, 5, 4, 1, seed=3), Memory())
    assert [int(problem.id) for problem in choice.problems] == uniform(7, 4, 5, seed=3)
    assert (choice.why, choice.entropy) == ([""] * 5, None)
    assert passes.build(passes.Settings()).observe(Memory(), [group("0", 1.0)], 0) == Memory()


# What is remembered


def test_outcomes_by_hand():
    """Rewards 0, 1 of one group and 1, 1, 4 of another: means 1/2 and 2, distances 1/2, 1/2 and 1, 1, 2."""
    memory = record_outcomes(Memory(), [group("a", 0.0, 1.0, None), group("a", 1.0, 1.0, 4.0)], 3, decay=0.5)
    assert memory.seen["a"] == pytest.approx(
        {"rollouts": 5.0, "mean": 7 / 5, "square": 19 / 5, "deviation": 1.0, "best": 4.0, "last": 3.0}
    )


def test_earlier_outcomes_count_for_less_and_the_best_stays():
    """Four rewards of 2 count as two; with two of 0: mean 4 / 4, square 8 / 4."""
    memory = record_outcomes(Memory(), [group("a", 2.0, 2.0, 2.0, 2.0)], 0, decay=0.5)
    memory = record_outcomes(memory, [group("a", 0.0, 0.0)], 1, decay=0.5)
    assert memory.seen["a"] == pytest.approx(
        {"rollouts": 4.0, "mean": 1.0, "square": 2.0, "deviation": 0.0, "best": 2.0, "last": 1.0}
    )


def test_a_problem_that_could_not_be_scored_is_drawn_but_unknown():
    memory = record_outcomes(Memory(), [group("a", None, None)], 2, decay=0.5)
    assert memory.seen["a"] == {"rollouts": 0.0, "last": 2.0}
    known = look_up(["a", "b"], memory, 5)
    assert (known.drawn.tolist(), known.stale.tolist()) == ([True, False], [3.0, 6.0])
    memory = record_outcomes(memory, [group("a", 1.0)], 4, decay=0.5)
    assert (memory.seen["a"]["rollouts"], memory.seen["a"]["best"]) == (1.0, 1.0)


def test_an_unscored_draw_leaves_what_was_known():
    memory = record_outcomes(Memory(), [group("a", 1.0, 0.0)], 0, decay=0.5)
    later = record_outcomes(memory, [group("a", None)], 7, decay=0.5)
    assert later.seen["a"] == {**memory.seen["a"], "last": 7.0}


def test_what_was_not_drawn_for_longest_is_forgotten_first(monkeypatch):
    monkeypatch.setattr(module, "MAX_REMEMBERED", 3)
    memory = Memory()
    for step, name in enumerate("abacd"):
        memory = record_outcomes(memory, [group(name, 1.0)], step, decay=0.5)
    assert sorted(memory.seen) == ["a", "c", "d"]


def test_a_memory_comes_back_from_json_as_it_was():
    memory = record_outcomes(Memory(), [group("a", 1 / 3, 0.1), group("b", None)], 3, decay=0.3)
    memory = Memory(memory.seen, {"m": Problem("m", "made", {"difficulty": 2})})
    assert recall(json.loads(json.dumps(memory.plain()))) == memory
    assert recall({}) == Memory()


# Drawing


@LIGHT
@given(st.lists(st.floats(0, 1), min_size=1, max_size=9), st.integers(0, 30), st.integers(0, 5))
def test_a_draw_repeats_no_problem_before_all_were_drawn(weights, count, seed):
    drawn = draw(np.array(weights), count, np.random.default_rng(seed))
    assert len(drawn) == count
    counts = np.bincount(drawn, minlength=len(weights))
    assert counts.max() - counts.min() <= 1


def test_draws_follow_the_probabilities():
    generator = np.random.default_rng(0)
    first = [draw(np.array([0.7, 0.2, 0.1]), 1, generator)[0] for _ in range(2000)]
    np.testing.assert_allclose(np.bincount(first) / 2000, [0.7, 0.2, 0.1], atol=0.03)


# Learnability

PROBLEMS = [Problem(name, name) for name in ("dead", "hard", "half", "easy", "mastered")]
RATES = {"dead": 0, "hard": 1, "half": 4, "easy": 7, "mastered": 8}  # of eight rollouts


def after_one_look(step=0):
    """A memory of one group of each problem."""
    groups = [group(name, *[1.0] * solved, *[0.0] * (8 - solved)) for name, solved in RATES.items()]
    return record_outcomes(Memory(), groups, step, decay=0.5)


def test_learnability_is_p_times_one_minus_p_drawn_to_the_average_by_two_rollouts():
    """p(1-p): 0, 7/64, 16/64, 7/64, 0, on average 6/64."""
    score = learnability.learnability(look_up([problem.id for problem in PROBLEMS], after_one_look(), 1))
    expected = (2 * 6 / 64 + 8 * np.array([0, 7, 16, 7, 0]) / 64) / 10
    np.testing.assert_allclose(score, expected)


def test_unseen_problems_are_as_learnable_as_the_average():
    score = learnability.learnability(look_up(["new", "half"], after_one_look(), 1))
    assert score[0] == pytest.approx(0.25)  # of those asked for, one is known
    score = learnability.learnability(look_up(["new", "half", "dead"], after_one_look(), 1))
    assert score[0] == pytest.approx(0.125)


def test_a_graded_reward_that_never_varies_is_not_learnable():
    memory = record_outcomes(Memory(), [group("steady", *[0.5] * 8), group("varied", *[0.0, 1.0] * 4)], 0, decay=0.5)
    steady, varied = learnability.learnability(look_up(["steady", "varied"], memory, 1))
    assert varied > 5 * steady


def counted(built, problems, memory, draws=400, count=2, **request):
    """How often each problem is drawn, and one of the choices."""
    counts = dict.fromkeys((problem.id for problem in problems), 0)
    for drawn in range(draws):
        choice = built.choose(Request(problems, count, drawn, 1, 0, **request), memory)
        for problem in choice.problems:
            counts[problem.id] += 1
    return counts, choice


def test_learnability_prefers_problems_solved_half_the_time_and_leaves_none_out():
    counts, _ = counted(learnability.build(learnability.Settings()), PROBLEMS, after_one_look())
    assert counts["half"] == max(counts.values())
    assert min(counts["hard"], counts["easy"]) > max(counts["dead"], counts["mastered"]) > 0


def test_what_was_not_drawn_for_long_comes_back():
    built = learnability.build(learnability.Settings(stale_share=1.0, uniform_share=0.0))
    memory = after_one_look()
    memory = record_outcomes(memory, [group(name, 1.0) for name in RATES if name != "dead"], 99, decay=0.5)
    chosen = built.choose(Request(PROBLEMS, 1, 0, 100, 0), memory)
    assert chosen.problems[0].id == "dead"  # 100 steps of 104


def test_before_anything_is_known_all_problems_are_alike():
    counts, choice = counted(learnability.build(learnability.Settings()), PROBLEMS, Memory())
    assert all(110 <= count <= 210 for count in counts.values())
    assert choice.entropy == pytest.approx(np.log(5))
    assert choice.why == ["not drawn yet; probability 0.2 of 5 problems"] * 2


def test_a_choice_says_why():
    built = learnability.build(learnability.Settings(stale_share=0.0, uniform_share=0.0))
    choice = built.choose(Request([PROBLEMS[2]], 1, 0, 4, 0), after_one_look())
    assert choice.why == ["learnability 0.25, mean reward 0.5, drawn 4 steps ago; probability 1 of 1 problems"]


def test_a_choice_follows_from_seed_memory_and_what_was_drawn():
    built, problems = learnability.build(learnability.Settings()), [Problem(str(i), "") for i in range(50)]
    first = built.choose(Request(problems, 9, 27, 3, 0), Memory())
    assert built.choose(Request(problems, 9, 27, 3, 0), Memory()) == first
    assert built.choose(Request(problems, 9, 36, 3, 0), Memory()).problems != first.problems
    assert built.choose(Request(problems, 9, 27, 3, 1), Memory()).problems != first.problems


def test_shares_of_more_than_everything_are_refused():
    with pytest.raises(ValueError, match="of at most 1"):
        learnability.Settings(stale_share=0.6, uniform_share=0.6)
