import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from steadyrl.core.types import Group, Problem, Rollout
from steadyrl.maths.select import best_of_n, drop_equal_rewards, drop_unscored, prefer_signal

REWARDS = st.lists(st.lists(st.sampled_from([None, -1.0, 0.0, 0.5, 2.0]), max_size=5), max_size=5)
LIGHT = settings(max_examples=100, deadline=None, derandomize=True)


def group(name, *rewards):
    """A group whose rollouts are told apart by their text: their place in the group."""
    rollouts = tuple(
        Rollout(
            problem_id=name,
            prompt_ids=np.zeros(1, dtype=np.int32),
            completion_ids=np.zeros(1, dtype=np.int32),
            completion_mask=np.ones(1, dtype=bool),
            sampling_logprobs=np.zeros(1, dtype=np.float32),
            text=str(place),
            stop_reason="stop",
            reward=reward,
        )
        for place, reward in enumerate(rewards)
    )
    return Group(Problem(id=name, prompt=name), rollouts)


def outline(groups):
    """What stayed: [(problem, [(place, reward), ...]), ...]."""
    return [(g.problem.id, [(int(r.text), r.reward) for r in g.rollouts]) for g in groups]


def test_drop_unscored_drops_rollouts_without_reward_and_groups_left_empty():
    groups = [group("a", None, 0.0, 2.0, None), group("b", None, None), group("c"), group("d", 1.0)]
    assert outline(drop_unscored(groups)) == [("a", [(1, 0.0), (2, 2.0)]), ("d", [(0, 1.0)])]


def test_a_reward_of_zero_is_a_reward():
    assert outline(drop_unscored([group("a", 0.0)])) == [("a", [(0, 0.0)])]


def test_selection_leaves_its_input_alone():
    groups = [group("a", None, 1.0, 2.0)]
    for select in (drop_unscored, drop_equal_rewards, best_of_n):
        select(groups)
    assert outline(groups) == [("a", [(0, None), (1, 1.0), (2, 2.0)])]


def test_drop_equal_rewards_keeps_only_groups_that_can_teach():
    groups = [
        group("equal", 1.0, 1.0),
        group("different", 1.0, 0.0, 1.0),
        group("alone", 3.0),
        group("equal but for the unscored", 0.5, None, 0.5),
        group("different and unscored", None, 0.5, 0.75),
        group("unscored", None),
    ]
    assert outline(drop_equal_rewards(groups)) == [
        ("different", [(0, 1.0), (1, 0.0), (2, 1.0)]),
        ("different and unscored", [(1, 0.5), (2, 0.75)]),
    ]


def test_prefer_signal_keeps_what_can_teach_and_everything_scored_where_nothing_can():
    equal, differing = group("equal", 1.0, 1.0, None), group("different", 1.0, 0.0)
    assert outline(prefer_signal([equal, differing])) == [("different", [(0, 1.0), (1, 0.0)])]
    assert outline(prefer_signal([equal])) == [("equal", [(0, 1.0), (1, 1.0)])]
    assert prefer_signal([group("unscored", None)]) == []


def test_best_of_n_keeps_the_best_and_the_first_of_equals():
    groups = [group("a", 0.0, 2.0, 1.0), group("b", 1.0, 5.0, 5.0), group("c", -3.0, -2.0)]
    assert outline(best_of_n(groups)) == [("a", [(1, 2.0)]), ("b", [(1, 5.0)]), ("c", [(1, -2.0)])]


def test_best_of_n_keeps_as_many_of_the_best_as_asked_for():
    groups = [group("a", 0.0, 2.0, 1.0, 2.0), group("b", 1.0, None)]
    assert outline(best_of_n(groups, 3)) == [("a", [(1, 2.0), (3, 2.0), (2, 1.0)]), ("b", [(0, 1.0)])]


def test_best_of_n_prefers_a_negative_reward_to_none():
    assert outline(best_of_n([group("a", None, -7.0, None)])) == [("a", [(1, -7.0)])]


@LIGHT
@given(rewards=REWARDS)
def test_best_of_n_never_picks_an_unscored_rollout_nor_less_than_the_best(rewards):
    groups = [group(str(i), *members) for i, members in enumerate(rewards)]
    chosen = {g.problem.id: g.rollouts for g in best_of_n(groups)}
    for i, members in enumerate(rewards):
        scored = [reward for reward in members if reward is not None]
        if not scored:
            assert str(i) not in chosen
            continue
        (rollout,) = chosen[str(i)]
        assert rollout.reward is not None
        assert all(rollout.reward >= reward for reward in scored)


@LIGHT
@given(rewards=REWARDS)
def test_what_drop_equal_rewards_keeps_has_rewards_that_differ(rewards):
    groups = [group(str(i), *members) for i, members in enumerate(rewards)]
    kept = {g.problem.id for g in drop_equal_rewards(groups)}
    for i, members in enumerate(rewards):
        scored = [reward for reward in members if reward is not None]
        assert (str(i) in kept) == (bool(scored) and min(scored) < max(scored))


def test_no_groups_give_no_groups():
    for select in (drop_unscored, drop_equal_rewards, best_of_n):
        assert select([]) == []
