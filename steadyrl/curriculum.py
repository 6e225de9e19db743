"""Which problems come next: curricula as records of pure functions, and what they remember of earlier rollouts.

A curriculum chooses before a step and observes its scored groups afterwards. All it remembers are numbers by problem id
(and problems that it made itself), so that a checkpoint holds it and a resumed run chooses as the unbroken one.
Here are the choice by passes and by learnability; ``bandit`` and ``level_replay`` have the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from steadyrl.config import Config
from steadyrl.errors import ConfigError
from steadyrl.protocols import Editable, Task
from steadyrl.sections import Section
from steadyrl.types import Group, Problem

MOST_KNOWN = 20_000  # problems remembered, some 3 MB of a checkpoint; those not drawn for longest are forgotten
PRIOR_ROLLOUTS = 2.0  # what is known before the first rollout weighs as much as two: a uniform prior of a success rate
_DRAW_KEY = 2**31 + 2  # the draws never meet the seeds of rollouts or the shuffles of minibatches
_LEAST_SHARE = 1e-12  # so that a draw without replacement never runs out of problems

Mutate = Callable[[Problem, np.random.Generator], Problem]


@dataclass(frozen=True)
class Memory:
    """What a curriculum knows.

    Attributes:
        seen: Numbers by problem id (or by arm), see ``record_outcomes``.
        made: Problems that the curriculum made by editing, by id.
    """

    seen: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    made: Mapping[str, Problem] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return data for JSON; ``recall(memory.plain()) == memory``."""
        made = [{"id": p.id, "prompt": p.prompt, "columns": dict(p.columns)} for p in self.made.values()]
        return {"seen": {name: dict(numbers) for name, numbers in self.seen.items()}, "made": made}


def recall(data: Mapping[str, Any]) -> Memory:
    """Return the memory that ``plain`` wrote; an empty one of nothing."""
    return Memory(data.get("seen", {}), {made["id"]: Problem(**made) for made in data.get("made", ())})


@dataclass(frozen=True)
class Request:
    """What a step asks of a curriculum.

    Attributes:
        problems: The task's.
        count: How many to choose.
        drawn: How many were chosen so far in the run.
        step: Steps that are finished.
        seed: The run's.
        mutate: Makes a problem into one like it; None where the task offers none.
    """

    problems: Sequence[Problem]
    count: int
    drawn: int
    step: int
    seed: int
    mutate: Mutate | None = None

    def generator(self) -> np.random.Generator:
        """Return the generator of this choice: it follows from the run's seed and what was drawn before."""
        return np.random.default_rng([self.seed, _DRAW_KEY, self.drawn])


@dataclass(frozen=True)
class Choice:
    """What a curriculum chose.

    Attributes:
        problems: In the order of the step.
        why: A line for each of them.
        entropy: Of the distribution drawn from, nats; None where nothing was weighed.
        memory: With the problems that were made for this choice.
    """

    problems: list[Problem]
    why: list[str]
    entropy: float | None
    memory: Memory


@dataclass(frozen=True)
class Curriculum:
    """A curriculum is a record of functions; the loop knows no names of curricula.

    Attributes:
        choose: Chooses the problems of a step.
        observe: Takes in a step's scored groups: memory, groups, steps finished before it -> memory.
        edits: True if it needs a task that offers ``mutate``.
    """

    choose: Callable[[Request, Memory], Choice]
    observe: Callable[[Memory, Sequence[Group], int], Memory]
    edits: bool = False


def require_choice(curriculum: Curriculum, config: Config, task: Task, problems: Sequence[Problem]) -> None:
    """Ask a curriculum once for what the first step will, so that what it lacks is said before anything runs.

    Raises:
        SteadyError: It edits problems and the task cannot, or the problems lack what it chooses by.
    """
    mutate = task.mutate if isinstance(task, Editable) else None
    if curriculum.edits and mutate is None:
        raise ConfigError(
            f"curriculum.name = '{config.curriculum.name}' edits problems, and the task '{config.task.name}' has no "
            "method mutate(problem, generator) for that; take 'plr' or 'learnability'"
        )
    curriculum.choose(Request(problems, config.rollout.prompts_per_step, 0, 0, config.run.seed, mutate), Memory())


@dataclass(frozen=True)
class Known:
    """What is remembered of N problems (or arms), as arrays [N]; 0 where nothing is.

    Attributes:
        seen: bool, drawn before and remembered.
        rollouts: Scored rollouts behind the numbers, old ones counting for less.
        mean, square: Of the reward and of its square.
        deviation: Mean distance of a reward from the mean of its group: the size of the advantages.
        best: Highest reward ever.
        stale: Steps since the last draw; since the start for those never drawn.
    """

    seen: np.ndarray
    rollouts: np.ndarray
    mean: np.ndarray
    square: np.ndarray
    deviation: np.ndarray
    best: np.ndarray
    stale: np.ndarray


def record_outcomes(
    memory: Memory,
    groups: Sequence[Group],
    step: int,
    decay: float,
    name: Callable[[Problem], str] = lambda problem: problem.id,
) -> Memory:
    """Take the rewards of a step's groups into the memory; what was known counts for ``decay`` of itself.

    Groups without any signal count like the others: that a problem is solved, or never, is what they tell. A problem
    none of whose rollouts could be scored is remembered as drawn, with nothing known.

    Args:
        memory: Is left alone.
        groups: Scored; unscored rollouts are passed over.
        step: Steps finished before.
        decay: In [0, 1).
        name: What numbers are kept by.
    """
    rewards: dict[str, list[np.ndarray]] = {}
    for group in groups:
        scored = np.array([r.reward for r in group.rollouts if r.reward is not None], np.float64)
        rewards.setdefault(name(group.problem), []).append(scored)
    seen = dict(memory.seen)
    for key, parts in rewards.items():
        seen[key] = _with_rewards(seen.get(key), parts, step, decay)
    if len(seen) > MOST_KNOWN:
        latest = sorted(seen, key=lambda key: -seen[key]["last"])[:MOST_KNOWN]
        kept = set(latest)
        seen = {key: numbers for key, numbers in seen.items() if key in kept}
    return replace(memory, seen=seen)


def _with_rewards(
    before: Mapping[str, float] | None, parts: Sequence[np.ndarray], step: int, decay: float
) -> dict[str, float]:
    rewards = np.concatenate(parts)
    if not rewards.size:
        return {**(before or {"rollouts": 0.0}), "last": float(step)}
    distances = np.concatenate([np.abs(part - part.mean()) for part in parts if part.size])
    fresh = {"mean": rewards, "square": rewards**2, "deviation": distances}
    old = decay * before["rollouts"] if before else 0.0
    total = old + rewards.size
    found = {"rollouts": total, "last": float(step), "best": float(rewards.max())}
    if before and "best" in before:
        found["best"] = max(found["best"], before["best"])
    for key, values in fresh.items():
        found[key] = float((old * (before or {}).get(key, 0.0) + values.sum()) / total)
    return found


def look_up(names: Sequence[str], memory: Memory, step: int) -> Known:
    """Return what is remembered under some names, in their order."""
    found = [memory.seen.get(name) for name in names]

    def column(key: str) -> np.ndarray:
        return np.array([numbers.get(key, 0.0) if numbers else 0.0 for numbers in found])

    return Known(
        seen=np.array([numbers is not None for numbers in found], bool),
        rollouts=column("rollouts"),
        mean=column("mean"),
        square=column("square"),
        deviation=column("deviation"),
        best=column("best"),
        stale=np.array([step - numbers["last"] if numbers else step + 1.0 for numbers in found]),
    )


def shares(weights: np.ndarray) -> np.ndarray:
    """Return weights [N] >= 0 as probabilities; equal ones where all weights are 0."""
    total = float(weights.sum())
    return weights / total if total > 0 else np.full(len(weights), 1.0 / len(weights))


def entropy(probabilities: np.ndarray) -> float:
    """Return the entropy of probabilities [N], nats."""
    positive = probabilities[probabilities > 0]
    return float(-(positive * np.log(positive)).sum())


def draw(probabilities: np.ndarray, count: int, generator: np.random.Generator) -> list[int]:
    """Draw ``count`` different indices with these probabilities [N]; where count > N, each count // N times first."""
    size = len(probabilities)
    turns, rest = divmod(count, size)
    never_zero = shares(probabilities + _LEAST_SHARE)
    return [*range(size)] * turns + [int(i) for i in generator.choice(size, rest, replace=False, p=never_zero)]


def learnability(known: Known) -> np.ndarray:
    """Return the variance of a problem's reward, which is p(1 - p) for a success rate p, [N].

    It is largest at p = 1/2, and 0 for problems that are always or never solved, from which nothing is to be
    learned. For rewards between failure and success it is the part of p(1 - p) that rollouts really differ by.
    Unseen problems are taken for average ones, and every estimate is drawn towards that by two rollouts.

    Source:
        Rutherford et al., "No Regrets" (arXiv 2408.15099): sampling for learnability, from each level's success rate.
    """
    variance = np.maximum(known.square - known.mean**2, 0.0)
    measured = known.rollouts > 0
    prior = float(variance[measured].mean()) if measured.any() else 0.0
    found: np.ndarray = (PRIOR_ROLLOUTS * prior + known.rollouts * variance) / (PRIOR_ROLLOUTS + known.rollouts)
    return found


def uniform(problems: int, drawn: int, count: int, seed: int) -> list[int]:
    """Return the next problems of an endless series of shuffled passes over all of them.

    A pure function of how many were drawn before, so that nothing but that number has to be saved.

    Args:
        problems: How many there are, at least one.
        drawn: How many were drawn so far.
        count: How many to draw.
        seed: Of the shuffles; every pass has its own.

    Returns:
        ``count`` indices below ``problems``.
    """
    indices: list[int] = []
    while len(indices) < count:
        turn, start = divmod(drawn + len(indices), problems)
        order = np.random.default_rng([seed, turn]).permutation(problems)
        indices += order[start : start + count - len(indices)].tolist()
    return indices


class Uniform:
    """Shuffled passes over all problems."""

    class Settings(Section):
        """Passes have no settings."""

    @staticmethod
    def build(settings: Settings) -> Curriculum:
        """Return the passes as a record of functions."""

        def choose(request: Request, memory: Memory) -> Choice:
            indices = uniform(len(request.problems), request.drawn, request.count, request.seed)
            return Choice([request.problems[i] for i in indices], [""] * len(indices), None, memory)

        return Curriculum(choose=choose, observe=lambda memory, groups, step: memory)


class Learnability:
    """Problems by the variance of their reward, with a share for those not drawn for long and one for all."""

    class Settings(Section):
        """How much is drawn by what."""

        stale_share: float = Field(0.1, ge=0, le=1, description="drawn by the steps since the last draw")
        uniform_share: float = Field(0.1, ge=0, le=1, description="drawn from all problems alike")
        sharpness: float = Field(1.0, ge=0, description="power of the learnability; 0 makes all alike")
        decay: float = Field(0.5, ge=0, lt=1, description="what earlier rollouts of a problem count for at each draw")

        @model_validator(mode="after")
        def _shares_leave_room(self) -> Learnability.Settings:
            if self.stale_share + self.uniform_share > 1:
                raise ValueError("stale_share + uniform_share of at most 1")
            return self

    @staticmethod
    def build(settings: Settings) -> Curriculum:
        """Return the curriculum as a record of functions."""

        def choose(request: Request, memory: Memory) -> Choice:
            known = look_up([problem.id for problem in request.problems], memory, request.step)
            score = learnability(known)
            probabilities = (
                (1 - settings.stale_share - settings.uniform_share) * shares(score**settings.sharpness)
                + settings.stale_share * shares(known.stale)
                + settings.uniform_share / len(score)
            )
            chosen = draw(probabilities, request.count, request.generator())
            return Choice(
                [request.problems[i] for i in chosen],
                [reason("learnability", score, known, probabilities, i) for i in chosen],
                entropy(probabilities),
                memory,
            )

        return Curriculum(
            choose=choose,
            observe=lambda memory, groups, step: record_outcomes(memory, groups, step, settings.decay),
        )


def reason(what: str, score: np.ndarray, known: Known, probabilities: np.ndarray, i: int) -> str:
    """Return why a problem was drawn, in a line with its numbers."""
    chance = f"probability {probabilities[i]:.3g} of {len(score)} problems"
    if not known.seen[i]:
        return f"not drawn yet; {chance}"
    if not known.rollouts[i]:
        return f"never scored, drawn {known.stale[i]:.0f} steps ago; {chance}"
    return f"{what} {score[i]:.3g}, mean reward {known.mean[i]:.3g}, drawn {known.stale[i]:.0f} steps ago; {chance}"
