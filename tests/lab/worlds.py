"""What tests of comparisons name by import path: a reward, a task of several turns, backends that watch or break."""

import weakref
from typing import ClassVar

from steadyrl.backends.toy import ToyBackend
from steadyrl.core.config import Section
from steadyrl.core.errors import EpisodeError
from steadyrl.core.protocols import Turn
from steadyrl.core.types import Problem

SEEDS = []  # of the worlds opened, by problem


def difficulty(problem, rollout):
    """Reward what a column of the problem holds, whatever the answer."""
    return float(problem.columns["difficulty"])


class Echo:
    """Two turns; the second answer is worth its share of the letter e."""

    def __init__(self, problem, seed):
        self.problem, self.said = problem, []
        SEEDS.append((problem.id, seed))

    def open(self):
        if self.problem.id == "broken":
            raise EpisodeError("the page did not load")
        return "hi"

    def step(self, text):
        self.said.append(text)
        return Turn("more", len(self.said) == 2)

    def close(self):
        return {"said": self.said}


class EchoTask:
    """See Task and Interactive."""

    class Settings(Section):
        """None."""

    name, metric = "echo", "share_of_e"
    max_turns, workers = 2, 2

    def __init__(self, settings, seed=0):
        pass

    def problems(self, split):
        return [Problem(f"{split}-{i}", f"say {i}") for i in range(5)] + [Problem("broken", "say it")]

    def rewards(self):
        return {"share_of_e": lambda problem, rollout: rollout.outcome["said"][-1].count("e") / 4}

    def baselines(self):
        return {}

    def gold(self, problem):
        return None

    def episode(self, problem, seed):
        return Echo(problem, seed)


class Alone(ToyBackend):
    """A toy backend that must be the only one."""

    living: ClassVar = weakref.WeakSet()

    @classmethod
    def create(cls, config, algorithm):
        assert not cls.living, "a model is still in memory"
        backend = cls(config.run.seed)
        cls.living.add(backend)
        return backend


class Killed(ToyBackend):
    """A toy backend that ends the program in its second batch."""

    batches = 0

    def generate(self, prompts, sampling, seeds):
        type(self).batches += 1
        if type(self).batches == 2:
            raise KeyboardInterrupt
        return super().generate(prompts, sampling, seeds)
