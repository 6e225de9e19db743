"""What answers tell, on answers made by hand."""

import pytest

from steadyrl.core.types import Problem
from steadyrl.lab.compare.findings import findings, sample_value


def answered(text, reward, cut=False, **parts):
    unscored = "no verdict" if reward is None else None
    return {
        "text": text,
        "reward": reward,
        "parts": parts,
        "unscored": unscored,
        "note": "",
        "truncated": cut,
        "tokens": len(text),
    }


def problems(*levels):
    return [
        Problem(f"p{i}", f"prompt {i}", {} if level is None else {"difficulty": level})
        for i, level in enumerate(levels)
    ]


def of(*rewards):
    return {f"p{i}": [answered("x", reward)] for i, reward in enumerate(rewards)}


def test_every_measurement_of_an_answer_can_be_compared():
    record = answered("abc", 0.5, cut=True, f1=0.25)
    assert [sample_value(record, name) for name in ("reward", "f1", "tokens", "truncated")] == [0.5, 0.25, 3.0, 1.0]
    assert sample_value(record, "recall") is None
    assert sample_value(answered("", None), "reward") is None
    assert sample_value(answered("", 0.0, f1="NaN"), "f1") is None


def test_unscored_samples_leave_a_problems_mean_and_unscored_problems_the_comparison():
    first = {**of(0, 0, 0), "p0": [answered("x", 1.0), answered("y", None)]}
    second = {**of(1, 1, 1), "p0": [answered("x", 1.0), answered("y", 1.0)], "p2": [answered("x", None)]}
    found = findings(problems(1, 1, 1), (first, second), "reward", None, ("A", "B"))
    assert found["left_out"] == 1
    assert found["problems"] == [{"problem": "p0", "a": 1.0, "b": 1.0}, {"problem": "p1", "a": 0.0, "b": 1.0}]


def test_parts_are_compared_where_both_have_them():
    first = {"p0": [answered("x", 1, f1=0.5)], "p1": [answered("x", 1)], "p2": [answered("x", 1, f1=0.0)]}
    second = {"p0": [answered("xyz", 1, f1=1.0)], "p1": [answered("x", 1, f1=9)], "p2": [answered("x", 1, f1=0.0)]}
    found = findings(problems(1, 1, 1), (first, second), "reward", None, ("A", "B"))
    rows = {row["name"]: row for row in found["parts"]}
    assert list(rows) == ["f1", "tokens", "truncated"]
    assert (rows["f1"]["n"], rows["f1"]["a"], rows["f1"]["b"]) == (2, 0.25, 0.5)
    assert rows["tokens"]["difference"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("levels", "rows"),
    [
        ((None, None, None), []),
        ((2, 2, 2), []),
        ((10, 9, 10), ["9", "10"]),
        (("hard", "easy", 1), ["1", "easy", "hard"]),
        ((0.1, None, 0.2), ["0.1", "0.2", "None"]),
    ],
)
def test_levels_are_rows_in_order(levels, rows):
    found = findings(problems(*levels), (of(0, 0, 0), of(1, 0, 1)), "reward", None, ("A", "B"))
    assert [row["level"] for row in found["difficulty"]] == rows


def test_many_numbers_of_difficulty_are_put_into_bands():
    levels = [i / 10 for i in range(12)]
    found = findings(problems(*levels), (of(*[0] * 12), of(*[1] * 12)), "reward", None, ("A", "B"))
    assert [row["level"] for row in found["difficulty"]] == ["0 to 0.2", "0.3 to 0.5", "0.6 to 0.8", "0.9 to 1.1"]
    assert [row["n"] for row in found["difficulty"]] == [3, 3, 3, 3]


def test_a_level_column_serves_too():
    given = [Problem(f"p{i}", "", {"level": level}) for i, level in enumerate((1, 2, 1))]
    found = findings(given, (of(0, 0, 0), of(1, 0, 0)), "reward", None, ("A", "B"))
    assert [(row["level"], row["wins"]) for row in found["difficulty"]] == [("1", 1), ("2", 0)]
    assert found["difficulty"][1]["interval"] is None  # one problem


def test_examples_are_the_largest_wins_then_the_largest_losses_then_ties():
    found = findings(problems(*[1] * 5), (of(0, 0, 1, 1, 0.5), of(1, 0.2, 0, 0.9, 0.5)), "reward", None, ("A", "B"))
    assert [(e["problem"], e["why"]) for e in found["examples"]] == [
        ("p0", "win"),
        ("p1", "win"),
        ("p2", "loss"),
        ("p3", "loss"),
        ("p4", "tie"),
    ]


def test_an_example_shows_the_sample_that_makes_its_difference():
    first = {"p0": [answered("x", r) for r in (0.0, 0.5, 1.0)], "p1": [answered("x", 0.0)]}
    second = {"p0": [answered("x", r) for r in (0.0, 1.0, 1.0)], "p1": [answered("x", 0.0)]}
    found = findings(problems(1, 1), (first, second), "reward", None, ("A", "B"))
    assert found["examples"][0]["sample"] == 1
    back = findings(problems(1, 1), (second, first), "reward", None, ("A", "B"))
    assert (back["examples"][0]["why"], back["examples"][0]["sample"]) == ("loss", 1)


def test_rows_in_which_nothing_differs_have_the_verdicts_interval():
    """None of n differs: 3 / n of the problems may, of answers that lie at most 1 apart; at most all of them."""
    rewards = [0.0, 1.0] * 6
    first = {f"p{i}": [answered("xyz", r, f1=0.5 + r)] for i, r in enumerate(rewards)}
    found = findings(problems(*[1] * 10, 2, 2), (first, first), "reward", None, ("A", "B"))
    change = found["verdict"]["change"]
    assert [change["low"], change["high"]] == pytest.approx([-3 / 12, 3 / 12])
    assert found["difficulty"][0]["interval"] == pytest.approx([-3 / 10, 3 / 10])
    assert found["difficulty"][1]["interval"] == [-1.0, 1.0]
    parts = {row["name"]: row["interval"] for row in found["parts"]}
    assert parts["f1"] == pytest.approx([-3 / 12, 3 / 12])
    assert parts["truncated"] == pytest.approx([-3 / 12, 3 / 12])  # a share: it could have been 1
    assert parts["tokens"] is None  # three everywhere: nothing says how far apart they can be


def test_a_level_whose_answers_are_all_alike_is_as_uncertain_as_the_whole_set_allows():
    values = [0.25] * 10 + [0.0, 0.75]
    first = {f"p{i}": [answered("x", value)] for i, value in enumerate(values)}
    found = findings(problems(*[1] * 10, 2, 2), (first, first), "reward", None, ("A", "B"))
    assert found["difficulty"][0]["interval"] == pytest.approx([-0.3 * 0.75, 0.3 * 0.75])


def test_rows_with_six_differing_problems_keep_their_own_interval():
    found = findings(problems(*[1] * 12, 2), (of(*[0] * 13), of(*[1] * 12, 0)), "reward", None, ("A", "B"))
    assert found["difficulty"][0]["interval"] == [1.0, 1.0]
