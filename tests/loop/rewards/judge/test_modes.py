from steadyrl.loop.rewards.judge.modes import MODES, Contest, ring
from steadyrl.loop.rewards.judge.settings import JudgeSettings
from steadyrl.loop.rewards.judge.verdicts import Verdict


def contest(*texts, gold=None):
    return Contest("p", "say it", texts, gold)


def ballots(mode, found, **settings):
    return MODES[mode].ballots(JudgeSettings(**settings), found)


def settle(mode, found, answers):
    """Settle with an answer by the texts of each ballot."""
    return MODES[mode].settle(found, [(b, answers[b.texts]) for b in ballots(mode, found)])


def won(place):
    return Verdict(((1.0, 0.0), (0.0, 1.0))[place], reason=f"place {place}")


def test_scalar_asks_for_each_text_alone():
    assert [b.texts for b in ballots("scalar", contest("a", "b"))] == [("a",), ("b",)]


def test_group_asks_for_all_at_once_in_an_order_that_repeats_and_that_all_texts_decide():
    (first,), (again,) = (ballots("group", contest(*texts)) for texts in ("abcdef", "fedcba"))
    assert sorted(first.texts) == list("abcdef")
    assert first.texts == again.texts
    orders = {ballots("group", contest("a", "b", "c", extra))[0].texts.index("a") for extra in "defghijklmnop"}
    assert len(orders) > 1


def test_halves_of_surrogate_pairs_have_a_place_in_a_group():
    (ballot,) = ballots("group", contest("a", "\ud800"))
    assert set(ballot.texts) == {"a", "\ud800"}


def test_pairs_are_asked_in_both_orders():
    assert [b.texts for b in ballots("pairwise", contest("a", "b"))] == [("a", "b"), ("b", "a")]


def test_a_ring_meets_each_text_twice_reach_times_and_no_pair_twice():
    pairs = ring(list("abcdefg"), 2)
    assert len(pairs) == len({frozenset(pair) for pair in pairs}) == 14
    assert all(sum(letter in pair for pair in pairs) == 4 for letter in "abcdefg")
    assert ring(["a"], 2) == []
    assert sorted(map(sorted, ring(list("abc"), 5))) == [["a", "b"], ["a", "c"], ["b", "c"]]


def test_a_text_scores_the_share_of_pairs_that_it_won_in_both_orders():
    found = contest("a", "b", "c")
    # a beats b and c; b beats c in one order only
    answers = {
        ("a", "b"): won(0), ("b", "a"): won(1), ("a", "c"): won(0), ("c", "a"): won(1),
        ("b", "c"): won(0), ("c", "b"): won(0),
    }  # fmt: skip
    opinions = settle("pairwise", found, answers)
    assert {text: opinion.value for text, opinion in opinions.items()} == {"a": 1.0, "b": 0.25, "c": 0.25}
    assert {t: o.measurements["orders_agree"] for t, o in opinions.items()} == {"a": 1.0, "b": 0.5, "c": 0.5}


def test_a_judge_that_always_names_the_first_gives_everyone_a_half():
    opinions = settle("pairwise", contest("a", "b"), {("a", "b"): won(0), ("b", "a"): won(0)})
    assert {text: opinion.value for text, opinion in opinions.items()} == {"a": 0.5, "b": 0.5}


def test_a_pair_with_one_order_missing_does_not_count():
    found = contest("a", "b", "c")
    answers = {
        ("a", "b"): won(0), ("b", "a"): "no answer", ("a", "c"): won(1), ("c", "a"): won(0),
        ("b", "c"): "no answer", ("c", "b"): "no answer",
    }  # fmt: skip
    opinions = settle("pairwise", found, answers)
    assert (opinions["a"].value, opinions["c"].value) == (0.0, 1.0)
    assert (opinions["b"].value, opinions["b"].reason) == (None, "no answer")


def test_a_lone_text_is_compared_with_the_tasks_own_answer():
    lone = contest("a", gold="g")
    assert [b.texts for b in ballots("pairwise", lone)] == [("a", "g"), ("g", "a")]
    opinions = settle("pairwise", lone, {("a", "g"): won(1), ("g", "a"): won(0)})
    assert {text: opinion.value for text, opinion in opinions.items()} == {"a": 0.0}


def test_a_lone_text_that_is_the_tasks_own_answer_ties_with_it():
    assert ballots("pairwise", contest("g", gold="g")) == []
    assert settle("pairwise", contest("g", gold="g"), {})["g"].value == 0.5


def test_a_lone_text_without_anything_to_compare_it_with_is_unknown():
    opinion = settle("pairwise", contest("a"), {})["a"]
    assert opinion.value is None
    assert "no other answer" in opinion.reason


def test_a_failed_group_leaves_every_text_of_it_unknown():
    found = contest("a", "b")
    (ballot,) = ballots("group", found)
    opinions = MODES["group"].settle(found, [(ballot, "dead")])
    assert [(o.value, o.reason) for o in opinions.values()] == [(None, "dead")] * 2
