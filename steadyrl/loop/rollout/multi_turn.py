"""The episodes of a batch are played turn by turn, and the policy answers many of them in one batch.

It waits for the slowest environment and answers all of them together, or it answers those that wait for it while the
other environments are at work (``rollout.turns``).

All of them are open at once, unless the task bounds how many may be: then the next episode is opened as soon as one is
over, so that the policy always answers as many as may be open. The bound changes no rollout, for what is drawn in an
episode depends on its own attempt and turn alone.
"""

from __future__ import annotations

import logging
import math
import reprlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from steadyrl.core import protocols
from steadyrl.core.counting.count import tell
from steadyrl.core.counting.interrupts import at_once
from steadyrl.core.errors import DataError, EpisodeError, SteadyError, raised_line
from steadyrl.core.plugins import require_members
from steadyrl.core.protocols import Backend, Bounded, Chat, Episode, PrefixCaching, Tokenizer, ToolUsing, Turn
from steadyrl.core.types import Completion, Message, Problem, Rollout, Sampling, ToolCall, encodable, require_texts
from steadyrl.loop.rewards.functions import RAISED
from steadyrl.loop.rollout.episode import Attempt, Environment, Playing, cut_observation

log = logging.getLogger(__name__)

_CLOSE_S = 5.0  # for all environments together, after an interrupt
_ANSWER_S = 1.0  # until a signal is answered, at most
# Episodes to what is said next in each; None where nobody knows what to say.
Speak = Callable[[Sequence[Playing]], "list[Completion | None]"]


def play_policy(
    backend: Backend, environment: Environment, attempts: Sequence[Attempt], sampling: Sampling, policy_version: int
) -> list[Rollout]:
    """Play all attempts to their ends, every turn drawn from the policy.

    Returns:
        A rollout per attempt, in order; unscored where its environment broke.
    """
    setting = _Setting(backend.tokenizer, environment, environment.chat(backend.tokenizer))

    def speak(playing: Sequence[Playing]) -> list[Completion | None]:
        seeds = [play.attempt.seed(len(play.turns)) for play in playing]
        return list(backend.generate([play.context for play in playing], sampling, seeds))

    with backend.prefix_cache(environment.together) if isinstance(backend, PrefixCaching) else nullcontext():
        return _play(setting, attempts, speak, policy_version, uncalled=("expert",))


def play_experts(tokenizer: Tokenizer, environment: Environment, attempts: Sequence[Attempt]) -> list[Rollout]:
    """Play all attempts to their ends, every turn said by the environment's own expert; see ``play_policy``."""
    setting = _Setting(tokenizer, environment, environment.chat(tokenizer))

    def say(play: Playing) -> Completion | None:
        turn = play.episode.expert()
        if turn is None:
            return None
        message = {"role": "assistant", "content": turn} if isinstance(turn, str) else turn
        ids = setting.chat.encode_reply(message, play.observation)
        return Completion(ids, np.full(len(ids), np.nan, np.float32), "stop")

    return _play(setting, attempts, lambda playing: [say(play) for play in playing], 0)


@dataclass(frozen=True)
class _Setting:
    """What all episodes of a batch have in common."""

    tokenizer: Tokenizer
    environment: Environment
    chat: Chat


def _play(
    setting: _Setting, attempts: Sequence[Attempt], speak: Speak, policy_version: int, uncalled: Sequence[str] = ()
) -> list[Rollout]:
    environment, task = setting.environment, setting.environment.task
    most_open = (task.max_open if isinstance(task, Bounded) else None) or len(attempts)
    playing: list[Playing] = []  # all that were opened, in the order of the attempts
    waiting: list[Playing] = []  # for their next turn
    ended = 0
    crew = _Crew(task.workers)
    try:
        while ended < len(attempts):
            for attempt in attempts[len(playing) : ended + most_open]:
                playing.append(_begin(environment, attempt))
                if len(playing) == 1:
                    require_members("the task's episode", playing[0].episode, Episode, later=uncalled)
                crew.start(partial(_open, setting), playing[-1])
            finished = crew.finished(environment.together, at_least=0 if waiting else 1)
            waiting += [play for play in finished if not play.done]
            ended += sum(play.done for play in finished)
            tell("episodes", ended, len(attempts))
            if not waiting or len(playing) < min(len(attempts), ended + most_open):
                continue
            # Not in the order in which environments were done: that would make the batch depend on their speed.
            waiting.sort(key=lambda play: play.attempt.key)
            for play, completion in zip(waiting, speak(waiting), strict=True):
                crew.start(partial(_take_turn, setting, completion), play)
            waiting = []
    except KeyboardInterrupt:
        crew.interrupt()
        raise
    finally:
        crew.close(playing)  # none of the episodes stays open
    return [_rollout(play, policy_version) for play in playing]


def _begin(environment: Environment, attempt: Attempt) -> Playing:
    try:
        episode = environment.task.episode(attempt.problem, attempt.environment_seed())
    except SteadyError:
        raise
    except RAISED as error:
        raise DataError(
            f"the task's method episode raised {raised_line(error)} for the problem '{attempt.problem.id}'; "
            "what may fail for a single rollout belongs into the episode's method open"
        ) from error
    return Playing(attempt, episode, np.zeros(0, np.int32))


def _open(setting: _Setting, play: Playing) -> None:
    opening: str | Sequence[Message] = ""
    with _ending_on_error(play):
        opening = _checked_observation("open", play.episode.open())
    messages = _fit_observation(setting, play, opening)
    play.observed.append(_text(messages))
    if isinstance(opening, str):
        messages = _first_messages(play.attempt.problem, messages)
    play.observation = messages[-1]["content"]
    play.prompt = setting.chat.encode_prompt(messages)
    if not setting.environment.has_room(len(play.prompt)):
        play.done, play.stop_reason = True, "length"


def _first_messages(problem: Problem, observation: Sequence[Message]) -> list[Message]:
    """Return what the policy reads first: the problem, and the observation at the end of the user's last message."""
    *before, last = problem.messages or ({"role": "user", "content": problem.prompt},)
    text = _text(observation)
    if last["role"] == "user":
        return [*before, {**last, "content": "\n".join(filter(None, [last["content"], text]))}]
    return [*before, last, *([{"role": "user", "content": text}] if text else [])]


def _take_turn(setting: _Setting, completion: Completion | None, play: Playing) -> None:
    """Put what was said to the environment, and what it answered behind it."""
    if completion is None:
        play.done = True
        return
    environment, before = setting.environment, play.context
    play.add(completion.ids, completion.logprobs, completion.kept_ids)
    reply = setting.chat.parse(before, completion.ids, environment.stop)
    play.turns.append(reply.text)
    play.stop_reason = completion.stop_reason
    observation: str | Sequence[Message] = ""
    with _ending_on_error(play):
        written = reply.message if isinstance(environment.task, ToolUsing) else reply.text
        answer = _checked("step", play.episode.step(written), Turn, "steadyrl.core.protocols.Turn")
        observation = _checked_observation("step", answer.observation)
        if answer.reward is not None:
            play.turn_rewards.append((play.end, float(answer.reward)))
        if environment.tools:
            play.calls.append(tuple(_checked("step", call, ToolCall, "calls of ToolCall") for call in answer.calls))
        play.done = _checked("step", answer.done, bool | np.bool_, "True or False in Turn")
    if play.done:
        return
    messages = _fit_observation(setting, play, observation)
    play.observation = _text(messages)
    play.observed.append(play.observation)
    between_ids = setting.chat.encode_between(before, completion.ids, messages)
    if (
        between_ids is None
        or len(play.turns) >= environment.task.max_turns
        or not environment.has_room(len(play.context) + len(between_ids))
    ):
        play.done, play.stop_reason = True, "length"
        return
    play.add(between_ids, None, None)


def _text(messages: Sequence[Message]) -> str:
    return "\n".join(message["content"] for message in messages)


def _checked_observation(method: str, observation: Any) -> str | Sequence[Message]:
    if isinstance(observation, str):
        return observation
    messages: Sequence[Message] = _checked(method, observation, list | tuple, "an observation, a text or messages")
    if not messages:
        raise TypeError(f"{method} returned no messages; expected one or more, or a text")
    require_texts(messages, f"a message that {method} returned")
    return messages


def _fit_observation(setting: _Setting, play: Playing, observation: str | Sequence[Message]) -> list[Message]:
    """Return the newest observation as messages, each cut to the environment's limit before it is encoded."""
    limit = setting.environment.observation_tokens
    fitted: list[Message] = []
    for message in [{"role": "user", "content": observation}] if isinstance(observation, str) else observation:
        uncut = content = encodable(message["content"])  # tools may read names of files that are no valid text
        if limit and content:
            content = cut_observation(setting.tokenizer, content, limit)
            play.observations += 1
            play.observations_cut += content != uncut
        fitted.append({**message, "content": content})
    return fitted


def _close(play: Playing) -> None:
    play.closed = True  # an episode is closed once, even if that fails or is interrupted
    with _ending_on_error(play):
        play.outcome = protocols.outcome_of(play.episode)


def _checked(method: str, value: Any, kind: Any, expected: str) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{method} returned {reprlib.repr(value)} ({type(value).__name__}); expected {expected}")
    return value


@contextmanager
def _ending_on_error(play: Playing) -> Iterator[None]:
    """End an episode whose environment broke, and say why; the episodes beside it go on."""
    try:
        yield
    except EpisodeError as error:
        play.done, play.broken = True, play.broken or str(error)
    except RAISED as error:  # the rollout boundary
        reason = f"the episode of '{play.attempt.problem.id}' raised {raised_line(error)}"
        log.warning("%s", reason)
        play.done, play.broken = True, play.broken or reason


class _Crew:
    """Does what takes an environment's time, in threads; a single worker is the thread that asks for the work.

    An episode that is over behind its work is closed there at once.
    """

    def __init__(self, workers: int):
        self._pool = ThreadPoolExecutor(workers) if workers > 1 else None
        self._at_work: dict[Future[None], Playing] = {}
        self._finished: list[Playing] = []
        self._until = math.inf

    def start(self, work: Callable[[Playing], None], play: Playing) -> None:
        """Begin to do something to an episode."""
        if self._pool:
            self._at_work[self._pool.submit(_work_and_close, work, play)] = play
            return
        with at_once():  # an environment may hang
            _work_and_close(work, play)
        self._finished.append(play)

    def finished(self, wait_for_all: bool, at_least: int = 0) -> list[Playing]:
        """Return the episodes whose work is done since the last call.

        Args:
            wait_for_all: Wait for all work that was begun.
            at_least: Wait for so many, where not all work is waited for.

        Raises:
            TimeoutError: Time ran out after an interrupt.
        """
        with at_once():
            while self._at_work:
                enough = not wait_for_all and len(self._finished) >= at_least
                # A signal that comes just before a wait without end would be answered only behind it.
                timeout_s = 0.0 if enough else min(_ANSWER_S, max(0.0, self._until - time.monotonic()))
                ended, _ = wait(self._at_work, timeout_s, FIRST_COMPLETED)
                for future in ended:
                    self._finished.append(self._at_work.pop(future))
                    future.result()  # what a worker raised is raised here
                if enough:
                    break
                if not ended and time.monotonic() >= self._until:
                    raise TimeoutError
        finished, self._finished = self._finished, []
        return finished

    def interrupt(self) -> None:
        """From now on wait for a few seconds only."""
        self._until = time.monotonic() + _CLOSE_S

    def close(self, playing: Sequence[Playing]) -> None:
        """Drop work that was not begun, wait for what was, and close the episodes that are open."""
        is_complete = False
        try:
            begun = {future for future in self._at_work if not future.cancel()}
            if self._until == math.inf:  # otherwise a worker may hang
                with at_once():
                    wait(begun)
            self._at_work.clear()
            still_open = [play for play in playing if not play.closed]
            for play in still_open:
                self.start(_close, play)
            self.finished(wait_for_all=True)
            is_complete = self._until == math.inf
        except TimeoutError:  # what hangs is not closed
            log.warning("%d environments were not closed within %g s", len(still_open), _CLOSE_S)
        finally:
            if self._pool:
                self._pool.shutdown(wait=is_complete, cancel_futures=True)


def _work_and_close(work: Callable[[Playing], None], play: Playing) -> None:
    work(play)
    if play.done and not play.closed:
        _close(play)


def _rollout(play: Playing, policy_version: int) -> Rollout:
    kept_ids = tuple(ids for turn_ids in play.kept_ids for ids in turn_ids)
    return Rollout(
        problem_id=play.attempt.problem.id,
        prompt_ids=play.prompt,
        completion_ids=np.concatenate([np.zeros(0, np.int32), *play.ids]).astype(np.int32),
        completion_mask=np.concatenate([np.zeros(0, bool), *play.mask]),
        sampling_logprobs=np.concatenate([np.zeros(0, np.float32), *play.logprobs]).astype(np.float32),
        text="\n".join(play.turns),
        stop_reason=play.stop_reason,
        policy_version=policy_version,
        kept_ids=kept_ids if any(len(ids) for ids in kept_ids) else None,
        unscored=play.broken,
        turns=tuple(play.turns),
        seen=tuple(play.observed),
        outcome=play.outcome,
        turn_rewards=tuple(play.turn_rewards),
        calls=tuple(play.calls),
        observations=play.observations,
        observations_cut=play.observations_cut,
    )
