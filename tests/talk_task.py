"""A task of several turns for tests, named by import path: its observations have as many words as a problem says."""

from pydantic import Field

from steadyrl.core.config import Section
from steadyrl.core.errors import EpisodeError
from steadyrl.core.protocols import Turn
from steadyrl.core.types import Problem


class Talk:
    """Three turns; every answer is shown some words, the last line asks for the next."""

    def __init__(self, words):
        self.words, self.said = words, []

    def open(self):
        if not self.words:
            raise EpisodeError("nobody is there")
        return self._words()

    def step(self, text):
        self.said.append(text)
        return Turn(self._words(), len(self.said) == 3)

    def _words(self):
        return " ".join(["word"] * self.words) + "\nsay:"

    def close(self):
        return {"said": self.said}


class TalkTask:
    """See Task and Interactive; ``words`` of its settings are those of the problems, one after the other."""

    class Settings(Section):
        """How long observations are; with 0 words nothing opens."""

        words: list[int] = Field(default_factory=lambda: [2, 4, 6, 8])

    name, metric = "talk", "said_a"
    max_turns, workers = 5, 1

    def __init__(self, settings, seed=0):
        self._words = settings.words

    def problems(self, split):
        return [Problem(f"{split}-{i}", f"ask {i}", {"words": n}) for i, n in enumerate(self._words * 4)]

    def rewards(self):
        return {"said_a": lambda problem, rollout: float("".join(rollout.turns).count("a"))}

    def baselines(self):
        return {}

    def gold(self, problem):
        return None

    def episode(self, problem, seed):
        return Talk(problem.columns["words"])
