"""What the rooms meet through: an algorithm, a backend, a tokenizer, a task, an episode of several turns."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from steadyrl.core.types import (
    Array,
    Batch,
    Completion,
    Group,
    Message,
    Problem,
    Rollout,
    Sampling,
    Score,
    TokenScores,
    ToolCall,
)

# (xp, new scores, the batch's arrays by name, ``batch.loss_count`` of the whole minibatch) -> (scalar loss, sums).
# The names are those that ``batch.loss_arrays`` gives. The loss is already divided by the count, so that the
# losses of micro-batches add up; the driver divides the sums. Those named loss/... are parts of the loss, summed with
# its own weights (``batch.weights``, or the mask) and divided by its count; all others are over tokens.
LossFn = Callable[[Any, TokenScores, Mapping[str, Array], float], tuple[Array, dict[str, Array]]]
Numbers = Mapping[str, float]


def keep_numbers(numbers: Numbers, metrics: Numbers) -> dict[str, float]:
    """Return an algorithm's numbers as they are, whatever the step measured."""
    return dict(numbers)


Stats = dict[str, tuple[float, float]]  # (sum, count) by metric name, until the driver divides


@dataclass(frozen=True)
class Update:
    """What a backend is asked for in one update."""

    loss: LossFn
    """See LossFn."""
    sampling: Sampling
    """The distribution that the batch was sampled from."""
    needs: frozenset[str]
    """See Algorithm.needs."""
    learning_rate: float
    """Of the policy; that of a value head may be higher."""
    max_grad_norm: float
    """Longer gradients are scaled down to it."""


def optimizer_step(backend: Backend, batch: Batch, update: Update) -> Stats:
    """Make one step of the backend's own optimizer."""
    return backend.step(batch, update)


@dataclass(frozen=True)
class Algorithm:
    """An algorithm is a record of functions; the loop knows no names of algorithms."""

    needs: frozenset[str]
    """What the backend must supply: a subset of {"old_logprobs", "ref_logprobs", "values", "entropy"}. With "entropy"
    it has a gradient in ``step`` (``score`` always measures it). Rollouts of the policy are always scored before the
    updates, demonstrations only for one of the other three."""
    select: Callable[[Sequence[Group]], list[Group]]
    """Which rollouts train."""
    prepare: Callable[[Batch, Numbers], Batch]
    """Rewards to advantages (and returns), with the algorithm's numbers; numpy."""
    loss: LossFn
    """See LossFn."""
    adapt: Callable[[Numbers, Numbers], dict[str, float]] = keep_numbers
    """Numbers and the step's metrics to the next step's numbers (adaptive KL; identity by default)."""
    state: Mapping[str, float] = field(default_factory=dict)
    """The numbers at the start; saved in every checkpoint."""
    source: Literal["policy", "demonstrations"] = "policy"
    """Who writes what trains: the policy, or the task, which knows good answers."""
    update: Callable[[Any, Batch, Update], Stats] = optimizer_step
    """Makes one update of a minibatch. One of its own works on the backends whose insides it knows."""
    compares: bool = False
    """Whether a rollout is worth what the others of its problem are not. A problem with one scored rollout then teaches
    nothing, and its advantage is 0."""
    value_rate: float = 0.0
    """The learning rate of the value head where that of the step is lower."""
    value_warmup: int = 0
    """Steps at the start in which the policy's rate is 0."""


class Tokenizer(Protocol):
    """What rollouts need of a tokenizer."""

    end_ids: tuple[int, ...]
    """Every id that ends what the policy writes; sampling stops at the first of them."""
    end_id: int
    """The one of them that ends a demonstration."""
    pad_id: int

    def encode_prompt(self, prompt: str | Sequence[Message]) -> np.ndarray:
        """Return the [P] int32 ids of a prompt, a text or messages, chat template and special tokens included."""

    def encode_answer(self, text: str, after: str) -> np.ndarray:
        """Return the [T] int32 ids of an answer as the policy would write it, ``end_id`` included.

        Args:
            text: The answer.
            after: The prompt or observation that it follows.
        """

    def encode_turn(self, observation: str, ended: bool) -> np.ndarray:
        """Return the [T] int32 ids that stand between two turns of the policy.

        Args:
            observation: What the environment answered.
            ended: Whether the turn before it has its end token.
        """

    def decode(self, ids: np.ndarray) -> str:
        """Return the text of ids, without end tokens and, unless they are to be seen, without special ones."""


@dataclass(frozen=True)
class Reply:
    """A turn of the policy, read."""

    text: str
    """As it was decoded, with marks of calls and reasoning, without end tokens and what follows a stop string."""
    message: Message
    """The same as a message of the role assistant."""


class Chat(Protocol):
    """How a conversation, in which tools may be called, becomes tokens and tokens become messages."""

    def encode_prompt(self, messages: Sequence[Message]) -> np.ndarray:
        """Return the [P] int32 ids that the policy reads before its first turn, tools included."""

    def encode_reply(self, message: Message, after: str) -> np.ndarray:
        """Return the [T] int32 ids of an assistant's message as the policy would write it, end token included.

        Args:
            message: Content and calls.
            after: The content of the message that it follows.
        """

    def encode_between(self, before: np.ndarray, turn: np.ndarray, messages: Sequence[Message]) -> np.ndarray | None:
        """Return the [T] int32 ids that stand between a turn of the policy and its next one.

        Args:
            before: [P] int32, all that the policy had read.
            turn: [T] int32, what it wrote.
            messages: What the environment answered, of the roles user and tool.

        Returns:
            None where nothing can follow, for the turn ended where none of the model's turns may.
        """

    def parse(self, before: np.ndarray, turn: np.ndarray, stop: Sequence[str]) -> Reply:
        """Read a turn of the policy; what is no call, but was meant as one, is in ``invalid_tool_calls``."""


@runtime_checkable
class Conversing(Protocol):
    """A tokenizer whose model may call tools."""

    def chat(self, tools: Sequence[Mapping[str, Any]], tool_format: str) -> Chat:
        """Return how conversations with tools become tokens; see ``ToolUsing`` for the arguments.

        Raises:
            ModelError: The next turn's tokens cannot be had without encoding again what the policy wrote.
        """


class Backend(Protocol):
    """Five methods and a description, numpy in and numpy out; devices, autodiff and optimizers stay inside."""

    tokenizer: Tokenizer

    def generate(self, prompts: Sequence[np.ndarray], sampling: Sampling, seeds: Sequence[int]) -> list[Completion]:
        """Sample one completion per prompt; equal seeds give equal tokens, whatever else is in the batch."""

    def score(self, batch: Batch, sampling: Sampling, needs: frozenset[str]) -> TokenScores:
        """Measure a batch under the policy, without gradients; see Algorithm.needs for what can be asked."""

    def step(self, batch: Batch, update: Update) -> Stats:
        """Make exactly one optimizer step; return (sum, count) pairs, ``grad_norm`` (before clipping) among them."""

    def describe(self) -> dict[str, object]:
        """Return what run.json records of the policy: parameters, device, ...; "model" where it is not model.path."""

    def save(self, folder: Path) -> None:
        """Write weights and optimizer state into an existing folder; where it cannot be written, raise OSError."""

    def load(self, folder: Path) -> None:
        """Read what ``save`` wrote; afterwards training goes on as if it had never stopped."""


@runtime_checkable
class Reversible(Protocol):
    """A backend that can take the updates of a step back, so that a step which fails midway changes nothing."""

    def remember(self) -> Callable[[], None] | None:
        """Return what puts weights and optimizer back to where they are now, or None where a copy costs too much."""


@runtime_checkable
class GradientProducts(Protocol):
    """A backend that can compare the gradients of a loss on batches of the same rows."""

    def gradient_products(self, batches: Sequence[Batch], update: Update) -> np.ndarray | None:
        """Return the [n, n] products of the gradients of n batches over all trained weights; nothing is updated.

        None where n gradients would take too much memory.
        """


@runtime_checkable
class Repeatable(Protocol):
    """A backend whose sums come out otherwise from one time to the next, unless it is told to take its time."""

    def repeating(self) -> AbstractContextManager[None]:
        """Compute the same from the same inside.

        An operation that the device cannot repeat raises RuntimeError.
        """


@runtime_checkable
class Detached(Protocol):
    """A backend whose completions may come from a program of its own, which works while the policy is updated."""

    def sampler_apart(self) -> AbstractContextManager[bool]:
        """Give the sampler the present policy, and let it stay with that one inside.

        It gives True if ``generate`` may be called inside from another thread, beside ``step`` and ``score``; False if
        completions need the policy that is trained.

        Raises:
            EngineError: The sampler cannot be reached.
        """


@runtime_checkable
class PrefixCaching(Protocol):
    """A backend that need not read again what the call before has read."""

    def prefix_cache(self, together: bool) -> AbstractContextManager[None]:
        """Inside, each call of ``generate`` reads of its prompts only what is new since an earlier one.

        The policy must not change inside.

        Args:
            together: Whether each prompt goes on from one of the call right before; otherwise it may be an older one.
        """


@runtime_checkable
class Apart(Protocol):
    """An engine (``sampler.engine``) that can sample while the policy that it was given is trained further."""

    def apart(self, policy: Any) -> AbstractContextManager[bool]:
        """See Detached.sampler_apart."""


# What a user writes: one rollout in, a number out. None is "unscored"; in a mapping the entry named like the
# reward counts and the others are logged.
RewardFn = Callable[[Problem, Rollout], "float | Mapping[str, float] | Score | None"]


class Task(Protocol):
    """A set of problems, the rewards that only it can give, and answers that need no model.

    A class that is derived from this one inherits the methods for a task that knows no answers.
    """

    name: str
    metric: str
    """The reward that evaluations and reports compare; larger is better; measured even where it has no weight."""

    def problems(self, split: Literal["train", "heldout"]) -> Sequence[Problem]:
        """Return the problems of a split, in a fixed order."""

    def rewards(self) -> Mapping[str, RewardFn]:
        """Return the task's own rewards by name; they never raise for what a model wrote."""

    def baselines(self) -> Mapping[str, Callable[[Problem], str]]:
        """Return model-free answers by name, shown beside every result; may be empty."""
        return {}

    def gold(self, problem: Problem) -> str | None:
        """Return an answer known to be good, or None where the task knows none."""
        return None

    def ask(self, text: str) -> Problem:
        """Return a problem made of a user's own words, for trying a policy out; it cannot be scored."""
        return Problem("asked", text)

    def show(self, answer: str) -> list[str]:
        """Return lines that tell a reader what an answer does (the documents that a query finds, ...)."""
        return []


@runtime_checkable
class Exact(Protocol):
    """A task that decides, and does not estimate: each gold answer scores 1, each empty one 0, each wrong one less."""

    def wrong(self, problem: Problem) -> str | None:
        """Return an answer known to be wrong, or None where the task knows none."""


@runtime_checkable
class Teaching(Protocol):
    """A task whose gold answers no policy could write, and which has others to learn from."""

    def demonstration(self, problem: Problem) -> str | None:
        """Return what supervised fine-tuning is shown, or None where the task knows nothing that is worth it."""


@runtime_checkable
class Attackable(Protocol):
    """A task that knows answers which only look like more than they are; no reward may pay for the look."""

    def honest_core(self, problem: Problem) -> str:
        """Return the simple answer that the empty forms are made of."""

    def empty_forms(self, problem: Problem) -> Mapping[str, str]:
        """Return answers that add nothing to the honest core but form, by the name of the form."""


@runtime_checkable
class Editable(Protocol):
    """A task whose problems can be changed a little, for curricula that make their own."""

    def mutate(self, problem: Problem, generator: np.random.Generator) -> Problem:
        """Return a problem like this one, a little easier or harder, with an id that tells it from all others."""


@runtime_checkable
class Checking(Protocol):
    """A module of an algorithm, a backend, a sampler or a reward that judges its settings beside all others."""

    def check(self, config: Any, settings: Any) -> Sequence[str]:
        """Return what is wrong with the config, a line each."""


@dataclass(frozen=True)
class Turn:
    """What the environment answers to one turn of the policy."""

    observation: str | Sequence[Message]
    """Put in before the policy's next turn, a user's text or messages; empty when done."""
    done: bool
    """True if the episode is over."""
    reward: float | None = None
    """What the turn itself earned; None where the environment rewards no turns. It counts by what a reward makes of
    ``Rollout.turn_rewards`` (``Score.turn_rewards``)."""
    calls: Sequence[ToolCall] = ()
    """The calls of the turn, with their results."""

    def __post_init__(self) -> None:
        """Refuse a reward that is no number, where it was made."""
        require_reward("step", self.reward)


def require_reward(method: str, reward: Any) -> None:
    """Refuse (TypeError) a reward of an environment's method that is no finite number, nor None."""
    if reward is not None and (not isinstance(reward, int | float | np.number) or not math.isfinite(reward)):
        raise TypeError(f"{method} returned the reward {reprlib.repr(reward)}; expected a finite number, or None")


class Episode(Protocol):
    """One attempt at a problem that answers back; used by one thread at a time.

    All methods but ``expert`` may raise ``EpisodeError`` when the environment itself broke: the rollout is then
    unscored.
    """

    def open(self) -> str | Sequence[Message]:
        """Begin, and return the first observation, which follows the problem; or all messages that the policy reads."""

    def step(self, turn: Any) -> Turn:
        """Take a turn of the policy as it was decoded; a malformed one costs, it does not raise.

        The turn is a text; in a task with tools (see ``ToolUsing``) it is a message.
        """

    def expert(self) -> str | Message | None:
        """Return what one who knows the way would say now, or None where nobody does."""

    def close(self) -> Mapping[str, Any]:
        """End the episode, however far it came, and return what it came to: JSON-serialisable, for the rewards."""


def outcome_of(episode: Episode) -> Mapping[str, Any]:
    """Close an episode and return what it came to; refuse (TypeError) what rollouts/ cannot hold."""
    outcome: Any = episode.close()
    complaint = f"close returned {reprlib.repr(outcome)} ({type(outcome).__name__}); expected a dict"
    if not isinstance(outcome, Mapping):
        raise TypeError(f"{complaint}, which may be empty")
    require_reward("close", outcome.get("reward"))
    try:
        json.dumps(dict(outcome))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{complaint} of values that JSON has ({error})") from error
    return outcome


@runtime_checkable
class Interactive(Protocol):
    """A task whose problems answer back, over several turns."""

    max_turns: int
    """Turns of the policy, at most."""
    workers: int
    """Episodes that are stepped at the same time, in threads."""

    def episode(self, problem: Problem, seed: int) -> Episode:
        """Return a fresh attempt; equal seeds meet equal environments."""


@runtime_checkable
class ToolUsing(Protocol):
    """An interactive task whose episodes take messages, in which tools may be called."""

    tools: Sequence[Mapping[str, Any]]
    """JSON schemas in OpenAI's form, {"type": "function", "function": {"name", "description", "parameters"}}."""
    tool_format: str
    """How they are described and called: "auto", "hermes", "python" or a renderer's name."""


@runtime_checkable
class Bounded(Protocol):
    """An interactive task whose open episodes may each hold something scarce, such as a browser.

    An episode holds it from ``open`` until ``close``. Without a bound all episodes of a batch are open at once, and the
    policy answers them together; with one it answers at most so many together, which is slower. The rollouts are the
    same.
    """

    max_open: int | None
    """Maximum number of episodes that are open at the same time; None for no limit."""


@dataclass(frozen=True)
class PromptLimit:
    """How long prompts may be."""

    tokens: int = 0
    """At most so many, chat template included; 0 for what the model's positions leave."""
    long: Literal["refuse", "drop", "cut"] = "refuse"
    """What becomes of a longer one: the session is refused, the problem is dropped, or the prompt is cut."""


@runtime_checkable
class Limited(Protocol):
    """A task whose prompts may be of any length."""

    prompt_limit: PromptLimit
    """How long they may be."""


@runtime_checkable
class Sourced(Protocol):
    """A task whose problems come from somewhere that a reader should know."""

    sources: Mapping[str, str]
    """Where the problems of each split ("train", "heldout") come from, as in "gsm8k: main, test"."""


@runtime_checkable
class Referring(Protocol):
    """A backend whose checkpoints know what model the run began from: its frozen reference, an adapter's base."""

    def check_reference(self, folder: Path) -> None:
        """Refuse (CheckpointError) a checkpoint of a run that began from another model than model.path names."""


@runtime_checkable
class Identified(Protocol):
    """A tokenizer that is read from files, which may change while a run is stopped."""

    def identity(self) -> str:
        """Return a digest of all that decides which ids a text gets: vocabulary, chat template, end tokens."""
