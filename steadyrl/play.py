"""Episodes of several turns: all of them one turn at a time, so that the policy answers them in one batch.

The ids that the policy drew are kept as they are, and so are those of what the world answered; nothing is encoded
again. Only the policy's own tokens stand under the mask.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steadyrl.episode import cut_observation
from steadyrl.errors import DataError, EpisodeError
from steadyrl.protocols import Backend, Episode, Interactive, Task, Tokenizer
from steadyrl.sections import RolloutSection
from steadyrl.types import Completion, Group, Problem, Rollout, Sampling, StopReason

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class World:
    """Where problems answer back.

    Attributes:
        task: Makes the episodes.
        turn_tokens: A turn of the policy, at most.
        max_tokens: Prompt and turns together, at most; 0 for no limit.
        observation_tokens: An observation, at most; 0 for no limit.
    """

    task: Interactive
    turn_tokens: int
    max_tokens: int = 0
    observation_tokens: int = 0

    def has_room(self, tokens: int) -> bool:
        """Return whether one more turn fits behind so many tokens."""
        return not self.max_tokens or tokens + self.turn_tokens <= self.max_tokens


def world_of(task: Task, sampling: Sampling, limits: RolloutSection) -> World | None:
    """Return the world of a task whose problems answer back, or None for one whose problems do not."""
    if not isinstance(task, Interactive):
        return None
    return World(task, sampling.max_new_tokens, limits.max_tokens, limits.observation_tokens)


def require_tokens(groups: Sequence[Group], world: World | None) -> None:
    """Refuse rollouts none of which holds a token of the policy: no backend can train on nothing.

    Raises:
        DataError: With the limit that left no room for a turn, where that is the reason.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    if any(rollout.completion_mask.any() for rollout in rollouts):
        return
    require_room(rollouts, world)
    raise DataError(
        f"none of {len(rollouts)} rollouts holds a token of the policy, so that there is nothing to train on; see what "
        "ended them (rollouts/ has their prompts)"
    )


def require_room(rollouts: Sequence[Rollout], world: World | None) -> None:
    """Refuse rollouts that all lack a turn, some of them because none fits behind the first observation.

    Raises:
        DataError: With the numbers of tokens, and what to set.
    """
    lengths = [len(r.prompt_ids) for r in rollouts if world and not world.has_room(len(r.prompt_ids))]
    if not lengths or world is None:
        return
    low, high = min(lengths), max(lengths)
    raise DataError(
        f"rollout.max_tokens = {world.max_tokens} leaves no room for a turn: problem and first observation take "
        f"{low if low == high else f'{low} to {high}'} tokens, and a turn may take sampling.max_new_tokens = "
        f"{world.turn_tokens}; set rollout.max_tokens to {high + world.turn_tokens} or more (each further turn "
        "and its observation need room too), or to 0 for no limit"
    )


@dataclass(frozen=True)
class Attempt:
    """A problem, and what the draws of one attempt at it depend on.

    Attributes:
        problem: The problem.
        key: Numbers, the last of which tells attempts at one problem apart.
    """

    problem: Problem
    key: tuple[int, ...]

    def seed(self, *more: int) -> int:
        """Return a seed of its own for this attempt and ``more``."""
        return _seed((*self.key, *more))

    def world_seed(self) -> int:
        """Return the seed of the world, equal for all attempts at the problem: they are compared with one another."""
        return _seed(self.key[:-1])


@dataclass
class Playing:
    """An episode under way.

    Attributes:
        attempt: What it is an attempt at.
        episode: The world's side of it.
        prompt: [P] ids before the policy's first turn.
        observation: The newest one.
        ids, mask, logprobs, kept: What followed the prompt, and what Rollout says of it.
        turns: What the policy said.
        stop_reason: "length" where the last turn was cut, or room or turns ran out.
        observations, observations_cut: See Rollout.
        done: Whether it is over.
        broken: Why it has no reward, where its world broke.
        outcome: What it came to.
    """

    attempt: Attempt
    episode: Episode
    prompt: np.ndarray
    observation: str = ""
    ids: list[np.ndarray] = field(default_factory=list)
    mask: list[np.ndarray] = field(default_factory=list)
    logprobs: list[np.ndarray] = field(default_factory=list)
    kept: list[tuple[np.ndarray, ...]] = field(default_factory=list)
    turns: list[str] = field(default_factory=list)
    stop_reason: StopReason = "stop"
    observations: int = 0
    observations_cut: int = 0
    done: bool = False
    broken: str | None = None
    outcome: Mapping[str, Any] = field(default_factory=dict)

    @property
    def context(self) -> np.ndarray:
        """Return everything so far, [T] int32."""
        return np.concatenate([self.prompt, *self.ids]).astype(np.int32)

    def add(self, ids: np.ndarray, logprobs: np.ndarray | None, kept: tuple[np.ndarray, ...] | None) -> None:
        """Append the policy's tokens, or (without log-probs) the world's."""
        chosen = logprobs is not None
        self.ids.append(ids)
        self.mask.append(np.full(len(ids), chosen))
        self.logprobs.append(logprobs if logprobs is not None else np.zeros(len(ids), np.float32))
        self.kept.append(kept if kept is not None else (np.zeros(0, np.int32),) * len(ids))


# Episodes and the number of the turn to what is said in each; None where nobody knows what to say.
Speaker = Callable[[Sequence[Playing], int], "list[Completion | None]"]


def policy_speaker(backend: Backend, sampling: Sampling) -> Speaker:
    """Return the speaker that samples the policy."""

    def speak(playing: Sequence[Playing], turn: int) -> list[Completion | None]:
        seeds = [one.attempt.seed(turn) for one in playing]
        return list(backend.generate([one.context for one in playing], sampling, seeds))

    return speak


def play(
    tokenizer: Tokenizer, world: World, attempts: Sequence[Attempt], speaker: Speaker | None, policy_version: int
) -> list[Rollout]:
    """Play all attempts to their ends.

    Args:
        tokenizer: The policy's.
        world: Where they are played.
        attempts: What is played.
        speaker: Says the policy's turns; None has the worlds' own experts say them.
        policy_version: Recorded on the rollouts.

    Returns:
        A rollout per attempt, in order; unscored where its world broke.
    """
    speak = speaker or _expert_speaker(tokenizer)
    playing = [Playing(a, world.task.episode(a.problem, a.world_seed()), np.zeros(0, np.int32)) for a in attempts]
    with _crew(world.task.workers) as each:
        try:
            each(lambda one: _open(tokenizer, world, one), playing)
            for turn in range(world.task.max_turns):
                if not (live := [one for one in playing if not one.done]):
                    break
                said = zip(live, speak(live, turn), strict=True)
                each(lambda pair: _take_turn(tokenizer, world, *pair), list(said))
        finally:
            each(_close, playing)
    return [_rollout(one, policy_version) for one in playing]


def _expert_speaker(tokenizer: Tokenizer) -> Speaker:
    def say(one: Playing) -> Completion | None:
        text = one.episode.expert()
        if text is None:
            return None
        ids = tokenizer.encode_answer(text, one.observation)
        return Completion(ids, np.full(len(ids), np.nan, np.float32), "stop")

    return lambda playing, turn: [say(one) for one in playing]


def _open(tokenizer: Tokenizer, world: World, one: Playing) -> None:
    with _survived(one):
        one.observation = one.episode.open()
    _fit_observation(tokenizer, world, one)
    # What the policy sees first is the problem and the observation, as one message.
    one.observation = "\n".join(filter(None, [one.attempt.problem.prompt, one.observation]))
    one.prompt = tokenizer.encode_prompt(one.observation)
    if not world.has_room(len(one.prompt)):
        one.done, one.stop_reason = True, "length"


def _take_turn(tokenizer: Tokenizer, world: World, one: Playing, said: Completion | None) -> None:
    """Put what was said to the world, and what it answered behind it."""
    if said is None:
        one.done = True
        return
    one.add(said.ids, said.logprobs, said.kept_ids)
    one.turns.append(tokenizer.decode(said.ids).strip())
    one.stop_reason = said.stop_reason
    with _survived(one):
        answer = one.episode.step(one.turns[-1])
        one.done, one.observation = answer.done, answer.observation
    if one.done:
        return
    _fit_observation(tokenizer, world, one)
    between = tokenizer.encode_turn(one.observation, said.stop_reason == "stop")
    if len(one.turns) == world.task.max_turns or not world.has_room(len(one.context) + len(between)):
        one.done, one.stop_reason = True, "length"
        return
    one.add(between, None, None)


def _fit_observation(tokenizer: Tokenizer, world: World, one: Playing) -> None:
    """Cut the newest observation to the world's limit before it is encoded, and count it."""
    if not world.observation_tokens or not one.observation:
        return
    whole = one.observation
    one.observation = cut_observation(tokenizer, whole, world.observation_tokens)
    one.observations += 1
    one.observations_cut += one.observation != whole


def _close(one: Playing) -> None:
    with _survived(one):
        one.outcome = one.episode.close()


@contextmanager
def _survived(one: Playing) -> Iterator[None]:
    """End an episode whose world broke, and say why; the episodes beside it go on."""
    try:
        yield
    except EpisodeError as error:
        one.done, one.broken = True, one.broken or str(error)
    except Exception as error:  # the rollout boundary: a user's world may raise anything
        reason = f"the episode of '{one.attempt.problem.id}' raised {type(error).__name__}: {error}"
        log.warning("%s", reason)
        one.done, one.broken = True, one.broken or reason


@contextmanager
def _crew(workers: int) -> Iterator[Callable[[Callable[[Any], None], Sequence[Any]], None]]:
    """Yield a function that does something to each of many, ``workers`` of them at a time."""
    with ThreadPoolExecutor(workers) as pool:

        def each(work: Callable[[Any], None], items: Sequence[Any]) -> None:
            for _ in pool.map(work, items) if workers > 1 else map(work, items):
                pass  # what a worker raised is raised here

        yield each


def _rollout(one: Playing, policy_version: int) -> Rollout:
    kept = tuple(ids for part in one.kept for ids in part)
    return Rollout(
        problem_id=one.attempt.problem.id,
        prompt_ids=one.prompt,
        completion_ids=np.concatenate([np.zeros(0, np.int32), *one.ids]).astype(np.int32),
        completion_mask=np.concatenate([np.zeros(0, bool), *one.mask]),
        sampling_logprobs=np.concatenate([np.zeros(0, np.float32), *one.logprobs]).astype(np.float32),
        text="\n".join(one.turns),
        stop_reason=one.stop_reason,
        policy_version=policy_version,
        kept_ids=kept if any(len(ids) for ids in kept) else None,
        unscored=one.broken,
        turns=tuple(one.turns),
        outcome=one.outcome,
        observations=one.observations,
        observations_cut=one.observations_cut,
    )


def _seed(key: tuple[int, ...]) -> int:
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])
