"""The rewards of config.toml: is the last number of an answer the right one?

steadyrl calls each function with a problem and one answer. ``problem.prompt`` is the prompt, ``problem.columns`` holds
the other columns of its row, and ``rollout.text`` is the answer as the model wrote it. A reward is a number, or None
where there is nothing to judge. Check changes with `steadyrl task check config.toml`.
"""

from steadyrl.core.types import Problem, Rollout
from steadyrl.loop.rewards.answers import final_number

ANSWER = "answer"  # the column with the right answer


def correct(problem: Problem, rollout: Rollout) -> float:
    """Return 1 if the last number of the answer equals the right one, else 0."""
    number = final_number(rollout.text)
    return float(number is not None and number == final_number(str(problem.columns[ANSWER])))


def number(problem: Problem, rollout: Rollout) -> float:
    """Return 1 if the answer has a number at all, so that the model first learns to write one."""
    return float(final_number(rollout.text) is not None)
