"""Which problems come next: a record of pure functions that chooses before a step and observes it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from steadyrl.core.config import Config
from steadyrl.core.errors import ConfigError, DataError
from steadyrl.core.protocols import Editable, Task
from steadyrl.core.types import Group, Problem
from steadyrl.loop.curriculum.memory import Known, Memory

_DRAW_KEY = 2**31 + 2  # the draws never meet the seeds of rollouts or the shuffles of minibatches
_LEAST_SHARE = 1e-12  # so that a draw without replacement never runs out of problems

Mutate = Callable[[Problem, np.random.Generator], Problem]


@dataclass(frozen=True)
class Request:
    """What a step asks of a curriculum."""

    problems: Sequence[Problem]
    """The task's problems."""
    count: int
    """How many to choose."""
    drawn: int
    """How many were chosen so far in the run."""
    step: int
    """Steps that are finished."""
    seed: int
    """The run's seed."""
    mutate: Mutate | None = None
    """Makes a problem into one like it; None where the task offers none."""

    def generator(self) -> np.random.Generator:
        """Return the generator of this choice: it follows from the run's seed and what was drawn before."""
        return np.random.default_rng([self.seed, _DRAW_KEY, self.drawn])


@dataclass(frozen=True)
class Choice:
    """What a curriculum chose."""

    problems: list[Problem]
    """In the order of the step."""
    why: list[str]
    """The reason for each of them, one line."""
    entropy: float | None
    """Entropy of the distribution drawn from, nats; None where nothing was weighed."""
    memory: Memory
    """The memory, with the problems that were made for this choice."""


@dataclass(frozen=True)
class Curriculum:
    """A curriculum is a record of functions; the loop knows no names of curricula."""

    choose: Callable[[Request, Memory], Choice]
    """Chooses the problems of a step."""
    observe: Callable[[Memory, Sequence[Group], int], Memory]
    """Takes in a step's scored groups: memory, groups, steps finished before it -> memory."""
    edits: bool = False
    """True if it needs a task that offers ``mutate``."""


def require_choice(curriculum: Curriculum, config: Config, task: Task, problems: Sequence[Problem]) -> None:
    """Ask a curriculum for the first step's problems, so that it reports what it lacks before anything runs.

    Raises:
        SteadyError: It edits problems and the task cannot, or the problems lack the column that it chooses by.
    """
    mutate = task.mutate if isinstance(task, Editable) else None
    if curriculum.edits and mutate is None:
        raise ConfigError(
            f"curriculum.name = '{config.curriculum.name}' edits problems, and the task '{config.task.name}' has no "
            "method mutate(problem, generator) for that; take 'plr' or 'learnability'"
        )
    curriculum.choose(Request(problems, config.rollout.prompts_per_step, 0, 0, config.run.seed, mutate), Memory())


def require_several(name: str, column: str, values: Collection[object]) -> None:
    """Refuse (DataError) a curriculum by a column with one value in all problems: it would choose nothing."""
    distinct = set(values)
    if len(distinct) == 1:
        (value,) = distinct
        text = f"{value:g}" if isinstance(value, float) else str(value)
        raise DataError(
            f"all problems have {column} = {text:.60}, so that the curriculum '{name}' has nothing to "
            "choose by; name another column in curriculum.args.column, or take 'uniform'"
        )


def shares(weights: np.ndarray) -> np.ndarray:
    """Return weights [N] >= 0 as probabilities; they are equal where all weights are 0."""
    total = float(weights.sum())
    return weights / total if total > 0 else np.full(len(weights), 1.0 / len(weights))


def entropy(probabilities: np.ndarray) -> float:
    """Return the entropy of probabilities [N], nats."""
    positive = probabilities[probabilities > 0]
    return float(-(positive * np.log(positive)).sum())


def draw(probabilities: np.ndarray, count: int, generator: np.random.Generator) -> list[int]:
    """Draw ``count`` different indices with these probabilities [N]; where count > N, each count // N times first."""
    size = len(probabilities)
    repeats, remainder = divmod(count, size)
    never_zero = shares(probabilities + _LEAST_SHARE)
    return [*range(size)] * repeats + [int(i) for i in generator.choice(size, remainder, replace=False, p=never_zero)]


def weighed(
    pool: Sequence[Problem],
    probabilities: np.ndarray,
    request: Request,
    memory: Memory,
    reason_of: Callable[[int], str],
    generator: np.random.Generator | None = None,
) -> Choice:
    """Draw a step's problems from a pool with these probabilities [N]; ``reason_of`` gives the reason for an index."""
    indices = draw(probabilities, request.count, generator or request.generator())
    return Choice([pool[i] for i in indices], [reason_of(i) for i in indices], entropy(probabilities), memory)


def reason(score_name: str, score: np.ndarray, stats: Known, probabilities: np.ndarray, i: int) -> str:
    """Return the reason why a problem was drawn: one line with its numbers."""
    chance = f"probability {probabilities[i]:.3g} of {len(score)} problems"
    if not stats.drawn[i]:
        return f"not drawn yet; {chance}"
    if not stats.rollouts[i]:
        return f"never scored, drawn {stats.stale[i]:.0f} steps ago; {chance}"
    mean, stale = stats.mean[i], stats.stale[i]
    return f"{score_name} {score[i]:.3g}, mean reward {mean:.3g}, drawn {stale:.0f} steps ago; {chance}"
