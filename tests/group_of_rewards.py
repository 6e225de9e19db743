"""Groups of rollouts of which only the rewards matter."""

import numpy as np

from steadyrl.core.types import Group, Problem, Rollout


def group(name, *rewards, **columns):
    """A group of a problem with these rewards; None is an unscored rollout."""
    rollout = {
        "problem_id": name,
        "prompt_ids": np.zeros(1, np.int32),
        "completion_ids": np.zeros(1, np.int32),
        "completion_mask": np.ones(1, bool),
        "sampling_logprobs": np.zeros(1, np.float32),
        "text": "",
        "stop_reason": "stop",
    }
    return Group(Problem(name, name, columns), tuple(Rollout(**rollout, reward=reward) for reward in rewards))
