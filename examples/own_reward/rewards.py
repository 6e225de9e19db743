"""Two rewards of your own: one in steadyrl's form, one written for TRL, which runs unchanged."""


def echo(problem, rollout):
    """Return the share of the answer's characters that are the letter asked for; None would mean "cannot tell"."""
    answer = rollout.text.strip()  # rewards get the text as it was decoded
    return answer.count(problem.columns["letter"]) / len(answer) if answer else 0.0


def brevity(completions, **kwargs) -> list[float]:
    """Reward function that gives higher scores to shorter completions."""
    return [1.0 - len(completion) / 20 for completion in completions]
