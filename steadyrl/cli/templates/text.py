"""The rewards of config.toml: how near is an answer to the right one?

steadyrl calls each function with a problem and one answer. ``problem.prompt`` is the prompt, ``problem.columns`` holds
the other columns of its row, and ``rollout.text`` is the answer as the model wrote it. A reward is a number, or None
where there is nothing to judge. Check changes with `steadyrl task check config.toml`.
"""

from difflib import SequenceMatcher

from steadyrl.core.types import Problem, Rollout

ANSWER = "answer"  # the column with the right answer


def correct(problem: Problem, rollout: Rollout) -> float:
    """Return 1 if the answer is the right one, capitals and spaces apart, else 0."""
    return float(_plain(rollout.text) == _plain(problem.columns[ANSWER]))


def near(problem: Problem, rollout: Rollout) -> float:
    """Return the similarity of the answer and the right one, 0 to 1, so that a model learns before it is ever right."""
    return SequenceMatcher(None, _plain(rollout.text), _plain(problem.columns[ANSWER]), autojunk=False).ratio()


def _plain(text: object) -> str:
    return " ".join(str(text).lower().split())
