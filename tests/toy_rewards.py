"""Rewards that runs of the tests name by import path."""

import os
import signal
from pathlib import Path


def share_of_a(problem, rollout):
    """Which part of the completion is the letter a; what the toy backend has to learn."""
    return rollout.text.count("a") / max(1, len(rollout.text))


def refuses_odd_lengths(problem, rollout):
    """Raise for about half of the rollouts."""
    if len(rollout.completion_ids) % 2:
        raise RuntimeError("odd")
    return 1.0


def always_fails(problem, rollout):
    """Raise for every rollout."""
    raise RuntimeError("broken")


def first_letter(problem, rollout):
    """A number with a measurement beside it."""
    return {"first_letter": float(rollout.text[:1] == problem.prompt[:1]), "letters": float(len(rollout.text))}


def nothing(problem, rollout):
    """Reward everything alike."""
    return 0.0


def first_is_target(problem, rollout):
    """Whether the first letter is the problem's target; never for a problem that is dead."""
    return float(rollout.text[:1] == problem.columns["target"])


def dies_once(problem, rollout):
    """Kill the process at its 100th call, unless a file says that it did so before."""
    done = Path(os.environ["DIED"])
    with done.open("a") as file:
        file.write(".")
    if done.stat().st_size == 100:
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


def changes_the_folder(problem, rollout):
    """Make the folder of the user's own data the current one, as scripts do."""
    os.chdir(Path(__file__).parent)
    return 1.0
