import sys

import pytest

from steadyrl.core import config
from steadyrl.core.errors import EpisodeError
from steadyrl.core.protocols import Turn
from steadyrl.core.sections import Section
from steadyrl.core.types import Problem
from steadyrl.loop.tasks.check import check_task


class GuessEpisode:
    """Say the problem's word; the expert does at the second turn."""

    def __init__(self, word):
        self.word, self.turns, self.said = word, 0, ""

    def open(self):
        return "say it"

    def step(self, text):
        self.turns, self.said = self.turns + 1, text
        return Turn("no", done=text == self.word)

    def expert(self):
        return self.word if self.turns else "well"

    def close(self):
        return {"success": float(self.said == self.word)}


class GuessTask:
    class Settings(Section):
        """None."""

    name, metric, max_turns, workers = "guess", "success", 3, 1
    episodes = GuessEpisode

    def __init__(self, settings, seed=0):
        pass

    def problems(self, split):
        kinds = ("colour", "number")
        return [Problem(f"{split}{i}", "?", {"kind": kinds[i % 2], "word": f"w{i}"}) for i in range(6)]

    def rewards(self):
        return {"success": lambda problem, rollout: rollout.outcome["success"]}

    def baselines(self):
        return {}

    def gold(self, problem):
        return None

    def episode(self, problem, seed):
        return self.episodes(problem.columns["word"])


class WithoutExpert(GuessTask):
    class episodes(GuessEpisode):
        def expert(self):
            return None


class ExpertOfOneKind(GuessTask):
    def episode(self, problem, seed):
        guess = self.episodes(problem.columns["word"])
        if problem.id in ("train1", "heldout1"):
            guess.expert = lambda: "no idea"
        return guess


class PaysSilence(GuessTask):
    class episodes(GuessEpisode):
        def close(self):
            return {"success": float(self.said in ("", self.word))}


class BreaksOnOddText(GuessTask):
    class episodes(GuessEpisode):
        def step(self, text):
            if "\x00" in text:
                raise EpisodeError("the page crashed")
            return super().step(text)


class Forgetful(GuessTask):
    played = 0

    def episode(self, problem, seed):
        Forgetful.played += 1
        return super().episode(problem, seed) if Forgetful.played <= 36 else GuessEpisode("something else")


@pytest.fixture
def checked(monkeypatch):
    """Check a task of this file by its import path; return {check: (passed, detail)}."""
    monkeypatch.setitem(sys.modules, "episodes_under_test", sys.modules[__name__])

    def check(task):
        settings = {"task": {"name": f"episodes_under_test:{task.__name__}"}, "rewards": {"success": 1.0}}
        return {c.check: (c.state != "found", c.message) for c in check_task(config.resolve(settings))}

    return check


def failed(found):
    return {name for name, (passed, _) in found.items() if not passed}


def test_a_task_whose_expert_solves_it_passes_with_its_numbers(checked):
    assert checked(GuessTask) == {
        "problems": (True, "trains on 6 problems, judged by 6 held-out problems"),
        "gold answer": (True, "mean success 1.000, expected at least 0.8"),
        "empty answer": (True, "mean success 0.000, expected at most 0.05"),
        "scoring repeats": (True, "0 of 12 answers scored differently"),
        "hostile answers": (True, "10 malformed answers, 0 left unscored"),
    }


def test_a_task_without_an_expert_is_asked_for_one(checked):
    found = checked(WithoutExpert)
    assert failed(found) == set()
    assert found["gold answer"][1] == "the task knows none; give one to have it checked"


def test_an_expert_who_fails_at_one_kind_of_problem_fails_by_its_name(checked):
    found = checked(ExpertOfOneKind)
    assert failed(found) == {"gold answer"}
    # Of all problems 10 of 12 are solved, of those that ask for a number 4 of 6.
    assert found["gold answer"][1] == "of 'number': mean success 0.667, expected at least 0.8"


def test_an_episode_that_pays_for_silence_fails(checked):
    assert failed(checked(PaysSilence)) == {"empty answer"}


def test_an_episode_that_breaks_on_what_a_model_may_write_fails(checked):
    found = checked(BreaksOnOddText)
    assert failed(found) == {"hostile answers"}
    assert found["hostile answers"][1] == "10 malformed answers, 1 left unscored (the page crashed)"


def test_episodes_that_end_otherwise_the_second_time_fail(checked, monkeypatch):
    monkeypatch.setattr(Forgetful, "played", 0)
    assert "scoring repeats" in failed(checked(Forgetful))
