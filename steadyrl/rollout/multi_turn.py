"""The episodes of a batch are played one turn at a time, so that the policy answers them together.

All of them are open at once, unless the task bounds how many may be: then the next episode is opened as soon as one is
over, so that the policy always answers as many as may be open. The bound changes no rollout, for what is drawn in an
episode depends on its own attempt and turn alone.
"""

from __future__ import annotations

import json
import logging
import math
import reprlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from steadyrl.counting.count import tell
from steadyrl.counting.interrupts import at_once
from steadyrl.errors import DataError, EpisodeError, SteadyError, exception_line
from steadyrl.plugins import require_members
from steadyrl.protocols import Backend, Episode, PrefixCaching, Tokenizer, Turn
from steadyrl.rewards.functions import RAISED
from steadyrl.rollout.episode import Attempt, Environment, Playing, cut_observation, text_of
from steadyrl.types import Completion, Message, Problem, Rollout, Sampling

log = logging.getLogger(__name__)

_CLOSE_S = 5.0  # for all environments together, after an interrupt
_ANSWER_S = 1.0  # until a signal is answered, at most
# Does something to each of many.
Each = Callable[[Callable[[Any], None], Sequence[Any]], None]
# Episodes to what is said next in each; None where nobody knows what to say.
Speak = Callable[[Sequence[Playing]], "list[Completion | None]"]


def play_policy(
    backend: Backend, environment: Environment, attempts: Sequence[Attempt], sampling: Sampling, policy_version: int
) -> list[Rollout]:
    """Play all attempts to their ends, every turn drawn from the policy.

    Args:
        backend: Holds the policy.
        environment: Where they are played.
        attempts: What is played.
        sampling: How to draw a turn.
        policy_version: Recorded on the rollouts.

    Returns:
        A rollout per attempt, in order; unscored where its environment broke.
    """

    def speak(playing: Sequence[Playing]) -> list[Completion | None]:
        seeds = [one.attempt.seed(len(one.turns)) for one in playing]
        return list(backend.generate([one.context for one in playing], sampling, seeds))

    with backend.prefix_cache() if isinstance(backend, PrefixCaching) else nullcontext():
        return _play(backend.tokenizer, environment, attempts, speak, policy_version, without=("expert",))


def play_experts(tokenizer: Tokenizer, environment: Environment, attempts: Sequence[Attempt]) -> list[Rollout]:
    """Play all attempts to their ends, every turn said by the environment's own expert; see ``play_policy``."""

    def say(one: Playing) -> Completion | None:
        text = one.episode.expert()
        if text is None:
            return None
        ids = tokenizer.encode_answer(text, one.observation)
        return Completion(ids, np.full(len(ids), np.nan, np.float32), "stop")

    return _play(tokenizer, environment, attempts, lambda playing: [say(one) for one in playing], 0)


def _play(
    tokenizer: Tokenizer,
    environment: Environment,
    attempts: Sequence[Attempt],
    speak: Speak,
    policy_version: int,
    without: Sequence[str] = (),
) -> list[Rollout]:
    most_open = environment.max_open or len(attempts)
    playing: list[Playing] = []  # all that were opened, in the order of the attempts
    live: list[Playing] = []
    with _crew(environment.task.workers) as each:
        try:
            while True:
                while len(live) < most_open and len(playing) < len(attempts):
                    next_ones = attempts[len(playing) : len(playing) + most_open - len(live)]
                    opened = [_begin(environment, attempt) for attempt in next_ones]
                    if not playing:
                        require_members("the task's episode", opened[0].episode, Episode, later=without)
                    playing += opened
                    each(lambda one: _open(tokenizer, environment, one), opened)
                    live = _without_finished(each, [*live, *opened])
                tell("episodes", len(playing) - len(live), len(attempts))
                if not live:
                    break
                said = zip(live, speak(live), strict=True)
                each(lambda pair: _take_turn(tokenizer, environment, *pair), list(said))
                live = _without_finished(each, live)
        finally:
            each(_close, [one for one in playing if not one.closed])
    return [_rollout(one, policy_version) for one in playing]


def _begin(environment: Environment, attempt: Attempt) -> Playing:
    try:
        episode = environment.task.episode(attempt.problem, attempt.environment_seed())
    except SteadyError:
        raise
    except RAISED as error:
        raise DataError(
            f"the task's method episode raised {exception_line(error)} for the problem '{attempt.problem.id}'; "
            "what may fail for a single rollout belongs into the episode's method open"
        ) from error
    return Playing(attempt, episode, np.zeros(0, np.int32))


def _without_finished(each: Each, live: Sequence[Playing]) -> list[Playing]:
    """Close the episodes that are over, and return the others."""
    each(_close, [one for one in live if one.done])
    return [one for one in live if not one.done]


def _open(tokenizer: Tokenizer, environment: Environment, one: Playing) -> None:
    with _survived(one):
        one.observation = _returned("open", one.episode.open(), str, "the first observation as text")
    _fit_observation(tokenizer, environment, one)
    one.seen.append(one.observation)
    asked = _first_prompt(one.attempt.problem, one.observation)
    one.observation = asked if isinstance(asked, str) else asked[-1]["content"]
    one.prompt = tokenizer.encode_prompt(asked)
    if not environment.has_room(len(one.prompt)):
        one.done, one.stop_reason = True, "length"


def _first_prompt(problem: Problem, observation: str) -> str | Sequence[Message]:
    """Return what the policy reads first: the problem, and the observation at the end of the user's last message."""
    *before, last = problem.messages or ({"role": "user", "content": problem.prompt},)
    if last["role"] == "user":
        last = {**last, "content": "\n".join(filter(None, [last["content"], observation]))}
    elif observation:
        before, last = [*before, last], {"role": "user", "content": observation}
    return [*before, last] if problem.messages else last["content"]


def _take_turn(tokenizer: Tokenizer, environment: Environment, one: Playing, said: Completion | None) -> None:
    """Put what was said to the environment, and what it answered behind it."""
    if said is None:
        one.done = True
        return
    one.add(said.ids, said.logprobs, said.kept_ids)
    one.turns.append(text_of(tokenizer, said.ids, environment.stop))
    one.stop_reason = said.stop_reason
    with _survived(one):
        answer = _returned("step", one.episode.step(one.turns[-1]), Turn, "steadyrl.protocols.Turn")
        observation = _returned("step", answer.observation, str, "an observation of text in Turn")
        one.done, one.observation = (
            _returned("step", answer.done, bool | np.bool_, "True or False in Turn"),
            observation,
        )
    if one.done:
        return
    _fit_observation(tokenizer, environment, one)
    one.seen.append(one.observation)
    between = tokenizer.encode_turn(one.observation, bool(np.isin(said.ids[-1:], tokenizer.end_ids).any()))
    if len(one.turns) >= environment.task.max_turns or not environment.has_room(len(one.context) + len(between)):
        one.done, one.stop_reason = True, "length"
        return
    one.add(between, None, None)


def _fit_observation(tokenizer: Tokenizer, environment: Environment, one: Playing) -> None:
    """Cut the newest observation to the environment's limit before it is encoded, and count it."""
    if not environment.observation_tokens or not one.observation:
        return
    whole = one.observation
    one.observation = cut_observation(tokenizer, whole, environment.observation_tokens)
    one.observations += 1
    one.observations_cut += one.observation != whole


def _close(one: Playing) -> None:
    one.closed = True  # an episode is closed once, even if that fails or is interrupted
    with _survived(one):
        outcome = _returned("close", one.episode.close(), Mapping, "a dict, which may be empty")
        json.dumps(dict(outcome))  # it is written into rollouts/
        one.outcome = outcome


def _returned(method: str, value: Any, kind: Any, expected: str) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{method} returned {reprlib.repr(value)} ({type(value).__name__}); expected {expected}")
    return value


@contextmanager
def _survived(one: Playing) -> Iterator[None]:
    """End an episode whose environment broke, and say why; the episodes beside it go on."""
    try:
        yield
    except EpisodeError as error:
        one.done, one.broken = True, one.broken or str(error)
    except RAISED as error:  # the rollout boundary
        reason = f"the episode of '{one.attempt.problem.id}' raised {exception_line(error)}"
        log.warning("%s", reason)
        one.done, one.broken = True, one.broken or reason


@contextmanager
def _crew(workers: int) -> Iterator[Each]:
    """Yield a function that does something to each of many, ``workers`` of them at a time."""
    pool = ThreadPoolExecutor(workers)

    interrupted = False

    def each(work: Callable[[Any], None], items: Sequence[Any]) -> None:
        nonlocal interrupted
        until = time.monotonic() + _CLOSE_S if interrupted else math.inf
        waiting: set[Future[None]] = set()
        try:
            with at_once():  # an environment may hang
                if workers == 1:
                    for item in items:
                        work(item)
                    return
                waiting = {pool.submit(work, item) for item in items}
                while waiting:
                    # A signal that comes just before a wait without end would be answered only behind it.
                    ended, waiting = wait(waiting, min(_ANSWER_S, max(0.0, until - time.monotonic())))
                    for future in ended:
                        future.result()  # what a worker raised is raised here
                    if waiting and time.monotonic() >= until:
                        raise TimeoutError
        except KeyboardInterrupt:
            interrupted = True
            raise
        except TimeoutError:  # what hangs is not closed
            log.warning("%d environments were not closed within %g s", len(items), _CLOSE_S)
        finally:
            for future in waiting:
                future.cancel()

    try:
        yield each
    finally:
        pool.shutdown(wait=not interrupted, cancel_futures=True)


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
        seen=tuple(one.seen),
        outcome=one.outcome,
        observations=one.observations,
        observations_cut=one.observations_cut,
    )
