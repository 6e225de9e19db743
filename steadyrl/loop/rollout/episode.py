"""Episodes of several turns: their environment, what is known of one under way, and what of it a rollout keeps.

The ids that the policy drew are kept as they are, and so are those of what the environment answered; nothing is encoded
again. Only the policy's own tokens stand under the mask.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steadyrl.backends.text_chat import TextChat
from steadyrl.core.errors import DataError, ModelError
from steadyrl.core.protocols import Backend, Chat, Conversing, Episode, Interactive, Task, Tokenizer, ToolUsing
from steadyrl.core.sections import RolloutSection
from steadyrl.core.types import Group, Problem, Rollout, Sampling, StopReason, ToolCall, until_stop
from steadyrl.core.words import counted

CUT = " ..."  # tells the policy that an observation goes on


@dataclass(frozen=True)
class Environment:
    """Where problems answer back."""

    task: Interactive
    """Makes the episodes."""
    turn_tokens: int
    """A turn of the policy, at most."""
    max_tokens: int = 0
    """Prompt and turns together, at most; 0 for no limit."""
    observation_tokens: int = 0
    """An observation, at most; 0 for no limit."""
    context: int = 0
    """Tokens that the model's positions reach; 0 for no limit."""
    stop: Sequence[str] = ()
    """Strings that end a turn."""
    together: bool = True
    """Whether the policy answers all episodes together, or those that wait for it (``rollout.turns``)."""

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """Return the JSON schemas of what may be called; none in a task of texts."""
        return self.task.tools if isinstance(self.task, ToolUsing) else ()

    def chat(self, tokenizer: Tokenizer) -> Chat:
        """Return how conversations become tokens.

        Raises:
            ModelError: The model cannot call tools over several turns.
        """
        if not isinstance(self.task, ToolUsing) or not self.task.tools:
            return TextChat(tokenizer)
        if not isinstance(tokenizer, Conversing):
            raise ModelError(
                "the task has tools, and the backend's tokenizer has no method 'chat' "
                "(steadyrl.core.protocols.Conversing)"
            )
        return tokenizer.chat(self.tools, self.task.tool_format)

    def has_room(self, tokens: int) -> bool:
        """Return whether one more turn fits behind so many tokens."""
        return all(not limit or tokens + self.turn_tokens <= limit for limit in (self.max_tokens, self.context))


def environment_of(
    task: Task, sampling: Sampling, limits: RolloutSection, context: int | None = None
) -> Environment | None:
    """Return the environment of a task whose problems answer back, or None for one whose problems do not."""
    if not isinstance(task, Interactive):
        return None
    return Environment(
        task,
        sampling.max_new_tokens,
        limits.max_tokens,
        limits.observation_tokens,
        context or 0,
        sampling.stop,
        limits.turns == "together",
    )


def text_of(tokenizer: Tokenizer, ids: np.ndarray, stop: Sequence[str]) -> str:
    """Return what the policy wrote as it was decoded, up to the string that stopped it; space around it stays.

    This is the one text of a completion: rewards, judges, episodes and records all get it.
    """
    return until_stop(tokenizer.decode(ids), stop)


def context_of(backend: Backend) -> int | None:
    """Return the number of tokens that the model's positions reach, or None where there is no limit."""
    context = backend.describe().get("context")
    return context if isinstance(context, int) else None


def require_tokens(groups: Sequence[Group], environment: Environment | None) -> None:
    """Refuse rollouts none of which holds a token of the policy: no backend can train on nothing.

    Raises:
        DataError: With the limit that left no room for a turn, where that is the reason.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    if any(rollout.completion_mask.any() and rollout.trains for rollout in rollouts):
        return
    if not all(rollout.trains for rollout in rollouts):
        raise DataError(
            f"all {len(rollouts)} rollouts were cut off, and rewards.cut_off.mask leaves none of them to train on; "
            "raise sampling.max_new_tokens, or set mask = false"
        )
    require_room(rollouts, environment)
    raise DataError(
        f"none of {counted(len(rollouts), 'rollout')} holds a token of the policy, so that there is nothing to train "
        "on; see what ended them (rollouts/ has their prompts)"
    )


def require_room(rollouts: Sequence[Rollout], environment: Environment | None) -> None:
    """Refuse (DataError) rollouts that all lack a turn, some of them as none fits behind the first observation."""
    lengths = [len(r.prompt_ids) for r in rollouts if environment and not environment.has_room(len(r.prompt_ids))]
    if not lengths or environment is None:
        return
    low, high = min(lengths), max(lengths)
    if environment.context and low + environment.turn_tokens > environment.context:
        raise DataError(
            f"the model's positions reach {environment.context} tokens, which leaves no room for a turn: problem and "
            f"first observation take {low} or more, and a turn may take sampling.max_new_tokens = "
            f"{environment.turn_tokens}; set rollout.observation_tokens, or choose a model with a longer context"
        )
    raise DataError(
        f"rollout.max_tokens = {environment.max_tokens} leaves no room for a turn: problem and first observation take "
        f"{low if low == high else f'{low} to {high}'} tokens, and a turn may take sampling.max_new_tokens = "
        f"{environment.turn_tokens}; set rollout.max_tokens to {high + environment.turn_tokens} or more (each further "
        "turn and its observation need room too), or to 0 for no limit"
    )


@dataclass(frozen=True)
class Attempt:
    """A problem, and what the draws of one attempt at it depend on."""

    problem: Problem
    key: tuple[int, ...]
    """Numbers, the last of which tells attempts at one problem apart."""

    def seed(self, *suffix: int) -> int:
        """Return a seed of its own for this attempt and the numbers behind its key."""
        return _seed((*self.key, *suffix))

    def environment_seed(self) -> int:
        """Return the environment's seed, equal for all attempts at the problem: they are compared with one another."""
        return _seed(self.key[:-1])


@dataclass
class Playing:
    """An episode under way."""

    attempt: Attempt
    """What it is an attempt at."""
    episode: Episode
    """The environment's side of it."""
    prompt: np.ndarray
    """[P] ids before the policy's first turn."""
    observation: str = ""
    """The newest one."""
    ids: list[np.ndarray] = field(default_factory=list)
    mask: list[np.ndarray] = field(default_factory=list)
    logprobs: list[np.ndarray] = field(default_factory=list)
    kept_ids: list[tuple[np.ndarray, ...]] = field(default_factory=list)
    """What followed the prompt, and what Rollout says of it."""
    turns: list[str] = field(default_factory=list)
    """What the policy said."""
    observed: list[str] = field(default_factory=list)
    """See ``seen`` of Rollout."""
    stop_reason: StopReason = "stop"
    """"length" where the last turn was cut, or room or turns ran out."""
    turn_rewards: list[tuple[int, float]] = field(default_factory=list)
    calls: list[tuple[ToolCall, ...]] = field(default_factory=list)
    observations: int = 0
    observations_cut: int = 0
    """See Rollout."""
    done: bool = False
    """Whether it is over."""
    closed: bool = False
    """Whether its environment was closed, or an attempt was made to close it."""
    broken: str | None = None
    """Why it has no reward, where its environment broke."""
    outcome: Mapping[str, Any] = field(default_factory=dict)
    """What it came to."""

    @property
    def context(self) -> np.ndarray:
        """Return everything so far, [T] int32."""
        return np.concatenate([self.prompt, *self.ids]).astype(np.int32)

    @property
    def end(self) -> int:
        """Return the number of tokens behind the prompt."""
        return sum(map(len, self.ids))

    def add(self, ids: np.ndarray, logprobs: np.ndarray | None, kept_ids: tuple[np.ndarray, ...] | None) -> None:
        """Append the policy's tokens, or (without log-probs) the environment's."""
        from_policy = logprobs is not None
        self.ids.append(ids)
        self.mask.append(np.full(len(ids), from_policy))
        self.logprobs.append(logprobs if logprobs is not None else np.zeros(len(ids), np.float32))
        self.kept_ids.append(kept_ids if kept_ids is not None else (np.zeros(0, np.int32),) * len(ids))


def cut_observation(tokenizer: Tokenizer, text: str, limit: int) -> str:
    """Return an observation that takes at most ``limit`` tokens: the whole of it, or its first ones and ' ...'.

    The last line, which may ask for the turn, stays behind the mark. Both count; what of them would take more than half
    of the limit is left out. What a chat template puts around an observation does not count. The text is cut and not
    its ids, for templates are filled with text.

    Args:
        tokenizer: The policy's.
        text: What the environment answered.
        limit: > 0.
    """
    template_tokens = len(tokenizer.encode_turn("", True))

    def takes(part: str) -> int:
        return len(tokenizer.encode_turn(part, True)) - template_tokens

    if takes(text) <= limit:
        return text
    before, _, last_line = text.rpartition("\n")
    ends = (f"{CUT}\n{last_line}" if before else CUT, CUT, "")
    end = next(end for end in ends if 2 * takes(end) <= limit)
    length = bisect.bisect_right(range(len(text)), limit, key=lambda length: takes(text[:length] + end)) - 1
    return text[: max(0, length)] + end


def _seed(key: tuple[int, ...]) -> int:
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])
