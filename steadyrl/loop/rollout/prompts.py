"""Prompts that take more tokens than there is room for: refused, dropped or cut, as the task asks."""

from __future__ import annotations

import bisect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from steadyrl.core.errors import DataError
from steadyrl.core.protocols import Backend, Limited, PromptLimit, Task
from steadyrl.core.types import Problem, Sampling, conversation_text, message_key, outline
from steadyrl.loop.rollout.episode import context_of

log = logging.getLogger(__name__)

Encode = Callable[..., np.ndarray]


@dataclass(frozen=True)
class Fitted:
    """Problems whose prompts fit."""

    problems: Sequence[Problem]
    """In their order."""
    dropped: int = 0
    """How many were too long and are not among them."""
    cut: int = 0
    """How many were too long and have a shorter prompt now."""

    def counts(self) -> dict[str, int]:
        """Return what run.json says of prompts that were too long; nothing where none was."""
        return {name: count for name, count in (("dropped", self.dropped), ("cut", self.cut)) if count}


def limit_of(task: Task) -> PromptLimit:
    """Return how long the task allows prompts to be."""
    return task.prompt_limit if isinstance(task, Limited) else PromptLimit()


def fit_splits(
    task: Task, train: Sequence[Problem], heldout: Sequence[Problem], backend: Backend, sampling: Sampling
) -> tuple[Fitted, Fitted]:
    """Return the problems of both splits whose prompts fit.

    Raises:
        DataError: See ``fit_prompts``; or no problem of a split is left.
    """
    limit = limit_of(task)
    fitted = fit_prompts(train, backend, sampling, limit), fit_prompts(heldout, backend, sampling, limit)
    for name, before, after in (("training", train, fitted[0]), ("held-out", heldout, fitted[1])):
        if before and not after.problems:
            hint = f"raise task.args.prompt_tokens = {limit.tokens}, " if limit.tokens else ""  # 0 is no limit
            raise DataError(
                f"all {len(before)} {name} prompts are too long; {hint}lower sampling.max_new_tokens = "
                f"{sampling.max_new_tokens}, or give shorter prompts"
            )
    return fitted


def fit_prompts(problems: Sequence[Problem], backend: Backend, sampling: Sampling, limit: PromptLimit) -> Fitted:
    """Return the problems whose prompts fit the limit and leave room for a completion.

    Raises:
        DataError: Some do not, and the limit says to refuse them; or completions leave no room for any.
    """
    context = context_of(backend)
    if context is not None and sampling.max_new_tokens >= context:
        raise DataError(
            f"sampling.max_new_tokens = {sampling.max_new_tokens} leaves no room for a prompt in the {context} tokens "
            "that the model's positions reach; lower it, or choose a model with a longer context"
        )
    limits = [limit.tokens] if limit.tokens else []
    limits += [] if context is None else [context - sampling.max_new_tokens]
    if not limits:
        return Fitted(problems)
    encode, room = backend.tokenizer.encode_prompt, min(limits)
    long = _too_long(problems, encode, room)
    if not long:
        return Fitted(problems)
    if limit.long == "refuse":
        raise DataError(_refusal(long, len(problems), context, sampling, limit))
    shortened = {p.id: _cut(p, encode, room) if limit.long == "cut" else None for p in problems if p.id in long}
    candidates = [shortened.get(problem.id, problem) for problem in problems]
    fitted = [problem for problem in candidates if problem is not None]
    result = Fitted(fitted, len(candidates) - len(fitted), len(long) - len(candidates) + len(fitted))
    log.warning(
        "%d of %d prompts take more than %d tokens: %d are dropped, %d are cut", len(long), len(problems), room,
        result.dropped, result.cut,
    )  # fmt: skip
    return result


def _too_long(problems: Sequence[Problem], encode: Encode, room: int) -> dict[str, int]:
    """Return the tokens of every prompt that takes more than ``room``, by problem id."""
    extra: dict[tuple[tuple[str, str, str], ...], int] = {}  # tokens beside the texts, by the outline of the messages
    lengths = {}
    for problem in problems:
        sample = outline(problem.messages)
        shape = tuple(map(message_key, sample))
        if shape not in extra:
            # A template that fails on such messages is refused here, before anything is paid.
            extra[shape] = len(encode(sample or ""))
        texts = [message["content"] for message in problem.messages] or [problem.prompt]
        # No tokenizer makes more tokens of a text than it has bytes: most prompts need not be encoded.
        if sum(len(text.encode(errors="surrogatepass")) for text in texts) + extra[shape] > room:
            lengths[problem.id] = len(encode(problem.asked))
    return {id: length for id, length in lengths.items() if length > room}


def _refusal(long: Mapping[str, int], count: int, context: int | None, sampling: Sampling, limit: PromptLimit) -> str:
    worst = max(long, key=lambda id: long[id])
    longest = f"the longest prompt, '{worst}', takes {long[worst]}"
    if limit.tokens and (context is None or limit.tokens <= context - sampling.max_new_tokens):
        return (
            f"{len(long)} of {count} prompts take more than task.args.prompt_tokens = {limit.tokens}; {longest}: raise "
            "the limit, or set task.args.long_prompts to 'drop' or 'cut'"
        )
    return (
        f"{len(long)} of {count} prompts and sampling.max_new_tokens = {sampling.max_new_tokens} go beyond the "
        f"{context} tokens that the model's positions reach; {longest}: lower sampling.max_new_tokens, leave such "
        "prompts out (task.args.long_prompts = 'drop' where the task has it), or choose a model with a longer context"
    )


def _cut(problem: Problem, encode: Encode, room: int) -> Problem | None:
    """Return a problem whose longest text lost its beginning, so that the prompt fits; None where that is not enough.

    What is asked for usually stands at the end of a prompt. A system message is not cut.
    """

    def shortened(characters: int) -> Problem:
        if not problem.messages:
            return replace(problem, prompt=problem.prompt[len(problem.prompt) - characters :])
        messages = list(problem.messages)
        messages[longest_index] = {**messages[longest_index], "content": longest[len(longest) - characters :]}
        return replace(problem, prompt=conversation_text(messages), messages=tuple(messages))

    indices = [i for i, message in enumerate(problem.messages) if message["role"] != "system"]
    longest_index = max(indices, key=lambda i: len(problem.messages[i]["content"]), default=0)
    longest = problem.messages[longest_index]["content"] if problem.messages else problem.prompt
    characters = bisect.bisect_right(range(1, len(longest)), room, key=lambda n: len(encode(shortened(n).asked)))
    return shortened(characters) if characters else None
