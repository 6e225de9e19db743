import numpy as np
import pytest

from steadyrl.core.types import Group, Problem, Rollout, Score
from steadyrl.loop.rewards.combine import Term, reward_shares, score_groups


def groups(*texts):
    names = ("prompt_ids", "completion_ids", "completion_mask", "sampling_logprobs")
    empty = dict.fromkeys(names, np.zeros(0))
    return [Group(Problem("p", ""), tuple(Rollout("p", text=t, stop_reason="stop", **empty) for t in texts))]


def term(name, weight, values):
    """Return a term that looks a text's value up; a missing one is unscored."""
    return Term(name, weight, lambda pairs: [Score(values.get(r.text), unscored=None) for _, r in pairs])


def shares(texts, *terms):
    return reward_shares(score_groups(groups(*texts), terms), terms)


def test_shares_of_parts_that_vary_by_themselves_are_those_of_their_variances():
    # Four rollouts, the parts independent: variances 0.25 and 0.25 * 0.2 ** 2 = 0.01 of a total of 0.26.
    found = shares(
        "abcd",
        term("success", 1.0, {"a": 0.0, "b": 0.0, "c": 1.0, "d": 1.0}),
        term("progress", 0.2, {"a": 0.0, "b": 1.0, "c": 0.0, "d": 1.0}),
    )
    assert found == {
        "reward_share/success": pytest.approx(0.25 / 0.26),
        "reward_share/progress": pytest.approx(0.01 / 0.26),
    }


def test_a_part_that_works_against_the_others_has_a_share_below_zero():
    # Totals 0, 0.5: of their difference the first part makes 1, the second -0.5.
    found = shares("ab", term("one", 1.0, {"a": 0.0, "b": 1.0}), term("two", 0.5, {"a": 0.0, "b": -1.0}))
    assert found == {"reward_share/one": pytest.approx(2.0), "reward_share/two": pytest.approx(-1.0)}


def test_parts_without_weight_and_rollouts_without_reward_do_not_count():
    one = term("one", 1.0, {"a": 0.0, "b": 1.0})
    two = term("two", 1.0, {"a": 0.0, "b": 0.0, "c": 9.0})  # c is unscored by the first
    zero = term("zero", 0.0, {"a": 5.0, "b": -5.0, "c": 1.0})
    assert shares("abc", one, two, zero) == {"reward_share/one": 1.0, "reward_share/two": 0.0}


def test_there_is_nothing_to_share_of_one_part_or_of_equal_rewards():
    one = term("one", 1.0, {"a": 0.0, "b": 1.0})
    assert shares("ab", one) == {}
    assert shares("aa", one, term("two", 1.0, {"a": 3.0})) == {}
