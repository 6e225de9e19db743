import random
import sys

import pytest

from steadyrl.core import config
from steadyrl.core.sections import Section
from steadyrl.core.types import Problem, Score
from steadyrl.loop.tasks.check import check_task


class EchoTask:
    """Sound: the answer should be the problem's own id."""

    class Settings(Section):
        """None."""

    name, metric = "echo", "same"

    def __init__(self, settings, seed=0):
        self.train = [Problem(f"t{i}", f"say t{i}") for i in range(6)]
        self.heldout = [Problem(f"h{i}", f"say h{i}") for i in range(3)]

    def problems(self, split):
        return self.train if split == "train" else self.heldout

    def rewards(self):
        return {"same": self.same}

    def same(self, problem, rollout):
        return float(rollout.text == problem.id)

    def gold(self, problem):
        return problem.id


class WithoutGold(EchoTask):
    def gold(self, problem):
        return None


class LowGold(EchoTask):
    def gold(self, problem):
        return problem.id if problem.id in ("t0", "t1") else "wrong"


class UnscoredGold(EchoTask):
    def same(self, problem, rollout):
        return None if rollout.text else 0.0


class RandomScores(EchoTask):
    def same(self, problem, rollout):
        return 0.9 + 0.1 * random.random() if rollout.text == problem.id else 0.0


class RewardsSilence(EchoTask):
    def same(self, problem, rollout):
        return float(rollout.text in ("", problem.id))


class RaisesOnOddText(EchoTask):
    def same(self, problem, rollout):
        return float(rollout.text.encode() == problem.id.encode())


class OneFailsSilence(EchoTask):
    def same(self, problem, rollout):
        return Score(None, unscored="the judge said nothing") if not rollout.text else super().same(problem, rollout)


class Leaks(EchoTask):
    def __init__(self, settings, seed=0):
        super().__init__(settings, seed)
        self.heldout = [*self.heldout, self.train[0]]


class OneCopied(EchoTask):
    copied = 1

    def __init__(self, settings, seed=0):
        super().__init__(settings, seed)
        copies = [Problem(f"h{i}", f"say t{i}") for i in range(self.copied)]
        self.heldout = [*copies, *self.heldout[self.copied :]]


class AllCopied(OneCopied):
    copied = 3


class Repeats(EchoTask):
    def __init__(self, settings, seed=0):
        super().__init__(settings, seed)
        self.train = [*self.train, self.train[0]]


class Empty(EchoTask):
    def problems(self, split):
        return []


class Exactly(EchoTask):
    """Exact; of 500 problems to train on one gold answer is wrong, one problem pays silence, one a wrong answer."""

    flaws = ()

    def __init__(self, settings, seed=0):
        super().__init__(settings, seed)
        self.train = [Problem(f"t{i}", f"say t{i}") for i in range(500)]

    def same(self, problem, rollout):
        paid = {problem.id, *(text for name, text in self.flaws if name == problem.id)}
        return Score(float(rollout.text in paid), note=f"[/b] it says\n{rollout.text}")

    def wrong(self, problem):
        return None if problem.id in ("t4", "t5") else "something else"


class Flawed(Exactly):
    flaws = (("t77", ""), ("h1", "something else"))

    def gold(self, problem):
        return "wrong" if problem.id in ("t3", "t33", "t303", "t444") else problem.id


class Many(EchoTask):
    def __init__(self, settings, seed=0):
        super().__init__(settings, seed)
        self.train = [Problem(f"t{i}", f"say t{i}") for i in range(500)]


@pytest.fixture
def checked(monkeypatch):
    """Check a task of this file by its import path; return {check: (passed, detail)}."""
    monkeypatch.setitem(sys.modules, "tasks_under_test", sys.modules[__name__])

    def check(task):
        settings = {"task": {"name": f"tasks_under_test:{task.__name__}"}, "rewards": {"same": 1.0}}
        return {c.check: (c.state != "found", c.message) for c in check_task(config.resolve(settings))}

    return check


def failed(found):
    return {name for name, (passed, _) in found.items() if not passed}


def test_a_sound_task_passes_with_its_numbers(checked):
    assert checked(EchoTask) == {
        "problems": (True, "trains on 6 problems, judged by 3 held-out problems"),
        "gold answer": (True, "mean same 1.000, expected at least 0.8"),
        "empty answer": (True, "mean same 0.000, expected at most 0.05"),
        "scoring repeats": (True, "0 of 9 answers scored differently"),
        "hostile answers": (True, "10 malformed answers, 0 left unscored"),
    }


def test_a_task_that_knows_no_good_answer_may_pass_and_is_asked_for_one(checked):
    found = checked(WithoutGold)
    assert failed(found) == set()
    assert found["gold answer"][1] == "the task knows none; give one to have it checked"


def test_a_gold_answer_that_scores_low_fails(checked):
    found = checked(LowGold)
    assert failed(found) == {"gold answer"}
    assert found["gold answer"][1] == "mean same 0.222, expected at least 0.8"  # 2 of 9


def test_a_gold_answer_that_cannot_be_scored_fails(checked):
    found = checked(UnscoredGold)
    assert failed(found) == {"gold answer", "hostile answers"}
    assert found["gold answer"][1] == "9 of 9 left unscored, expected none"


def test_scoring_that_is_random_fails(checked):
    found = checked(RandomScores)
    assert failed(found) == {"scoring repeats"}
    assert found["scoring repeats"][1] == "9 of 9 answers scored differently"


def test_an_empty_answer_that_scores_high_fails(checked):
    found = checked(RewardsSilence)
    assert failed(found) == {"empty answer"}
    assert found["empty answer"][1] == "mean same 1.000, expected at most 0.05"


def test_an_empty_answer_that_nobody_judges_fails(checked):
    found = checked(OneFailsSilence)
    assert failed(found) == {"empty answer"}
    assert found["empty answer"][1] == "9 of 9 left unscored, expected none"


def test_a_reward_that_raises_on_what_a_model_may_write_fails(checked):
    found = checked(RaisesOnOddText)
    assert failed(found) == {"hostile answers"}
    assert "1 left unscored (same raised UnicodeEncodeError" in found["hostile answers"][1]


def test_problems_in_both_splits_or_twice_in_one_fail(checked):
    leaks = (
        "trains on 6 problems, judged by 4 held-out problems; 1 of the held-out prompts are trained on too; "
        "ids: 1 in both, 0 repeated"
    )
    repeats = "trains on 7 problems with 6 different prompts, judged by 3 held-out problems; ids: 0 in both, 1 repeated"
    assert checked(Leaks)["problems"] == (False, leaks)
    assert checked(Repeats)["problems"] == (False, repeats)


def test_prompts_on_both_sides_are_counted_and_fail_where_none_is_new(checked):
    line = "trains on 6 problems, judged by 3 held-out problems; {} of the held-out prompts are trained on too"
    assert checked(OneCopied)["problems"] == (True, line.format(1))
    assert checked(AllCopied)["problems"] == (False, line.format(3))


def test_a_task_without_problems_fails(checked):
    assert checked(Empty) == {"problems": (False, "trains on 0 problems, judged by none")}


def test_means_say_how_many_problems_were_looked_at_where_it_is_not_all(checked):
    found = checked(Many)
    assert found["gold answer"] == (True, "mean same 1.000, expected at least 0.8; 203 of 503 problems were checked")
    assert found["empty answer"] == (True, "mean same 0.000, expected at most 0.05; 203 of 503 problems were checked")


def test_of_an_exact_task_every_answer_to_every_problem_is_looked_at(checked):
    found = checked(Exactly)
    assert failed(found) == set()
    assert found["gold answer"][1] == "503 of 503 score 1"
    assert found["empty answer"][1] == "503 of 503 score 0"
    assert found["wrong answer"][1] == "501 of 501 score below 1; 2 of 503 problems have none"


def test_of_an_exact_task_one_answer_that_is_off_fails_and_is_named(checked):
    found = checked(Flawed)
    assert failed(found) == {"gold answer", "empty answer", "wrong answer"}
    assert found["gold answer"][1] == (
        "499 of 503 score 1; not: t3 (0.000: [/b] it says wrong), t33 (0.000: [/b] it says wrong), "
        "t303 (0.000: [/b] it says wrong) and 1 more"
    )
    assert found["empty answer"][1].startswith("502 of 503 score 0; not: t77 (1.000: ")
    said = "500 of 501 score below 1; 2 of 503 problems have none; not: h1 (1.000: "
    assert found["wrong answer"][1].startswith(said)
