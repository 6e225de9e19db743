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

from steadyrl.core.arguments import checked
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
        return plain_copy(super().__getitem__(key))

    def get(self, key: str, default: Any = None) -> Any:
        """See ``__getitem__``."""
        return plain_copy(super().get(key, default))

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

    def __or__(self, entries: Any) -> Any:
        """Return a dict that may be changed, with another's entries over these."""
        return dict(self) | entries

    def __ror__(self, entries: Any) -> Any:
        """Return a dict that may be changed, with these entries over another's."""
        return entries | dict(self)

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


def plain_copy(value: Any) -> Any:
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
        return [item if type(item) in _UNCHANGING else plain_copy(item) for item in value]
    if kind is dict:
        return {key: item if type(item) in _UNCHANGING else plain_copy(item) for key, item in value.items()}
    if kind is tuple:
        return tuple(plain_copy(item) for item in value)
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


@checked
@dataclass(frozen=True)
class Problem:
    """One item to solve: what is put in, and what a reward needs to judge the answer.

    Nobody can change it: see ``ReadOnly`` for columns and messages.
    """

    id: str
    """Unique within its task; stable over runs, so that evaluations pair by it."""
    prompt: str
    """Text put in. Chat models receive it as one user message."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Whatever rewards need (reference answer, relevant documents, ...), JSON-serialisable."""
    messages: tuple[Message, ...] = ()
    """The conversation, if the data hold conversations; ``prompt`` is then its text for readers and judges."""

    def __post_init__(self) -> None:
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


def require_texts(messages: Sequence[Message], subject: str) -> None:
    """Refuse (DataError) messages whose role or content is no text."""
    for message in messages:
        if not isinstance(message, Mapping) or not all(isinstance(message.get(n), str) for n in ("role", "content")):
            raise DataError(f"{subject} is {message!r:.80}; expected a role and a content of text")


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
            separator = ""
        elif message["role"] == "assistant":
            separator = "" if text[-1].isspace() else " "
        else:
            separator = "\n\n"
        text += separator + message["content"]
    return text


def outline(messages: Sequence[Message], words: Iterable[str] = repeat("?")) -> list[Message]:
    """Return a conversation that a chat template treats alike: each text is one of ``words`` in turn.

    In what an assistant said the tags stay where they are, for templates cut at them: many leave out what stands in
    <think> of earlier answers.
    """
    next_word = iter(words).__next__

    def outlined(message: Message) -> str:
        if message["role"] != "assistant" or not message["content"].strip():
            return next_word()
        pieces = TAG.split(message["content"])  # the tags under odd numbers
        return "".join(piece if i % 2 else next_word() for i, piece in enumerate(pieces) if i % 2 or piece.strip())

    return [{**message, "content": outlined(message)} for message in messages]


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
    return text[: min((position for position in map(text.find, stop) if position >= 0), default=None)]


def message_text(message: Message) -> str:
    """Return a message as readers see it: its content, and its calls on lines of their own."""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return "\n".join([*filter(None, [message["content"]]), *(call_line(c["name"], c["arguments"]) for c in calls)])


def call_line(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as readers see it, such as ``search(query='lists')``."""
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def message_key(message: Message) -> tuple[str, str, str]:
    """Return what tells messages of one outline apart: role, content and calls."""
    return message["role"], message["content"], repr(message.get("tool_calls") or "")


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn."""

    max_new_tokens: int
    """Upper bound of a completion, in tokens, the end token included."""
    temperature: float = 1.0
    """> 0. Logits are divided by it before anything else."""
    top_p: float = 1.0
    """(0, 1]. Keep the smallest set of tokens whose probability reaches it (after temperature)."""
    top_k: int = 0
    """>= 0. Keep the k likeliest tokens; 0 keeps all."""
    stop: Sequence[str] = ()
    """Strings that end a completion. The policy wrote them, so their tokens train; rewards do not see them."""
    logprobs: Literal["sampled", "raw"] = "sampled"
    """"sampled" measures log-probs under the distribution that was sampled from (temperature and truncation included);
    "raw" under the untempered, untruncated softmax, as older trainers do."""

    @property
    def truncates(self) -> bool:
        """True if some tokens can never be sampled, so that the kept ids have to be recorded."""
        return self.top_p < 1.0 or self.top_k > 0


@dataclass(frozen=True)
class Completion:
    """What a backend's sampler returns for one prompt."""

    ids: np.ndarray
    """[T] int32 token ids, with the end token, or those of the stop string, when ``stop_reason`` is "stop"."""
    logprobs: np.ndarray
    """[T] float32, log-probability of each id under the distribution it was drawn from, nats."""
    stop_reason: StopReason
    """"stop" if the policy ended the text, "length" if ``max_new_tokens`` did."""
    kept_ids: tuple[np.ndarray, ...] | None = None
    """For each position the token ids that truncation left, or None without truncation."""


# What became of a call: it was answered, or why it was not.
CallEnd = Literal["ok", "malformed", "unknown", "arguments", "raised", "timeout", "budget"]


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool in an episode, and what came of it."""

    name: str
    """The tool's; empty where the call could not be read."""
    arguments: Mapping[str, Any]
    """As the policy gave them, JSON-serialisable."""
    result: str
    """What the policy read of it."""
    end: CallEnd
    """What became of it."""
    seconds: float = 0.0
    """How long the tool took."""


@dataclass(frozen=True)
class Rollout:
    """One finished attempt at a problem, scored or not. Its arrays cannot be written, its mappings not changed."""

    problem_id: str
    """The problem it answers."""
    prompt_ids: np.ndarray
    """[P] int32."""
    completion_ids: np.ndarray
    """[T] int32. Of several turns: the policy's, and between them what the environment answered."""
    completion_mask: np.ndarray
    """[T] bool, True where the policy chose the token (False for what the environment answered)."""
    sampling_logprobs: np.ndarray
    """[T] float32, nats; NaN under the mask where no sampler drew the token (demonstrations)."""
    text: str
    """The completion as it was decoded, space around it included; without special tokens, unless
    model.skip_special_tokens is false. Of several turns the policy's, a line each."""
    stop_reason: StopReason
    """"stop" if the policy ended the completion, "length" if the length limit did."""
    policy_version: int = 0
    """The number of optimizer steps before the policy wrote the completion."""
    kept_ids: tuple[np.ndarray, ...] | None = None
    """See Completion."""
    reward: float | None = None
    """The weighted total; None for an unscored rollout."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """All computed reward parts, unweighted, plus task measurements ("retrieval", "recall", ...)."""
    unscored: str | None = None
    """Why the rollout has no reward; None for a scored rollout."""
    note: str = ""
    """What the scorer wants a reader to see (an error of the parser, the first hits, ...)."""
    turns: tuple[str, ...] = ()
    """What the policy said, turn by turn; empty for problems of one turn."""
    seen: tuple[str, ...] = ()
    """What the environment showed before each turn, as the policy read it; one more where no turn followed."""
    outcome: Mapping[str, Any] = field(default_factory=dict)
    """What an episode came to (see Episode.close); empty for problems of one turn."""
    turn_rewards: tuple[tuple[int, float], ...] = ()
    """What the environment rewarded single turns with, unweighted, as (end, reward): ``end`` is the position in
    ``completion_ids`` behind the turn's last token."""
    turn_shares: tuple[tuple[int, float], ...] = ()
    """The shares of ``reward`` that single turns earned, as (end, share): ``turn_rewards`` of each ``Score``, times its
    weight. What they leave of the reward is earned at the last turn. Only algorithms with ``credit = "turn"`` read
    them."""
    calls: tuple[tuple[ToolCall, ...], ...] = ()
    """The calls of each turn, in order; empty where there are no tools."""
    observations: int = 0
    """Number of observations compared with rollout.observation_tokens; 0 without such a limit."""
    observations_cut: int = 0
    """Number of observations above the limit, which were cut."""
    trains: bool = True
    """Whether its tokens enter the loss; if not, its reward counts in the baseline all the same."""

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
    """The rollouts of one problem, drawn by one policy."""

    problem: Problem
    """The problem."""
    rollouts: tuple[Rollout, ...]
    """Its rollouts."""
    why: str = ""
    """Why a curriculum chose the problem; empty where none did."""

    @property
    def rewards(self) -> list[float]:
        """Return the rewards of the rollouts that are scored."""
        return [rollout.reward for rollout in self.rollouts if rollout.reward is not None]


@dataclass(frozen=True)
class Drawn:
    """Scored rollouts that wait for the step that trains on them."""

    version: int
    """Optimizer steps the policy had seen when they were begun."""
    groups: tuple[Group, ...]
    """The rollouts, with rewards."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Metrics of how they were chosen and drawn."""


@dataclass(frozen=True)
class KeptIds:
    """Token ids that truncated sampling left to choose from, ragged over positions."""

    ids: np.ndarray
    """[N] int32, all kept ids one after the other, rows then columns."""
    lengths: np.ndarray
    """[B, T] int32, how many belong to each position; 0 means that nothing was cut there."""


@dataclass(frozen=True)
class TokenScores:
    """Per-token measurements of a batch, [B, T], 0 outside the completion mask."""

    logprobs: Array
    """nats."""
    entropy: Array | None = None
    """Exact entropy of the distribution at that position, nats; None in a step that does not need it."""
    values: Array | None = None
    """Value head's prediction before the token was chosen, or None where it was not asked for."""
    ref_logprobs: Array | None = None
    """Under the frozen reference, or None where it was not asked for."""
    kl_ref_exact: Array | None = None
    """KL(policy || reference) at that position, nats, both normalised over the ids that truncation kept; or None."""
    kl_ref_full: Array | None = None
    """The same with the reference over its whole vocabulary; None where sampling does not truncate."""


@dataclass(frozen=True)
class Batch:
    """Rollouts as arrays, right-padded to one length. B rollouts, T tokens (prompt and completion)."""

    tokens: np.ndarray
    """[B, T] int32."""
    lengths: np.ndarray
    """[B] int32, tokens before padding."""
    completion_mask: np.ndarray
    """[B, T] bool, of every rollout, whether it trains or not."""
    sampling_logprobs: np.ndarray
    """[B, T] float32, 0 outside the mask."""
    rewards: np.ndarray
    """[B] float64, one per rollout."""
    groups: np.ndarray
    """[B] int32, index of the group that a row came from."""
    kept: KeptIds | None = None
    """Kept ids of truncated sampling, or None."""
    trains: np.ndarray | None = None
    """[B] bool, whether a row's tokens enter the loss (see ``batch.only_trained``); None where all do."""
    turn_rewards: np.ndarray | None = None
    """[B, T] float64, at the last token of each turn its share of the reward; None where no rollout has such shares."""
    old: TokenScores | None = None
    """What ``Backend.score`` measured before the update, or None."""
    advantages: np.ndarray | None = None
    returns: np.ndarray | None = None
    """[B, T] float64, filled by an algorithm's ``prepare``."""
    weights: np.ndarray | None = None
    """[B, T] float64, what each token adds to the loss of its rollout, 0 outside the mask; the loss is then a mean over
    rollouts. None for a mean over tokens."""
    measured: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Extra [B, T] float64 arrays of ``prepare`` for metrics and losses."""

    @property
    def trained_mask(self) -> np.ndarray:
        """Return [B, T] bool: the policy's tokens that enter the loss."""
        return self.completion_mask if self.trains is None else self.completion_mask & self.trains[:, None]


Severity = Literal["critical", "warning", "info"]


@dataclass(frozen=True)
class Finding:
    """What one check says: that something is wrong and why, that all is well, or that it cannot tell."""

    check: str
    """Which check says it, such as "negative_kl"."""
    severity: Severity = "info"
    """"critical": what is trained from here on is worth nothing; "warning": it harms; "info": worth knowing."""
    since_step: int | None = None
    """The first step at which it shows; None where it holds for the run as a whole."""
    cause: str = ""
    """A short name of what is behind it, such as "warped_sampling"; "unknown" where nothing tells."""
    message: str = ""
    """One sentence: what is seen and what is behind it; of an unknown, why it cannot be told."""
    evidence: tuple[str, ...] = ()
    """The numbers, with their steps, a sentence each."""
    remedy: str = ""
    """What to do, in one or two sentences."""
    overrides: tuple[str, ...] = ()
    """The remedy as settings that can be pasted, under the names of the trainer at hand."""
    source: str = ""
    """Where the rule comes from: a paper, a file, a thread."""
    follows: str = ""
    """The check whose finding causes this one; "" where it stands alone."""
    state: Literal["ok", "found", "unknown"] = "found"
    """"ok": judged and in order; "found": the above; "unknown": it could not be judged, which is never health."""
    would_tell: tuple[str, ...] = ()
    """Of an unknown, the quantities or settings that would let the check tell."""

    @property
    def harms(self) -> bool:
        """True if it is more than worth knowing."""
        return self.state == "found" and self.severity != "info"


@dataclass(frozen=True)
class Score:
    """A reward's verdict on one rollout."""

    value: float | None
    """The reward, before its weight; None means unscored."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Further measurements to log beside it (recall, result size, ...)."""
    unscored: str | None = None
    """Why there is no value; None with a value."""
    note: str = ""
    """A line for the reader of the rollout (why a query is malformed, the first hits, ...)."""
    applies: bool = True
    """False if the reward does not concern the problem; the other rewards then count alone."""
    trains: bool = True
    """False to leave the rollout's tokens out of the loss, at any reward."""
    turn_rewards: tuple[tuple[int, float], ...] = ()
    """What single turns earned of ``value``, as (end, share) in ``Rollout.turn_rewards``."""
