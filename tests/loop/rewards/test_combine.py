import logging
import math
import sys

import numpy as np
import pytest

from steadyrl.core.errors import ConfigError, DataError
from steadyrl.core.types import Group, Problem, Rollout, Score
from steadyrl.loop.rewards.combine import (
    Term,
    make_terms,
    nothing_to_compare,
    require_scores,
    score_groups,
    score_texts,
    term_metrics,
)
from steadyrl.loop.rewards.functions import as_score, per_rollout


class OneRewardTask:
    """A task whose own reward is the number written in the answer."""

    def __init__(self, metric="value", own=("value",)):
        self.metric = metric
        self._own = own

    def rewards(self):
        return {name: lambda problem, rollout: float(rollout.text) for name in self._own}


def group(*texts, **columns):
    rollouts = tuple(
        Rollout(
            problem_id="p",
            prompt_ids=np.zeros(1, np.int32),
            completion_ids=np.arange(len(text), dtype=np.int32),
            completion_mask=np.ones(len(text), bool),
            sampling_logprobs=np.zeros(len(text), np.float32),
            text=text,
            stop_reason="stop",
        )
        for text in texts
    )
    return Group(Problem("p", f"say {len(texts)}", columns), rollouts)


def term(function, name="part", weight=1.0):
    return Term(name, weight, per_rollout(name, function))


def scored(groups, *terms):
    return [rollout for g in score_groups(groups, terms) for rollout in g.rollouts]


def test_the_total_is_the_weighted_sum_of_the_parts():
    terms = [term(lambda p, r: len(r.text), "letters", 0.5), term(lambda p, r: r.text.count("a"), "a", -2.0)]
    found = scored([group("aab", "b")], *terms)
    assert [r.reward for r in found] == [0.5 * 3 - 2 * 2, 0.5]
    assert [r.parts for r in found] == [{"letters": 3.0, "a": 2.0}, {"letters": 1.0, "a": 0.0}]


def test_groups_and_rollouts_keep_their_places():
    found = score_groups([group("1", "2"), group("3")], [term(lambda p, r: float(r.text))])
    assert [[(r.text, r.reward) for r in g.rollouts] for g in found] == [[("1", 1.0), ("2", 2.0)], [("3", 3.0)]]


def test_weight_zero_is_measured_but_does_not_count():
    (found,) = scored([group("aa")], term(lambda p, r: 1), term(lambda p, r: 7, "seven", 0.0))
    assert (found.reward, found.parts["seven"]) == (1.0, 7.0)


def test_none_is_unscored_and_never_zero():
    first, second = scored([group("1", "")], term(lambda p, r: 1.0 if r.text else None, "known"))
    assert (first.reward, first.unscored) == (1.0, None)
    assert (second.reward, second.unscored, second.parts) == (None, "known returned None", {})


def test_one_unknown_part_leaves_the_total_unknown_and_keeps_the_other_part():
    (found,) = scored([group("1", "2")], term(lambda p, r: 1, "sure"), term(lambda p, r: one_of(r), "maybe"))[:1]
    assert (found.reward, found.parts, found.unscored) == (None, {"sure": 1.0}, "maybe returned None")


def one_of(rollout):
    return None if rollout.text == "1" else 3.0


def test_an_unknown_part_of_weight_zero_does_no_harm():
    found = scored([group("1", "2")], term(lambda p, r: 1), term(lambda p, r: one_of(r), "maybe", 0.0))
    assert [r.reward for r in found] == [1.0, 1.0]
    assert [r.parts for r in found] == [{"part": 1.0}, {"part": 1.0, "maybe": 3.0}]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (math.nan, "part returned nan"),
        (math.inf, "part returned inf"),
        (10**400, "part returned inf"),
        (Score(math.nan), "part returned nan"),
        ({"part": -math.inf}, "part returned -inf"),
        (-sys.float_info.max, "part returned -1.7976931348623157e+308"),
        (1e39, "part returned 1e+39"),
    ],
)
def test_a_number_that_float32_does_not_hold_is_unscored(value, reason):
    assert as_score("part", value) == Score(None, unscored=reason)


@pytest.mark.parametrize("share", [math.inf, -1e300])
def test_a_turn_whose_share_float32_does_not_hold_leaves_the_rollout_unscored(share):
    score = as_score("part", Score(0.5, turn_rewards=((1, 0.25), (3, share))))
    assert (score.value, score.unscored) == (None, f"part returned {share}")


@pytest.mark.parametrize("value", [3.4e38, -3.4e38])
def test_the_largest_numbers_of_float32_count(value):
    assert as_score("part", value).value == value


def test_what_a_reward_raises_leaves_its_rollout_unscored_with_the_reason(caplog):
    with caplog.at_level(logging.WARNING):
        first, second, third = scored([group("1", "x", "y")], term(lambda p, r: float(r.text), "number"))
    assert (first.reward, second.reward, third.reward) == (1.0, None, None)
    assert second.unscored.startswith("number raised ValueError: could not convert string to float: 'x'")
    assert len(caplog.records) == 1  # one line a step, however many rollouts
    assert "2 of 3 rollouts unscored" in caplog.text


def test_a_step_in_which_nothing_was_scored_is_refused_with_the_first_reason():
    terms = [term(lambda p, r: float(r.text), "number")]
    with pytest.raises(DataError, match=r"none of 2 rollouts could be scored; the first reason: number raised Value"):
        require_scores(score_groups([group("x", "y")], terms))
    require_scores(score_groups([group("x", "1")], terms))


@pytest.mark.parametrize("taken", ["mean", "std", "std_within", "unscored"])
def test_names_of_statistics_are_refused(taken):
    with pytest.raises(DataError, match=f"returned a part called '{taken}', a statistic's name"):
        scored([group("x")], term(lambda p, r: {"part": 1.0, taken: 2.0}))


def test_a_reward_of_weight_zero_may_score_nothing():
    (found,) = scored([group("x")], term(lambda p, r: 1), term(lambda p, r: None, "never", 0.0))
    assert found.reward == 1.0


def test_the_entry_of_a_dict_that_bears_the_rewards_name_counts_and_the_others_are_logged():
    (found,) = scored([group("x")], term(lambda p, r: {"recall": 0.25, "part": 2, "hits": 3}, weight=0.5))
    assert (found.reward, found.parts) == (1.0, {"part": 2.0, "recall": 0.25, "hits": 3.0})


def test_unknown_entries_of_a_dict_are_left_out():
    (found,) = scored([group("x")], term(lambda p, r: {"part": 2, "recall": None, "hits": math.nan}))
    assert (found.reward, found.parts) == (2.0, {"part": 2.0})


def test_a_dict_without_the_rewards_own_name_is_refused():
    with pytest.raises(DataError, match="'part' returned the parts recall, hits; expected one called 'part'"):
        as_score("part", {"recall": 1.0, "hits": 2.0})


@pytest.mark.parametrize(
    ("value", "got"),
    [
        ("1.0", "'1.0' (str)"),
        (b"0.5", "b'0.5' (bytes)"),
        ([1.0], "[1.0] (list)"),
        ({"part": 1.0, "hits": "many"}, "'many' (str)"),
    ],
)
def test_what_is_no_number_is_refused(value, got):
    with pytest.raises(DataError) as caught:
        as_score("part", value)
    assert f"the reward 'part' returned {got}; expected a number, a dict or None" in str(caught.value)


@pytest.mark.parametrize(("value", "number"), [(True, 1.0), (3, 3.0), (np.float32(0.5), 0.5), (np.array(2), 2.0)])
def test_whatever_is_a_number_counts(value, number):
    assert as_score("part", value).value == number


@pytest.mark.parametrize(
    ("score", "refusal"),
    [
        (Score("1.0"), r"returned '1\.0' \(str\); expected a number"),
        (Score(1.0, {"hits": "many"}), r"returned 'many' \(str\); expected a number"),
        (Score(1.0, [4]), r"returned the parts \[4\]; expected a dict of numbers"),
        (Score(1.0, {"mean": 1.0}), "a part called 'mean'"),
    ],
)
def test_a_score_of_something_else_than_numbers_is_refused(score, refusal):
    with pytest.raises(DataError, match=f"the reward 'part' .*{refusal}"):
        as_score("part", score)


def test_of_a_score_unknown_parts_are_left_out_and_the_note_is_a_text():
    assert as_score("part", Score(np.float32(0.5), {"a": None, "b": math.nan, "c": 2}, note=5)) == Score(
        0.5, {"c": 2.0}, note="5"
    )


def test_a_known_answer_that_is_no_text_is_refused():
    with pytest.raises(DataError, match=r"the answer 5 \(int\) of gold or of a baseline to the problem 'p' is no text"):
        score_texts([(Problem("p", "?"), 5)], [term(lambda p, r: 1.0)])


def test_notes_are_joined_and_parts_of_a_score_are_logged():
    first = term(lambda p, r: Score(1.0, {"hits": 4.0}, note="4 found"), "first")
    (found,) = scored([group("x")], first, term(lambda p, r: Score(2.0, note="short"), "second"))
    assert (found.note, found.parts) == ("4 found; short", {"first": 1.0, "hits": 4.0, "second": 2.0})


@pytest.mark.parametrize("last", [False, True])
def test_a_number_that_another_reward_logs_does_not_take_the_place_of_a_reward(last):
    terms = [term(lambda p, r: Score(1.0, {"second": -100.0}), "first"), term(lambda p, r: 7.0, "second")]
    (found,) = scored([group("x")], *(reversed(terms) if last else terms))
    assert (found.reward, found.parts) == (8.0, {"first": 1.0, "second": 7.0})


@pytest.mark.parametrize("returned", [lambda n: {"hits": n}, lambda n: Score(0.0, {"hits": n})])
def test_a_part_that_two_rewards_log_is_logged_for_each_under_its_rewards_name(returned):
    def log(name, number):
        def function(problem, rollout):
            value = returned(number)
            return {name: 0.0, **value} if isinstance(value, dict) else value

        return term(function, name)

    terms = [log("first", 4.0), log("second", 9.0), term(lambda p, r: Score(0.0, {"words": 2.0}), "third")]
    (found,) = scored([group("x")], *terms)
    rewards = {"first": 0.0, "second": 0.0, "third": 0.0}
    assert found.parts == {**rewards, "first_hits": 4.0, "second_hits": 9.0, "words": 2.0}


def test_a_part_has_one_name_in_all_rollouts_of_a_step():
    def first(problem, rollout):
        return Score(0.0, {"hits": 4.0} if rollout.text == "x" else {})

    second = term(lambda p, r: Score(0.0, {"hits": 9.0}), "second")
    both, alone = scored([group("x", "y")], term(first, "first"), second)
    assert (both.parts["first_hits"], both.parts["second_hits"], alone.parts["second_hits"]) == (4.0, 9.0, 9.0)
    assert "hits" not in both.parts | alone.parts


def test_texts_are_scored_in_order_and_unscored_ones_refuse_nothing():
    problem = Problem("p", "?")
    found = score_texts([(problem, "x"), (problem, "2")], [term(lambda p, r: float(r.text), "number")])
    assert [(r.text, r.reward) for r in found] == [("x", None), ("2", 2.0)]
    assert found[0].unscored.startswith("number raised ValueError")
    assert [r.reward for r in score_texts([(problem, "x")], [term(lambda p, r: None)])] == [None]


def test_rewards_are_found_in_the_task_then_among_the_built_in_then_by_import_path(users_module):
    module = users_module("users_rewards", "def kindness(problem, rollout):\n    return 5\n")
    task = OneRewardTask(own=("value", "length"))
    terms = make_terms({"length": 1.0, "boolean_format": 2.0, f"{module}:kindness": 3.0, "value": 4.0}, task)
    assert [(t.name, t.weight) for t in terms] == [
        ("length", 1.0),
        ("boolean_format", 2.0),
        ("kindness", 3.0),
        ("value", 4.0),
    ]
    (found,) = scored([group("7")], *terms)
    assert found.parts == {"length": 7.0, "boolean_format": 0.0, "kindness": 5.0, "value": 7.0}  # the task's length


def test_the_tasks_metric_is_measured_without_a_weight():
    terms = make_terms({"length": 1.0}, OneRewardTask())
    assert [(t.name, t.weight) for t in terms] == [("length", 1.0), ("value", 0.0)]
    assert [(t.name, t.weight) for t in make_terms({"value": 2.0}, OneRewardTask())] == [("value", 2.0)]
    assert [t.name for t in make_terms({"boolean_format": 2.0}, OneRewardTask("length", ()))][1:] == ["length"]


def test_a_metric_may_be_what_the_users_own_rewards_give(users_module):
    module = users_module("users_metrics", "def length(problem, rollout):\n    return {'length': 1, 'recall': 2}\n")
    for metric in ("length", "recall"):
        assert [t.name for t in make_terms({f"{module}:length": 1.0}, OneRewardTask(metric, ()))] == ["length"]


def test_names_that_collide_are_refused(users_module):
    for name in ("users_first", "users_second"):
        users_module(name, "def kindness(problem, rollout):\n    return 5\n")
    with pytest.raises(ConfigError, match="two rewards share a name among kindness, kindness; rename one"):
        make_terms({"users_first:kindness": 1.0, "users_second:kindness": 1.0}, OneRewardTask("", ()))
    with pytest.raises(ConfigError, match="two rewards share a name among length, length"):
        make_terms({"length": 1.0, "steadyrl.loop.rewards.founding:length": 1.0}, OneRewardTask("", ()))


def test_an_unknown_reward_is_answered_with_what_the_task_gives():
    with pytest.raises(ConfigError, match=r"no reward is called 'valeu'.*; the task gives: value"):
        make_terms({"valeu": 1.0}, OneRewardTask())


def test_what_is_no_function_is_refused(users_module):
    module = users_module("users_constants", "WEIGHT = 5\n")
    with pytest.raises(ConfigError, match="'users_constants:WEIGHT' is 5; expected a function"):
        make_terms({f"{module}:WEIGHT": 1.0}, OneRewardTask("", ()))


@pytest.mark.parametrize("line", ["def f():", "def f(a, b, c):"])
def test_what_does_not_take_a_problem_and_a_rollout_is_refused_before_it_is_called(users_module, line):
    module = users_module(
        "users_" + line.strip(":").replace(" ", "_").partition("(")[0] + str(len(line)), f"{line}\n    pass\n"
    )
    with pytest.raises(ConfigError, match=r"the reward 'f' cannot be called with \(problem, rollout\)"):
        make_terms({f"{module}:f": 1.0}, OneRewardTask("", ()))


@pytest.mark.parametrize(
    ("takes", "named"),
    [
        ("completion, /", "completion"),
        ("prompt, completion, /", "completion"),
        ("gold, level, /, *, completion", "completion"),
        ("completions, /, **columns", "completions"),
        ("data_source, solution_str, ground_truth, /", "solution_str"),
    ],
)
def test_a_reward_that_cannot_get_its_arguments_by_name_is_refused_before_a_model_loads(users_module, takes, named):
    lines = f"def own({takes}): return 1.0\ndef free(problem, rollout, /): return 1.0\n"
    module = users_module(f"users_slash_{takes.count(',')}_{named}", lines)
    with pytest.raises(ConfigError, match=f"takes .*{named}.* are given by their names, as {named} is; remove the /"):
        make_terms({f"{module}:own": 1.0}, OneRewardTask("", ()))
    assert make_terms({f"{module}:free": 1.0}, OneRewardTask("", ()))


def test_a_wrapper_that_hides_the_parameters_of_a_reward_is_refused_unless_it_shows_them(users_module):
    module = users_module(
        "users_wrapped",
        """
import functools
def scaled(function):
    def inner(*given, **named): return [2 * value for value in function(*given, **named)]
    return inner
def brevity(completions, **columns): return [1 / (1 + len(text)) for text in completions]
hidden, shown = scaled(brevity), functools.wraps(brevity)(scaled(brevity))
""",
    )
    with pytest.raises(
        ConfigError, match=r"the reward 'hidden' takes \(\*given, \*\*named\), .*; put functools\.wraps"
    ):
        make_terms({f"{module}:hidden": 1.0}, OneRewardTask("", ()))
    assert make_terms({f"{module}:shown": 1.0}, OneRewardTask("", ()))


def test_a_reward_that_ends_python_leaves_its_rollout_unscored():
    def leaves(problem, rollout):
        raise SystemExit(3)

    (rollout,) = scored([group("a")], term(leaves))
    assert rollout.unscored.startswith("part raised SystemExit: 3 (test_combine.py, line ")


class Preparing:
    """A reward that wants to see all rollouts first."""

    def __init__(self):
        self.calls = []

    def prepare(self, pairs):
        self.calls.append([rollout.text for _, rollout in pairs])

    def __call__(self, problem, rollout):
        self.calls.append(rollout.text)
        return Score(1.0)


def test_a_reward_that_prepares_sees_all_rollouts_of_a_step_before_it_scores_them():
    reward = Preparing()
    scored([group("a", "b"), group("c")], term(reward))
    assert reward.calls == [["a", "b", "c"], "a", "b", "c"]


def test_terms_tell_what_they_measured_of_themselves():
    terms = [
        term(lambda p, r: 1.0),
        Term("other", 1.0, per_rollout("other", lambda p, r: 1.0), lambda: {"judge/x": 2.0}),
    ]
    assert term_metrics(terms) == {"judge/x": 2.0}


def test_it_is_said_how_many_rollouts_of_a_problem_could_be_scored_and_why_not_the_others():
    number = term(lambda p, r: float(r.text) if r.text else None, "number")
    groups = score_groups([group("1", "", ""), group("", "", "2"), group("x", "", "")], [number])
    assert nothing_to_compare(groups) == (
        "only 0 or 1 of 3 rollouts of each problem could be scored; most often: number returned None"
    )
    assert nothing_to_compare(score_groups([group("1", "2", ""), group("", "", "2")], [number])) == ""
