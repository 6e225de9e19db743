"""The reward of config.toml: the data have no right answers, so this file has to say what a good answer is.

steadyrl calls each function with a problem and one answer. ``problem.prompt`` is the prompt, ``problem.columns`` holds
the other columns of its row, and ``rollout.text`` is the answer as the model wrote it. A reward is a number, or None
where there is nothing to judge. Check changes with `steadyrl task check config.toml`.
"""

from steadyrl.core.types import Problem, Rollout


def on_topic(problem: Problem, rollout: Rollout) -> float:
    """Return the share of the answer's words that the prompt has too. Replace this by what a good answer is to you."""
    words = rollout.text.lower().split()
    prompt = set(problem.prompt.lower().split())
    return sum(word in prompt for word in words) / len(words) if words else 0.0
