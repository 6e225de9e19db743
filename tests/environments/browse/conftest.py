import random

import pytest

from steadyrl.environments.browse.settings import BrowseSettings
from steadyrl.environments.browse.task import BrowseTask

WORDS = ["red", "book", "dark map", "x<y&z;+%41", "é ü 漢"]
OPTIONS = ["red", "small", "closed", "any", "high"]


@pytest.fixture(scope="session")
def site():
    """Return the task on all families without a browser."""
    return BrowseTask(BrowseSettings(train_count=12))


def expert(episode, turn):
    return episode.expert()


def stumbler(seed):
    """Return a policy that presses, writes, chooses and scrolls at random, sometimes nonsense."""
    rng = random.Random(seed)

    def say(episode, turn):
        number = rng.randrange(6)
        write = f'type {number} "{rng.choice(WORDS)}"'
        choose = f'select {number} "{rng.choice(OPTIONS)}"'
        others = [write, write, choose, "back", "back", "scroll down", "scroll up", "nonsense", "click 99"]
        return rng.choice([f"click {number}"] * 6 + others)

    return say


def play(task, problem, say):
    """Return everything that is seen and done in an episode, and what it came to."""
    episode = task.episode(problem, 0)
    seen = [episode.open()]
    for turn in range(task.max_turns):
        said = say(episode, turn)
        answer = episode.step(said)
        seen += [said, answer.observation]
        if answer.done:
            break
    return seen, episode.close()


@pytest.fixture(scope="session")
def site_in_chromium():
    """Return the same task in Chromium."""
    task = BrowseTask(BrowseSettings(engine="browser", workers=2))
    yield task
    task.close()
