"""Batched sampling from a causal model, with the log-probability of what was sampled.

Prompts are padded on the left and read once each, however many samples are drawn from one. Finished rows leave the
batch, and prompts that wait take their places, so that one long completion does not make all others wait. Each row
draws from its own seed, one uniform number a token, so that what a row becomes does not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch

from steadyrl.backends.stops import StopStrings
from steadyrl.backends.torch.deterministic import running_sums
from steadyrl.backends.torch.draw.batch import Choose, Leave, Rows, decode
from steadyrl.backends.torch.draw.cache import Cache, Prefix
from steadyrl.backends.torch.draw.decoder import Decoder, kernels
from steadyrl.backends.torch.draw.forward import ForwardDecoder
from steadyrl.backends.torch.draw.graph import GraphDecoder
from steadyrl.backends.torch.draw.tokens import Tokens
from steadyrl.backends.torch.draw.waiting import Waiting
from steadyrl.backends.torch.load.model import SplitModel
from steadyrl.backends.torch.read.products import laid_out
from steadyrl.core.types import Completion, Sampling

# Where prompts enter, the cache is longer by this part: so rarely do its columns have to be moved.
SPARE = 8
BLOCK = 128  # tokens whose probabilities are summed together when one is drawn
LARGEST = 1024  # tokens of a row that are sorted for top-p first; they nearly always hold all that it keeps

# The ids [N] of a row that leaves the batch, the cache, and its place there.
Leaving = Callable[[np.ndarray, Cache, int], None]

# The number of a prompt, and its completion.
Finished = Callable[[int, Completion], None]


@torch.inference_mode()
def sample(
    split: SplitModel,
    prompts: Sequence[np.ndarray],
    sampling: Sampling,
    seeds: Sequence[int],
    end_ids: Sequence[int],
    pad_id: int,
    lower: torch.dtype | None = None,
    stops: StopStrings | None = None,
    known_prefixes: list[Prefix | None] | None = None,
    leaving: Leaving | None = None,
    most_rows: int | None = None,
    finished: Finished | None = None,
) -> list[Completion]:
    """Sample one completion per prompt.

    Args:
        split: Of a transformers causal model in eval mode.
        prompts: Token ids, at least one each; all of one length where the model's own cache cannot be padded.
        sampling: How to draw.
        seeds: One per prompt.
        end_ids: Each ends a completion.
        pad_id: Fills the left of short prompts.
        lower: Type that the decoder multiplies matrices in; None for that of the weights.
        stops: Strings that end a completion too; None for none.
        known_prefixes: What of each prompt needs no reading, less than the whole; None for nothing. For our decoder
            only. Each is emptied once it is in the cache, lest both take memory.
        leaving: Is told of every row that leaves the batch: its prompt and all that it drew but the last, which was
            perhaps not read; the cache, and the row's place in it.
        most_rows: Prompts that are decoded at a time; the next ones, in their order, take the places of those that have
            ended. For our decoder only. None for all.
        finished: Is told of every completion when its row leaves the batch, with the number of its prompt.
    """
    weight = next(split.body.parameters())
    count = min(most_rows or len(prompts), len(prompts))
    waiting = Waiting(prompts, known_prefixes or [None] * len(prompts), pad_id, weight.device)
    tokens = Tokens(sampling, seeds, end_ids, stops, split.head.out_features, weight.device)
    completions: dict[int, Completion] = {}

    def leave(cache_rows: Sequence[int], numbers: Sequence[int], cache: Any) -> None:
        for row, number, completion in zip(cache_rows, numbers, tokens.completions(numbers), strict=True):
            completions[number] = completion
            if leaving is not None:
                leaving(np.concatenate([prompts[number], completion.ids[:-1]]), cache, row)
            if finished is not None:
                finished(number, completion)

    choose: Choose = partial(_choose, sampling=sampling)
    fast_products = laid_out(split.body, count, lower or weight.dtype, split.siblings, kernels(weight.device))
    with fast_products if split.ours else nullcontext():
        if not split.ours:
            assert count == len(prompts), "no prompt enters a model's own cache"
            forward = ForwardDecoder(split, count, lower)
            rows = Rows(forward, waiting, count, lambda ids, visible, prefixes: forward.prefill(ids, visible))
            decode(rows, tokens, waiting, choose, None, leave)
        else:
            length = waiting.columns + sampling.max_new_tokens
            length += -(-length // SPARE) if count < len(prompts) else 0
            _decode_by_ours(Decoder(split, count, length, lower), tokens, waiting, choose, count, leave)
    return [completions[number] for number in range(len(prompts))]


def _decode_by_ours(
    decoder: Decoder, tokens: Tokens, waiting: Waiting, choose: Choose, count: int, leave: Leave
) -> None:
    """Decode ``count`` rows at a time by our decoder, with room for longer prompts that wait; captured on a GPU."""
    engine: Decoder | GraphDecoder = decoder
    if decoder.device.type == "cuda":
        engine = GraphDecoder(decoder)
        choose = engine.with_logits(choose)

    def prefill(ids: torch.Tensor, visible: torch.Tensor, prefixes: Any) -> Any:
        return decoder.prefill(ids, visible, prefixes, waiting.columns - ids.shape[1])

    rows = Rows(engine, waiting, count, prefill)
    decode(rows, tokens, waiting, choose, partial(decoder.prefill, room=0), leave)


def _choose(
    logits: torch.Tensor, uniform: torch.Tensor, sampling: Sampling
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return drawn tokens [B], the log-probs [B] of them that are asked for, and what they were drawn from [B, V]."""
    warped = warp(logits, sampling)  # [B, V]
    tokens, logprobs = draw(warped, uniform)
    if sampling.logprobs == "raw":
        logprobs = logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(-1)
    return tokens, logprobs, warped


def warp(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Return the logits that tokens are drawn from: temperature first, then top-k, then top-p.

    Args:
        logits: [N, V] float32.
        sampling: temperature, top_k and top_p are used.

    Returns:
        [N, V], not normalised; -inf for tokens that truncation cut.
    """
    if sampling.temperature != 1.0:
        logits = logits / sampling.temperature
    if sampling.top_k > 0:
        least = logits.topk(min(sampling.top_k, logits.shape[-1]), dim=-1).values[:, -1:]  # [N, 1]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if sampling.top_p < 1.0:
        logits = logits.masked_fill(_behind_top_p(logits, sampling.top_p), -torch.inf)
    return logits


def _behind_top_p(logits: torch.Tensor, top_p: float) -> torch.Tensor:
    """Return [N, V] bool, True for what stands behind the tokens that reach top_p."""
    vocabulary = logits.shape[-1]
    if logits.device.type == "cpu":  # numpy parts and sorts numbers alone, far faster than torch sorts them with ids
        behind, ordered = _behind_among_largest(logits, top_p, min(LARGEST, vocabulary))
        if not bool(behind[:, -1].all()):
            behind, ordered = _behind_among_largest(logits, top_p, vocabulary)
        stay = (~behind).sum(-1, keepdim=True)  # [N, 1], how many tokens
        cut = logits < ordered.gather(1, stay - 1)  # [N, V]
        if bool((cut.sum(-1, keepdim=True) + stay == vocabulary).all()):  # no two tokens alike on both sides of the cut
            return cut
    ordered, order = logits.sort(dim=-1, descending=True)
    p = ordered.softmax(-1)  # [N, V]
    cut = running_sums(p) - p >= top_p
    return cut.scatter(1, order, cut)


def _behind_among_largest(logits: torch.Tensor, top_p: float, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what stands behind top_p among the ``count`` largest of each row, and these: [N, count], falling."""
    numbers = -logits.numpy()  # [N, V]
    if count < numbers.shape[-1]:
        numbers = np.partition(numbers, count, axis=-1)[:, :count]
    ordered = torch.from_numpy(-np.sort(numbers, axis=-1))
    p = (ordered - logits.logsumexp(-1, keepdim=True)).exp()
    return p.cumsum(-1) - p >= top_p, ordered  # the token that reaches top_p stays


def draw(logits: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Invert the cumulative distribution of a softmax at given uniform numbers.

    First the block of tokens is found, then the token in it, so that only sums of blocks are accumulated over the
    whole vocabulary.

    Args:
        logits: [N, V] float32; -inf is never drawn.
        uniform: [N] in [0, 1).

    Returns:
        Token ids [N], and their log-probabilities [N].
    """
    if (ours := kernels(logits.device)) is not None:
        sampled: tuple[torch.Tensor, torch.Tensor] = ours.draw(logits.contiguous(), uniform)
        return sampled
    wide = torch.float32 if logits.device.type == "mps" else torch.float64
    vocabulary = logits.shape[1]
    weights = logits.softmax(-1)  # [N, V]; one kernel, faster than exp alone
    blocked = vocabulary - vocabulary % BLOCK
    sums = weights[:, :blocked].view(len(weights), -1, BLOCK).sum(-1) if blocked else weights[:, :0]
    if blocked < vocabulary:
        sums = torch.cat([sums, weights[:, blocked:].sum(-1, keepdim=True)], dim=1)
    ends = running_sums(sums.to(wide))  # [N, blocks]
    target = uniform.to(wide)[:, None] * ends[:, -1:]  # [N, 1]
    block = torch.searchsorted(ends, target, right=True).clamp(max=sums.shape[1] - 1)  # [N, 1]
    start = ends.gather(1, block) - sums.to(wide).gather(1, block)  # [N, 1], the sum before the block
    ids = block * BLOCK + torch.arange(BLOCK, device=logits.device)  # [N, BLOCK]
    inside = weights.gather(1, ids.clamp(max=vocabulary - 1)).masked_fill(ids >= vocabulary, 0.0)
    passed = (running_sums(inside.to(wide)) + start <= target).sum(-1)  # [N], tokens of the block
    # Sums of blocks and sums inside one are rounded differently: never step onto what has no probability.
    numbers = torch.arange(BLOCK, device=logits.device)
    possible = torch.where(inside > 0, numbers, -1)  # [N, BLOCK]
    behind = torch.where(possible >= passed[:, None], numbers, BLOCK).amin(-1)  # [N], BLOCK where there is none
    offset = torch.where(behind < BLOCK, behind, possible.amax(-1))
    tokens = block[:, 0] * BLOCK + offset
    return tokens, (weights.gather(1, tokens[:, None])[:, 0] / ends[:, -1]).log().to(logits.dtype)
