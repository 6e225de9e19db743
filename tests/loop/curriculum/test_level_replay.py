import numpy as np
import pytest

from steadyrl.core.types import Problem
from steadyrl.loop.curriculum import accel, level_replay
from steadyrl.loop.curriculum.choice import Request
from steadyrl.loop.curriculum.level_replay import advantage_size, best_minus_mean, replay_probabilities
from steadyrl.loop.curriculum.memory import Known, Memory, look_up, record_outcomes
from tests.group_of_rewards import group


def known_of(seen, stale):
    nothing = np.zeros(len(seen))
    return Known(np.array(seen), nothing, nothing, nothing, nothing, nothing, np.array(stale, float))


def test_probabilities_by_hand():
    """Scores 3, 9, 1 rank 2, 1, 3: weights 1/2, 1, 1/3 of 11/6; staleness 1, 1, 2 of 4; one problem is new."""
    settings = level_replay.Settings(temperature=1.0, stale_share=0.2, new_share=0.4)
    got = replay_probabilities(np.array([3.0, 9, 1, 0]), known_of([1 > 0] * 3 + [False], [1, 1, 2, 9]), settings)
    by_score, by_stale = np.array([3, 6, 2]) / 11, np.array([1, 1, 2]) / 4
    np.testing.assert_allclose(got, [*(0.6 * (0.8 * by_score + 0.2 * by_stale)), 0.4])


@pytest.mark.parametrize("seed", range(20))
def test_probabilities_sum_to_one_and_leave_no_unseen_problem_out(seed):
    rng = np.random.default_rng(seed)
    seen, size = rng.random(8) < rng.choice([0.0, 0.5, 1.0]), 8
    got = replay_probabilities(rng.random(size), known_of(seen, rng.integers(0, 5, size)), level_replay.Settings())
    assert got.sum() == pytest.approx(1.0)
    assert (got >= 0).all()
    assert (got[~seen] > 0).all()
    if seen.any() and not seen.all():
        assert got[~seen].sum() == pytest.approx(0.5)


def test_high_scores_come_back_and_of_equal_scores_the_stalest():
    settings = level_replay.Settings(stale_share=0.0)
    got = replay_probabilities(np.array([0.0, 0.5, 0.0, 0.2]), known_of([True] * 4, [1, 1, 7, 1]), settings)
    assert np.argsort(-got).tolist() == [1, 3, 2, 0]


def test_stale_problems_come_back_whatever_their_score():
    settings = level_replay.Settings(stale_share=0.5)
    got = replay_probabilities(np.array([0.0, 1.0]), known_of([True] * 2, [30, 0]), settings)
    assert got[0] > 0.5


def test_just_drawn_problems_alone_are_alike_in_staleness():
    got = replay_probabilities(
        np.zeros(3), known_of([True, True, False], [0, 0, 1]), level_replay.Settings(stale_share=1.0)
    )
    np.testing.assert_allclose(got, [0.25, 0.25, 0.5])


def test_scores_by_hand():
    """Rewards 0, 0, 0, 1 then 0, 0: a mean distance of 3/8, then of 0; the best stays 1."""
    memory = record_outcomes(Memory(), [group("a", 0.0, 0.0, 0.0, 1.0)], 0, decay=0.5)
    assert advantage_size(look_up(["a"], memory, 1)) == pytest.approx([3 / 8])
    assert best_minus_mean(look_up(["a"], memory, 1)) == pytest.approx([3 / 4])
    memory = record_outcomes(memory, [group("a", 0.0, 0.0)], 1, decay=0.5)
    assert advantage_size(look_up(["a"], memory, 2)) == pytest.approx([3 / 16])
    assert best_minus_mean(look_up(["a"], memory, 2)) == pytest.approx([7 / 8])


def test_replay_draws_new_problems_first_and_what_taught_most_afterwards():
    problems = [Problem(name, name) for name in "abcd"]
    built = level_replay.build(level_replay.Settings(new_share=1.0))
    first = built.choose(Request(problems, 2, 0, 0, 0), Memory())
    memory = record_outcomes(Memory(), [group(p.id, 1.0, 1.0) for p in first.problems], 0, decay=0.5)
    second = built.choose(Request(problems, 2, 2, 1, 0), memory)
    assert {p.id for p in first.problems + second.problems} == set("abcd")
    memory = record_outcomes(memory, [group(second.problems[0].id, 1.0, 0.0)], 1, decay=0.5)
    memory = record_outcomes(memory, [group(second.problems[1].id, 1.0, 1.0)], 1, decay=0.5)
    again = [built.choose(Request(problems, 1, drawn, 2, 0), memory).problems[0].id for drawn in range(200)]
    assert again.count(second.problems[0].id) > 140


# Editing


def harder(problem, generator):
    """A problem one level up, one of ten variants."""
    level, variant = int(problem.columns["level"]) + 1, int(generator.integers(10))
    return Problem(f"level {level}, {variant}", "", {"level": level})


LEVELS = [Problem(f"level {level}", "", {"level": level}) for level in range(4)]


def test_half_of_a_step_is_edited_from_the_problem_that_taught_most():
    built = accel.build(accel.Settings(edit_share=0.5, temperature=0.01))
    groups = [group("level 0", 1.0, 1.0), group("level 1", 0.5, 0.4), group("level 2", 0.0, 1.0)]
    memory = built.observe(Memory(), groups, 0)
    choice = built.choose(Request(LEVELS, 8, 3, 1, 0, harder), memory)
    assert [p.columns["level"] for p in choice.problems[:4]] == [3] * 4
    assert {p.id for p in choice.problems[:4]} == set(choice.memory.made)
    assert choice.why[0] == "edited from 'level 2', advantage 0.5"
    assert len(choice.problems) == len(choice.why) == 8
    assert built.edits


def test_nothing_is_edited_while_nothing_teaches():
    built = accel.build(accel.Settings(edit_share=0.5))
    choice = built.choose(Request(LEVELS, 4, 0, 0, 0, harder), Memory())
    assert {p.id for p in choice.problems} == {p.id for p in LEVELS}
    assert choice.memory == Memory()


def test_of_too_many_edited_problems_those_that_teach_least_are_forgotten():
    built = accel.build(accel.Settings(most_made=2))
    made = {name: Problem(name, "", {"level": 9}) for name in ("x", "y", "z")}
    groups = [group("x", 0.0, 1.0), group("y", 1.0, 1.0), group("z", 0.0, 0.5), group("level 0", 1.0, 1.0)]
    memory = built.observe(Memory({}, made), groups, 0)
    assert list(memory.made) == ["x", "z"]
    assert sorted(memory.seen) == ["level 0", "x", "z"]


def test_edited_problems_are_replayed_like_the_tasks_own():
    built = accel.build(accel.Settings(edit_share=0.0, new_share=0.0, stale_share=0.0))
    memory = built.observe(Memory({}, {"x": Problem("x", "made")}), [group("x", 0.0, 1.0)], 0)
    chosen = [built.choose(Request(LEVELS, 1, drawn, 1, 0, harder), memory).problems[0] for drawn in range(50)]
    assert chosen.count(Problem("x", "made")) == 50
