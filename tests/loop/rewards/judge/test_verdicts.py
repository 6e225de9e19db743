import json

import pytest

from steadyrl.loop.rewards.judge.prompts import Question
from steadyrl.loop.rewards.judge.verdicts import MalformedVerdictError, read_group, read_pair, read_scalar

ONE = Question((), ("aa11",), "tie0")
TWO = Question((), ("aa11", "bb22"), "tie0")
CRITERIA = ["correct", "short"]


def scalar(**changes):
    return json.dumps({"reason": "r", "candidate": "aa11", "scores": {"correct": 10, "short": 5}, **changes})


def grouped(**scores):
    return json.dumps({"reason": "r", "scores": scores})


def test_the_value_is_the_mean_of_the_criteria():
    verdict = read_scalar(scalar(), ONE, CRITERIA)
    assert verdict.values == (0.75,)
    assert verdict.by_criterion == {"correct": 1.0, "short": 0.5}
    assert verdict.reason == "r"


def test_a_winner_gets_1_a_loser_0_a_tie_a_half_each():
    def said(winner):
        return read_pair(json.dumps({"reason": "r", "winner": winner}), TWO, CRITERIA).values

    assert (said("aa11"), said("bb22"), said("tie0")) == ((1.0, 0.0), (0.0, 1.0), (0.5, 0.5))


def test_grades_of_a_group_come_back_in_the_order_of_the_texts():
    assert read_group(grouped(bb22=30, aa11=90), TWO, CRITERIA).values == (0.9, 0.3)


@pytest.mark.parametrize(
    "around",
    ["  {}\n", "```json\n{}\n```", "```\n{}\n```", "<think>10? No.</think>\n{}", "10? No.\n</think>\n```\n{}\n```"],
)
def test_thoughts_before_it_and_a_code_fence_around_it_are_forgiven(around):
    assert read_scalar(around.replace("{}", scalar()), ONE, CRITERIA).values == (0.75,)


def test_a_verdict_that_speaks_of_thoughts_is_read_whole():
    verdict = read_scalar(scalar(reason="it lacks </think> and {}"), ONE, CRITERIA)
    assert (verdict.values, verdict.reason) == ((0.75,), "it lacks </think> and {}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not one JSON object"),
        ("Score: 9", "not one JSON object"),
        (scalar() + scalar(), "not one JSON object"),
        ("Here it is: " + scalar(), "not one JSON object"),
        ("[" * 100_000, "not one JSON object"),
        ("[]", "the whole: "),
        (scalar(candidate="bb22"), "'candidate' names bb22; expected exactly aa11"),
        (scalar(scores={"correct": 11, "short": 5}), "less than or equal to 10"),
        (scalar(scores={"correct": -1, "short": 5}), "greater than or equal to 0"),
        (scalar(scores={"correct": 9.5, "short": 5}), "valid integer"),
        (scalar(scores={"correct": "9", "short": 5}), "valid integer"),
        (scalar(scores={"correct": True, "short": 5}), "valid integer"),
        (scalar(scores={"correct": None, "short": 5}), "valid integer"),
        (scalar(scores={"correct": 9}), "'scores' names correct; expected exactly correct, short"),
        (scalar(scores={"correct": 9, "short": 5, "bonus": 10}), "expected exactly correct, short"),
        (scalar(scores=[9, 5]), "scores: "),
        (scalar(total=10), "total: "),
        (json.dumps({"scores": {"correct": 1, "short": 1}, "candidate": "aa11"}), "reason: "),
        (scalar().replace("10", "NaN"), "NaN is not a JSON number"),
        (scalar().replace("10", "1e999"), "valid integer"),
        (scalar().replace('"short": 5', '"short": 5, "short": 10'), "the key 'short' stands twice"),
        (scalar(reason="x" * 2001), "reason: "),
    ],
)
def test_what_is_no_verdict_on_one_text_is_refused(text, why):
    with pytest.raises(MalformedVerdictError, match=".*".join(why.split("|"))):
        read_scalar(text, ONE, CRITERIA)


@pytest.mark.parametrize("winner", ["first", "A", "", "cc33", "tie", "both"])
def test_a_winner_that_is_no_label_of_this_request_is_refused(winner):
    with pytest.raises(MalformedVerdictError, match="expected one of aa11, bb22, tie0"):
        read_pair(json.dumps({"reason": "r", "winner": winner}), TWO, CRITERIA)


@pytest.mark.parametrize(
    "scores", [{"aa11": 10}, {"aa11": 10, "bb22": 10, "cc33": 10}, {"aa11": 10, "cc33": 10}, {"aa11": 101, "bb22": 1}]
)
def test_a_group_needs_one_grade_in_range_for_each_label(scores):
    with pytest.raises(MalformedVerdictError):
        read_group(grouped(**scores), TWO, CRITERIA)
