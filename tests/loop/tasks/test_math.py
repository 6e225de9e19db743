"""The math task: answers are read and compared exactly, problems are what they say, and the task is sound."""

import json
from fractions import Fraction

import pytest

from steadyrl.core import config
from steadyrl.core.errors import ConfigError, DataError
from steadyrl.core.types import Problem
from steadyrl.environments.math.generated import LEVELS, generate
from steadyrl.environments.math.task import MathTask, correct
from steadyrl.loop.rewards.answers import final_number
from steadyrl.loop.tasks.check import check_task


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12", 12),
        ("The answer is 12.", 12),
        ("3 + 4 = 7, so 7 eggs.", 7),
        ("#### 1,234", 1234),
        ("It is 5. #### 7 (not 5)", 7),
        ("$3.50", Fraction(7, 2)),
        ("-4", -4),
        ("7.0", 7),
        ("1/2", Fraction(1, 2)),
        ("The answer is 1/2.", Fraction(1, 2)),
        (".5", Fraction(1, 2)),
        ("10-3", 3),
        ("x2 and v1.2.3", None),
        ("no number", None),
        ("", None),
        ("1/0", None),
        ("72 / 6 =", None),  # the question, not its answer
        ("72 / 6 = 12", Fraction(12)),
        ("#### 1/00", None),
        ("#### 1/\u0660", None),  # a zero, as are the digits below, of another script
        ("\u0661/\u0662", Fraction(1, 2)),
        ("9" * 100, None),
        ("5e10", 5 * 10**10),
        ("1.5e-3", Fraction(3, 2000)),
        ("2E+3", 2000),
        ("1e\u22123", Fraction(1, 1000)),
        ("1e309", 10**309),
        ("1e3/3", Fraction(1000, 3)),
        ("1e9999999999", None),
        ("#### 1/2e3 or", Fraction(1, 2000)),
        ("2e or 5eggs", 5),
        ("\u221242", -42),
        ("10\u22123", 3),
        ("1,2345", None),
        ("#### 1,2345", None),
        ("1,234,567.5", Fraction(2469135, 2)),
        ("1,2,3", 3),
        ("1, 2345", 2345),
        ("#### 0x10", None),
        ("-0b11", None),
        ("0x", 0),
        ("5x10", 5),
    ],
)
def test_the_final_number_of_a_text(text, expected):
    assert final_number(text) == expected


def test_sums_and_products_are_right_by_python_itself():
    for level in (1, 2, 3, 4):
        for prompt, answer in generate(level, 60, 0):
            expression = prompt.removeprefix("What is ").removesuffix("?")
            assert eval(expression) == answer, prompt


def test_stories_of_one_step_are_right_by_the_numbers_in_them():
    for prompt, answer in generate(5, 60, 0):
        a, b = (int(word) for word in prompt.replace(".", " ").split() if word.isdigit())
        expected = a + b if "gives" in prompt and "more" in prompt else a - b if "left" in prompt else a * b
        assert answer == expected, prompt


def test_levels_hold_different_problems_and_the_same_ones_again():
    for level in LEVELS:
        made = generate(level, 50, 3)
        assert len({prompt for prompt, _ in made}) == 50
        assert made == generate(level, 50, 3)
        assert made != generate(level, 50, 4)


def test_held_out_problems_are_not_trained_on():
    task = MathTask(MathTask.Settings(levels=[1, 6], train_count=500, heldout_count=20))
    train, heldout = task.problems("train"), task.problems("heldout")
    assert not {p.prompt for p in train} & {p.prompt for p in heldout}
    assert [sum(p.columns["level"] == level for p in heldout) for level in (1, 6)] == [20, 20]
    assert sum(p.columns["level"] == 1 for p in train) == 80  # there are 100 sums of two digits
    assert sum(p.columns["level"] == 6 for p in train) == 500


def test_the_task_is_sound():
    settings = config.resolve(
        {"task": {"name": "math"}, "rewards": {"correct": 1.0}, "backend": {"name": "toy"}, "run": {"steps": 1}}
    )
    assert [check.name for check in check_task(settings) if check.state != "ok"] == []


def written(tmp_path, *records):
    path = tmp_path / "math.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return MathTask.Settings(path=str(path), heldout_share=0.5, instruction="Answer with a number.")


def test_a_file_like_gsm8k_is_read(tmp_path):
    task = MathTask(
        written(
            tmp_path,
            {"question": "How many eggs?", "answer": "3 * 4 = <<3*4=12>>12\n#### 12", "level": 2},
            {"question": "How much?", "answer": 2.5},
        )
    )
    (one,), (other,) = task.problems("train"), task.problems("heldout")
    first, second = sorted((one, other), key=lambda problem: problem.id)
    assert first.prompt == "How many eggs?\nAnswer with a number."
    assert (first.columns["answer"], first.columns["level"], second.columns["answer"]) == ("12", 2, "5/2")
    assert (task.gold(first), task.wrong(first), task.show("It is 12.")) == ("12", "13", ["the answer is read as 12"])


def test_a_second_file_judges_and_none_of_the_first_is_held_out(tmp_path):
    first = written(tmp_path, *({"question": f"{i} + 1?", "answer": i + 1} for i in range(10)))
    second = tmp_path / "second.jsonl"
    second.write_text("".join(json.dumps({"question": f"{i} + 2?", "answer": i + 2}) + "\n" for i in range(3)))
    task = MathTask(first.model_copy(update={"heldout": str(second)}))
    assert len(task.problems("train")) == 10
    assert [p.prompt[:6] for p in task.problems("heldout")] == ["0 + 2?", "1 + 2?", "2 + 2?"]
    generated = MathTask(MathTask.Settings(levels=[1], train_count=5, heldout=str(second)))
    assert generated.problems("train") == MathTask(MathTask.Settings(levels=[1], train_count=5)).problems("train")
    assert [p.prompt for p in generated.problems("heldout")] == ["0 + 2?", "1 + 2?", "2 + 2?"]


def test_a_number_of_json_keeps_its_value(tmp_path):
    answers = (1e-5, 1e22, -2.5e-7, 1e300, 12, -3)
    task = MathTask(written(tmp_path, *({"question": "q", "answer": answer} for answer in answers)))
    problems = sorted([*task.problems("train"), *task.problems("heldout")], key=lambda problem: problem.id)
    assert [Fraction(problem.columns["answer"]) for problem in problems] == [Fraction(str(a)) for a in answers]


@pytest.mark.parametrize(
    ("records", "part"),
    [
        ([{"question": "q", "answer": "none"}], "line 1: 'answer' holds no number"),
        ([{"question": "q", "answer": True}], "line 1: 'answer' holds no number"),
        ([{"question": " ", "answer": 1}], "line 1: 'question' is empty"),
        ([{"question": "q", "answer": 1}], "has 1 problems; expected two"),
        ([{"question": "q", "answer": 1, "id": "x"}] * 2, "the id 'x' is taken"),
    ],
)
def test_a_defect_of_a_file_is_named(tmp_path, records, part):
    with pytest.raises(DataError) as caught:
        MathTask(written(tmp_path, *records))
    assert part in str(caught.value)


def test_levels_that_do_not_exist_are_refused():
    with pytest.raises(DataError, match=r"\[7\]; expected levels of 1 to 6"):
        MathTask(MathTask.Settings(levels=[1, 7]))


def test_no_level_at_all_is_refused():
    with pytest.raises(ConfigError) as caught:
        config.resolve({"task": {"name": "math", "args": {"levels": []}}, "rewards": {"correct": 1.0}})
    assert str(caught.value) == "task.args.levels: got []; expected one or more levels of 1 to 6"


def test_an_answer_is_right_or_not():
    class Said:
        def __init__(self, text):
            self.text = text

    problem = Problem("p", "?", {"answer": "5/2"})
    assert [correct(problem, Said(text)) for text in ("2.5", " 5/2 \n", "2.51", "")] == [1.0, 1.0, 0.0, 0.0]
