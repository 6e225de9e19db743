"""The words of steadyrl as types: frozen records of numpy arrays.

Conventions that hold everywhere:
- ``logprobs[b, t]`` is log p(tokens[b, t] given tokens[b, :t]), in nats; column 0 is 0.
- ``completion_mask`` is True where the policy chose the token. There is no other polarity.
- Unknown is ``None`` and is counted; it is never zero.
- Nobody changes a problem or a rollout, see ``ReadOnly``.
"""

from __future__ import annotations

import copy
import re
from collections.abc import ItemsView, Iterable, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Literal, NoReturn, get_args

import numpy as np

from steadyrl.core.errors import DataError

# Arrays behind ``xp`` are numpy, torch or mlx arrays: the one place where Any is meant.
Array = Any
StopReason = Literal["stop", "length"]
Decoding = Literal["sampled", "greedy"]  # of held-out answers: as in training, or always the most likely token
DECODINGS: tuple[Decoding, ...] = get_args(Decoding)
# Of reasoning, calls and answers: <think>, [/THINK], \u25c1think\u25b7.
TAG = re.compile(r"(<[^<>\s]+>|\[/?[A-Z_]+\]|\u25c1[^\u25c1\u25b7\s]+\u25b7)")
Message = Mapping[str, Any]
"""A message of a conversation, in the form of OpenAI's chat API: "role" (system, user, assistant, tool, ...) and a text
as "content". An assistant's message may have "tool_calls" ({"id", "type": "function", "function": {"name",
"arguments"}} with a dict of arguments), "reasoning_content", and "invalid_tool_calls" ({"text", "error"}) for calls
that could not be read. A tool's message has the "tool_call_id" and the "name" of the call that it answers."""


# Rewards, judges, environments and curricula may be user code, and all meet the same problems and rollouts. What one of
# them changed in place would be read by all others, and trained on, until the run is resumed.
_UNCHANGING = frozenset({str, int, float, bool, bytes, type(None)})


class ReadOnly(dict[str, Any]):
    """A dict of plain data that refuses to be changed; each read of a list, dict or set gives a copy.

    A copy is taken when it is asked for, so that large columns that nobody reads cost nothing. Objects of a task's own
    classes are shared.
    """

    __slots__ = ()

    def __getitem__(self, key: str) -> Any:
        """Return the value, which its reader may change."""
        return own_copy(super().__getitem__(key))

    def get(self, key: str, default: Any = None) -> Any:
        """See ``__getitem__``."""
        return own_copy(super().get(key, default))

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]  # a view of the copies
        """See ``__getitem__``."""
        return ItemsView(self)

    def values(self) -> ValuesView[Any]:  # type: ignore[override]  # a view of the copies
        """See ``__getitem__``."""
        return ValuesView(self)

    def __iter__(self) -> Any:
        """Return the keys. With an iterator of its own, ``dict(...)`` and ``{**...}`` read by ``__getitem__`` too."""
        return super().__iter__()

    def copy(self) -> dict[str, Any]:
        """Return a dict that may be changed."""
        return dict(self)

    def __or__(self, other: Any) -> Any:
        """Return a dict that may be changed, with another's entries over these."""
        return dict(self) | other

    def __ror__(self, other: Any) -> Any:
        """Return a dict that may be changed, with these entries over another's."""
        return other | dict(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to make it again: pickle would set item after item."""
        return type(self), (dict(self),)

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(
            "the data of problems and rollouts cannot be changed, since all rewards and later steps read them; change "
            "a copy, such as dict(problem.columns)"
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = pop = popitem = clear = setdefault = _refuse


def own_copy(value: Any) -> Any:
    """Return plain data that can be changed without changing ``value``: containers are new at every depth.

    An array is a view that cannot be written. Texts and numbers, which nobody can change, and objects of other classes
    are the same.
    """
    kind = type(value)
    if kind in _UNCHANGING or kind is ReadOnly:
        return value
    # The types are looked at here, since a call for every item would take most of the time.
    if kind is list:
        if _UNCHANGING.issuperset(map(type, value)):
            return value.copy()
        return [item if type(item) in _UNCHANGING else own_copy(item) for item in value]
    if kind is dict:
        return {key: item if type(item) in _UNCHANGING else own_copy(item) for key, item in value.items()}
    if kind is tuple:
        return tuple(own_copy(item) for item in value)
    if isinstance(value, np.ndarray):
        return unwritable(value)
    return copy.deepcopy(value) if isinstance(value, list | dict | set | bytearray) else value


def unwritable(array: np.ndarray) -> np.ndarray:
    """Return a view of an array that cannot be written; the same array where it cannot be already."""
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True)
class Problem:
    """One item to solve: what is put in, and what a reward needs to judge the answer.

    Nobody can change it: see ``ReadOnly`` for columns and messages.

    Attributes:
        id: Unique within its task; stable over runs, so that evaluations pair by it.
        prompt: Text put in. Chat models receive it as one user message.
        columns: Whatever rewards need (reference answer, relevant documents, ...), JSON-serialisable.
        messages: The conversation, if the data hold conversations; ``prompt`` is then its text for readers and judges.
    """

    id: str
    prompt: str
    columns: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Message, ...] = ()

    def __post_init__(self) -> None:
        for name, text in {"id": self.id, "prompt": self.prompt}.items():
            if not isinstance(text, str):
                raise DataError(f"the {name} of a problem is {text!r:.40} ({type(text).__name__}); expected text")
        require_texts(self.messages, f"a message of the problem '{self.id:.80}'")
        object.__setattr__(self, "columns", _read_only(self.columns))
        object.__setattr__(self, "messages", tuple(map(_read_only, self.messages)))

    @property
    def asked(self) -> str | tuple[Message, ...]:
        """Return what a tokenizer encodes: the messages, or the text where there are none."""
        return self.messages or self.prompt


def encodable(text: str) -> str:
    """Return a text as tokenizers and files take it: halves of surrogate pairs become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def require_texts(messages: Sequence[Message], what: str) -> None:
    """Refuse messages whose role or content is no text.

    Raises:
        DataError: With the first of them.
    """
    for message in messages:
        if not isinstance(message, Mapping) or not all(isinstance(message.get(n), str) for n in ("role", "content")):
            raise DataError(f"{what} is {message!r:.80}; expected a role and a content of text")


def _read_only(values: Mapping[str, Any]) -> ReadOnly:
    return values if isinstance(values, ReadOnly) else ReadOnly(values)


def plain_text(messages: Sequence[Message]) -> str:
    """Return a conversation as a model without chat template reads it.

    An answer follows its question behind a space, as answers follow prompts; an empty line parts everything else.

    Raises:
        DataError: A message calls a tool.
    """
    text = ""
    for message in messages:
        if message.get("tool_calls"):
            raise DataError(
                "a message calls a tool, and the model has no chat template that could write the call; take a model "
                "with a template for tools, or put the call into the message's content"
            )
        if not text:
            between = ""
        elif message["role"] == "assistant":
            between = "" if text[-1].isspace() else " "
        else:
            between = "\n\n"
        text += between + message["content"]
    return text


def outline(messages: Sequence[Message], words: Iterable[str] = repeat("?")) -> list[Message]:
    """Return a conversation that a chat template treats alike: each text is one of ``words`` in turn.

    In what an assistant said the tags stay where they are, for templates cut at them: many leave out what stands in
    <think> of earlier answers.
    """
    next_word = iter(words).__next__

    def written(message: Message) -> str:
        if message["role"] != "assistant" or not message["content"].strip():
            return next_word()
        pieces = TAG.split(message["content"])  # the tags under odd numbers
        return "".join(piece if i % 2 else next_word() for i, piece in enumerate(pieces) if i % 2 or piece.strip())

    return [{**message, "content": written(message)} for message in messages]


def conversation_text(messages: Sequence[Message]) -> str:
    """Return a conversation as readers and judges see it: without its system message, with roles if there are several.

    One message is its content alone.
    """
    visible = [message for message in messages if message["role"] != "system"] or list(messages)
    if len(visible) == 1:
        return message_text(visible[0])
    return "\n\n".join(f"{message['role']}: {message_text(message)}" for message in visible)


def until_stop(text: str, stop: Sequence[str]) -> str:
    """Return a text up to the first stop string in it."""
    return text[: min((place for place in map(text.find, stop) if place >= 0), default=None)]


def message_text(message: Message) -> str:
    """Return a message as readers see it: its content, and its calls on lines of their own."""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return "\n".join([*filter(None, [message["content"]]), *(call_line(c["name"], c["arguments"]) for c in calls)])


def call_line(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as readers see it, such as ``search(query='lists')``."""
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def with_calls(message: Message) -> tuple[str, str, str]:
    """Return what tells messages of one outline apart: role, content and calls."""
    return message["role"], message["content"], repr(message.get("tool_calls") or "")


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn.

    Attributes:
        max_new_tokens: Upper bound of a completion, in tokens, the end token included.
        temperature: > 0. Logits are divided by it before anything else.
        top_p: (0, 1]. Keep the smallest set of tokens whose probability reaches it (after temperature).
        top_k: >= 0. Keep the k likeliest tokens; 0 keeps all.
        stop: Strings that end a completion. The policy wrote them, so their tokens train; rewards do not see them.
        logprobs: "sampled" measures log-probs under the distribution that was sampled from (temperature and
            truncation included); "raw" under the untempered, untruncated softmax, as older trainers do.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: Sequence[str] = ()
    logprobs: Literal["sampled", "raw"] = "sampled"

    @property
    def truncates(self) -> bool:
        """True if some tokens can never be sampled, so that the kept ids have to be recorded."""
        return self.top_p < 1.0 or self.top_k > 0


@dataclass(frozen=True)
class Completion:
    """What a backend's sampler returns for one prompt.

    Attributes:
        ids: [T] int32 token ids, with the end token, or those of the stop string, when ``stop_reason`` is "stop".
        logprobs: [T] float32, log-probability of each id under the distribution it was drawn from, nats.
        stop_reason: "stop" if the policy ended the text, "length" if ``max_new_tokens`` did.
        kept_ids: For each position the token ids that truncation left, or None without truncation.
    """

    ids: np.ndarray
    logprobs: np.ndarray
    stop_reason: StopReason
    kept_ids: tuple[np.ndarray, ...] | None = None


# What became of a call: it was answered, or why it was not.
CallEnd = Literal["ok", "malformed", "unknown", "arguments", "raised", "timeout", "budget"]


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool in an episode, and what came of it.

    Attributes:
        name: The tool's; empty where the call could not be read.
        arguments: As the policy gave them, JSON-serialisable.
        result: What the policy read of it.
        end: What became of it.
        seconds: How long the tool took.
    """

    name: str
    arguments: Mapping[str, Any]
    result: str
    end: CallEnd
    seconds: float = 0.0


@dataclass(frozen=True)
class Rollout:
    """One finished attempt at a problem, scored or not. Its arrays cannot be written, its mappings not changed.

    Attributes:
        problem_id: The problem it answers.
        prompt_ids: [P] int32.
        completion_ids: [T] int32. Of several turns: the policy's, and between them what the environment answered.
        completion_mask: [T] bool, True where the policy chose the token (False for what the environment answered).
        sampling_logprobs: [T] float32, nats; NaN under the mask where no sampler drew the token (demonstrations).
        text: The completion as it was decoded, space around it included; without special tokens, unless
            model.skip_special_tokens is false. Of several turns the policy's, a line each.
        stop_reason: "stop" if the policy ended the completion, "length" if the length limit did.
        policy_version: The number of optimizer steps before the policy wrote the completion.
        kept_ids: See Completion.
        reward: The weighted total; None for an unscored rollout.
        parts: All computed reward parts, unweighted, plus task measurements ("retrieval", "recall", ...).
        unscored: Why the rollout has no reward; None for a scored rollout.
        note: What the scorer wants a reader to see (an error of the parser, the first hits, ...).
        turns: What the policy said, turn by turn; empty for problems of one turn.
        seen: What the environment showed before each turn, as the policy read it; one more where no turn followed.
        outcome: What an episode came to (see Episode.close); empty for problems of one turn.
        turn_rewards: What the environment rewarded single turns with, unweighted, as (end, reward): ``end`` is the
            position in ``completion_ids`` behind the turn's last token.
        turn_shares: The shares of ``reward`` that single turns earned, as (end, share): ``turn_rewards`` of each
            ``Score``, times its weight. What they leave of the reward is earned at the last turn. Only algorithms with
            ``credit = "turn"`` read them.
        calls: The calls of each turn, in order; empty where there are no tools.
        observations: Number of observations compared with rollout.observation_tokens; 0 without such a limit.
        observations_cut: Number of observations above the limit, which were cut.
        trains: Whether its tokens enter the loss; if not, its reward counts in the baseline all the same.
    """

    problem_id: str
    prompt_ids: np.ndarray
    completion_ids: np.ndarray
    completion_mask: np.ndarray
    sampling_logprobs: np.ndarray
    text: str
    stop_reason: StopReason
    policy_version: int = 0
    kept_ids: tuple[np.ndarray, ...] | None = None
    reward: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    unscored: str | None = None
    note: str = ""
    turns: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()
    outcome: Mapping[str, Any] = field(default_factory=dict)
    turn_rewards: tuple[tuple[int, float], ...] = ()
    turn_shares: tuple[tuple[int, float], ...] = ()
    calls: tuple[tuple[ToolCall, ...], ...] = ()
    observations: int = 0
    observations_cut: int = 0
    trains: bool = True

    def __post_init__(self) -> None:
        for name in ("prompt_ids", "completion_ids", "completion_mask", "sampling_logprobs"):
            object.__setattr__(self, name, unwritable(getattr(self, name)))
        for name in ("parts", "outcome"):
            object.__setattr__(self, name, _read_only(getattr(self, name)))
        if self.kept_ids and self.kept_ids[0].flags.writeable:  # of many thousand small arrays all are alike
            object.__setattr__(self, "kept_ids", tuple(map(unwritable, self.kept_ids)))

    @property
    def length(self) -> int:
        """Return how many tokens the policy wrote; what an environment answered does not count."""
        return int(self.completion_mask.sum())


@dataclass(frozen=True)
class Group:
    """The rollouts of one problem, drawn by one policy.

    Attributes:
        problem: The problem.
        rollouts: Its rollouts.
        why: Why a curriculum chose the problem; empty where none did.
    """

    problem: Problem
    rollouts: tuple[Rollout, ...]
    why: str = ""


@dataclass(frozen=True)
class Drawn:
    """Scored rollouts that wait for the step that trains on them.

    Attributes:
        version: Optimizer steps the policy had seen when they were begun.
        groups: The rollouts, with rewards.
        numbers: Metrics of how they were chosen and drawn.
    """

    version: int
    groups: tuple[Group, ...]
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class KeptIds:
    """Token ids that truncated sampling left to choose from, ragged over positions.

    Attributes:
        ids: [N] int32, all kept ids one after the other, rows then columns.
        lengths: [B, T] int32, how many belong to each position; 0 means that nothing was cut there.
    """

    ids: np.ndarray
    lengths: np.ndarray


@dataclass(frozen=True)
class TokenScores:
    """Per-token measurements of a batch, [B, T], 0 outside the completion mask.

    Attributes:
        logprobs: nats.
        entropy: Exact entropy of the distribution at that position, nats; None in a step that does not need it.
        values: Value head's prediction before the token was chosen, or None where it was not asked for.
        ref_logprobs: Under the frozen reference, or None where it was not asked for.
        kl_ref_exact: KL(policy || reference) at that position, nats, both normalised over the ids that truncation
            kept; or None.
        kl_ref_full: The same with the reference over its whole vocabulary; None where sampling does not truncate.
    """

    logprobs: Array
    entropy: Array | None = None
    values: Array | None = None
    ref_logprobs: Array | None = None
    kl_ref_exact: Array | None = None
    kl_ref_full: Array | None = None


@dataclass(frozen=True)
class Batch:
    """Rollouts as arrays, right-padded to one length. B rollouts, T tokens (prompt and completion).

    Attributes:
        tokens: [B, T] int32.
        lengths: [B] int32, tokens before padding.
        completion_mask: [B, T] bool, of every rollout, whether it trains or not.
        sampling_logprobs: [B, T] float32, 0 outside the mask.
        rewards: [B] float64, one per rollout.
        turn_rewards: [B, T] float64, at the last token of each turn its share of the reward; None where no rollout has
            such shares.
        groups: [B] int32, index of the group that a row came from.
        kept: Kept ids of truncated sampling, or None.
        trains: [B] bool, whether a row's tokens enter the loss (see ``batch.only_trained``); None where all do.
        old: What ``Backend.score`` measured before the update, or None.
        advantages, returns: [B, T] float64, filled by an algorithm's ``prepare``.
        weights: [B, T] float64, what each token adds to the loss of its rollout, 0 outside the mask; the loss is then a
            mean over rollouts. None for a mean over tokens.
        measured: Extra [B, T] float64 arrays of ``prepare`` for metrics and losses.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    completion_mask: np.ndarray
    sampling_logprobs: np.ndarray
    rewards: np.ndarray
    groups: np.ndarray
    kept: KeptIds | None = None
    trains: np.ndarray | None = None
    turn_rewards: np.ndarray | None = None
    old: TokenScores | None = None
    advantages: np.ndarray | None = None
    returns: np.ndarray | None = None
    weights: np.ndarray | None = None
    measured: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def trained_mask(self) -> np.ndarray:
        """Return [B, T] bool: the policy's tokens that enter the loss."""
        return self.completion_mask if self.trains is None else self.completion_mask & self.trains[:, None]


Severity = Literal["critical", "warning", "info"]


@dataclass(frozen=True)
class Finding:
    """What one check says: that something is wrong and why, that all is well, or that it cannot tell.

    Attributes:
        check: Which check says it, such as "negative_kl".
        severity: "critical": what is trained from here on is worth nothing; "warning": it harms; "info": worth knowing.
        since_step: The first step at which it shows; None where it holds for the run as a whole.
        cause: A short name of what is behind it, such as "warped_sampling"; "unknown" where nothing tells.
        message: One sentence: what is seen and what is behind it; of an unknown, why it cannot be told.
        evidence: The numbers, with their steps, a sentence each.
        remedy: What to do, in one or two sentences.
        overrides: The remedy as settings that can be pasted, under the names of the trainer at hand.
        source: Where the rule comes from: a paper, a file, a thread.
        follows: The check whose finding causes this one; "" where it stands alone.
        state: "ok": judged and in order; "found": the above; "unknown": it could not be judged, which is never health.
        would_tell: Of an unknown, the quantities or settings that would let the check tell.
    """

    check: str
    severity: Severity = "info"
    since_step: int | None = None
    cause: str = ""
    message: str = ""
    evidence: tuple[str, ...] = ()
    remedy: str = ""
    overrides: tuple[str, ...] = ()
    source: str = ""
    follows: str = ""
    state: Literal["ok", "found", "unknown"] = "found"
    would_tell: tuple[str, ...] = ()

    @property
    def harms(self) -> bool:
        """True if it is more than worth knowing."""
        return self.state == "found" and self.severity != "info"


@dataclass(frozen=True)
class Score:
    """A reward's verdict on one rollout.

    Attributes:
        value: The reward, before its weight; None means unscored.
        parts: Further measurements to log beside it (recall, result size, ...).
        unscored: Why there is no value; None with a value.
        note: A line for the reader of the rollout (why a query is malformed, the first hits, ...).
        applies: False if the reward does not concern the problem; the other rewards then count alone.
        trains: False to leave the rollout's tokens out of the loss, at any reward.
        turn_rewards: What single turns earned of ``value``, as (end, share) in ``Rollout.turn_rewards``.
    """

    value: float | None
    parts: Mapping[str, float] = field(default_factory=dict)
    unscored: str | None = None
    note: str = ""
    applies: bool = True
    trains: bool = True
    turn_rewards: tuple[tuple[int, float], ...] = ()
