"""Two rewards of your own: one in steadyrl's form, one written for TRL, which runs unchanged."""


def echo(problem, rollout):
    """Return the share of the answer's characters that are the letter asked for; None would mean "cannot tell"."""
    if not rollout.text:
        return 0.0
    return rollout.text.count(problem.columns["letter"]) / len(rollout.text)


def brevity(completions, **kwargs) -> list[float]:
    """Reward function that gives higher scores to shorter completions."""
    return [1.0 - len(completion) / 20 for completion in completions]
