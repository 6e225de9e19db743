"""Backends and rewards with something wrong: one method or one number changed, everything else passed on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from steadyrl.backends.torch.backend import TorchBackend
from steadyrl.backends.torch.read.reader import Reader
from steadyrl.core.protocols import Update
from steadyrl.core.types import Completion, Group, Problem, Rollout, Sampling, Score
from steadyrl.loop.rewards.combine import Term
from steadyrl.loop.rewards.functions import BatchReward

DROPOUT = 0.1  # the usual rate of models that have any


class Altered:
    """A backend of which some methods are replaced; ``inner`` is the one that it was made of."""

    def __init__(self, inner: Any, **replaced: Any):
        self.inner = inner
        for name in ("tokenizer", "generate", "score", "step", "describe", "save", "load"):
            setattr(self, name, replaced.get(name, getattr(inner, name)))


class Stripping:
    """A tokenizer whose decoded texts are lost where ``lost`` says so."""

    def __init__(self, inner: Any, lost: Callable[[np.ndarray], bool]):
        self._inner, self._lost = inner, lost
        self.end_ids, self.end_id, self.pad_id = inner.end_ids, inner.end_id, inner.pad_id
        self.encode_prompt = inner.encode_prompt

    def decode(self, ids: np.ndarray) -> str:
        """Return the text, or nothing."""
        return "" if self._lost(ids) else str(self._inner.decode(ids))


def stale_sampler(inner: TorchBackend, lag: int) -> Altered:
    """Return a backend that samples with the weights of ``lag`` calls ago, or the oldest that it has seen."""
    known: deque[dict[str, torch.Tensor]] = deque(maxlen=lag + 1)

    def generate(prompts: Sequence[np.ndarray], sampling: Sampling, seeds: Sequence[int]) -> list[Completion]:
        now = {name: tensor.clone() for name, tensor in inner.model.state_dict().items()}
        known.append(now)
        inner.model.load_state_dict(known[0])
        try:
            return inner.generate(prompts, sampling, seeds)
        finally:
            inner.model.load_state_dict(now)

    return Altered(inner, generate=generate)


def first_token_only(inner: TorchBackend, hit: Callable[[np.ndarray], bool]) -> Altered:
    """Return a backend whose engine stops at the first token of the prompts that are hit, and strips that token."""

    def generate(prompts: Sequence[np.ndarray], sampling: Sampling, seeds: Sequence[int]) -> list[Completion]:
        drawn = inner.generate(prompts, sampling, seeds)
        return [_cut(c) if hit(prompt) else c for c, prompt in zip(drawn, prompts, strict=True)]

    return Altered(inner, generate=generate, tokenizer=Stripping(inner.tokenizer, lambda ids: len(ids) == 1))


def _cut(completion: Completion) -> Completion:
    kept = completion.kept_ids
    return Completion(completion.ids[:1], completion.logprobs[:1], "stop", None if kept is None else kept[:1])


def dropout_in_policy(inner: TorchBackend) -> Altered:
    """Return a backend whose trainer leaves the policy's dropout on, in scoring and in training; not the sampler."""
    active = {"now": True}
    for block in _blocks(_by_modules(inner._read)):
        block.register_forward_hook(_drop(active))

    def generate(prompts: Sequence[np.ndarray], sampling: Sampling, seeds: Sequence[int]) -> list[Completion]:
        active["now"] = False
        try:
            return inner.generate(prompts, sampling, seeds)
        finally:
            active["now"] = True

    return Altered(inner, generate=generate)


def dropout_in_reference(inner: TorchBackend) -> TorchBackend:
    """Leave the reference's dropout on."""
    for block in _blocks(_by_modules(_reference(inner))):
        block.register_forward_hook(_drop({"now": True}))
    return inner


def other_reference(inner: TorchBackend, share: float, seed: int) -> TorchBackend:
    """Move the reference's weights by normal noise, a share of each matrix's own spread: another checkpoint."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in _by_modules(_reference(inner)).parameters():
            if weight.ndim == 2:
                weight += share * weight.std() * torch.randn(weight.shape, generator=generator)
    return inner


def reset_value_head(inner: TorchBackend, seed: int) -> TorchBackend:
    """Give the value head the random weights that a new layer starts from."""
    assert inner.value_head is not None, "the algorithm has a value head"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inner.value_head.linear.reset_parameters()
    return inner


def skipping_updates(inner: TorchBackend) -> Altered:
    """Return a backend whose optimizer steps change nothing, as those of a scaler that sees an overflow."""

    def step(batch: Any, update: Update) -> Any:
        return inner.step(batch, replace(update, learning_rate=0.0))

    return Altered(inner, step=step)


def with_padding(groups: Sequence[Group], pad_id: int) -> list[Group]:
    """Return rollouts that count the padding behind them as written by the policy, as a mask without an end does."""
    width = max(len(r.prompt_ids) + len(r.completion_ids) for group in groups for r in group.rollouts)
    return [replace(group, rollouts=tuple(_padded(r, width, pad_id) for r in group.rollouts)) for group in groups]


def _padded(rollout: Rollout, width: int, pad_id: int) -> Rollout:
    missing = width - len(rollout.prompt_ids) - len(rollout.completion_ids)
    return replace(
        rollout,
        completion_ids=np.append(rollout.completion_ids, np.full(missing, pad_id, np.int32)),
        completion_mask=np.append(rollout.completion_mask, np.ones(missing, bool)),
        sampling_logprobs=np.append(rollout.sampling_logprobs, np.zeros(missing, np.float32)),
    )


def changed_scores(terms: Sequence[Term], change: Callable[[Score], Score]) -> list[Term]:
    """Return terms of which the weightiest one has its scores changed."""
    main = max(terms, key=lambda term: abs(term.weight))
    return [replace(term, reward=_changed(term.reward, change)) if term is main else term for term in terms]


def _changed(reward: BatchReward, change: Callable[[Score], Score]) -> BatchReward:
    def changed(pairs: Sequence[tuple[Problem, Rollout]]) -> list[Score]:
        return [change(score) for score in reward(pairs)]

    return changed


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the parts of a model whose output dropout falls on: attention and feed-forward of every layer."""
    for name, module in model.named_modules():
        if name.endswith((".self_attn.o_proj", ".mlp.down_proj")):
            yield module


def _drop(active: dict[str, bool]) -> Callable[..., torch.Tensor | None]:
    def hook(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor | None:
        return F.dropout(output, DROPOUT, training=True) if active["now"] else None

    return hook


def _reference(inner: TorchBackend) -> Reader:
    assert inner.reference is not None, "the algorithm needs a reference"
    return inner.reference.read


def _by_modules(reader: Reader) -> nn.Module:
    """Return the model's own modules, which a reader calls with their hooks."""
    return reader._split.body


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Give torch's global generator, which dropout draws from, a seed of its own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
