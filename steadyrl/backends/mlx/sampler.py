"""Batched sampling with a cache of keys and values, and the log-probability of what was sampled.

mlx-lm's own sampler cuts before it divides by the temperature, and its generator leaves out the token that ended a
text. Here a token is drawn from what the trainer differentiates: temperature first, then top-k, then top-p. Each row
draws from its own seed, one uniform number a token, so that what a row becomes does not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import BatchKVCache

from steadyrl.backends.mlx.likelihood import BLOCK, at_chosen, blocks_of, log_total
from steadyrl.backends.stops import StopStrings
from steadyrl.core.counting.count import tell
from steadyrl.core.types import Completion, Sampling

LEAVE_SHARE = 0.1  # of the rows so many must be finished before the batch, and the cache, is made smaller


def sample(
    net: nn.Module,
    logits: Callable[[mx.array], mx.array],
    prompts: Sequence[np.ndarray],
    sampling: Sampling,
    seeds: Sequence[int],
    end_ids: Sequence[int],
    pad_id: int,
    stops: StopStrings | None = None,
) -> list[Completion]:
    """Sample one completion per prompt; equal prompts are read once."""
    numbers: dict[bytes, int] = {}
    which = [numbers.setdefault(prompt.tobytes(), len(numbers)) for prompt in prompts]
    distinct = [prompts[which.index(number)] for number in range(len(numbers))]
    width = max(map(len, distinct))
    ids = np.full((len(distinct), width), pad_id, np.int32)
    for row, prompt in enumerate(distinct):
        ids[row, width - len(prompt) :] = prompt
    cache = [BatchKVCache([width - len(prompt) for prompt in distinct]) for _ in net.model.layers]

    def read(tokens: mx.array) -> mx.array:
        return logits(net.model(tokens, cache)[:, -1].astype(mx.float32)).astype(mx.float32)

    first_logits = read(mx.array(ids))
    if len(distinct) < len(prompts):
        _take(cache, which)
        first_logits = first_logits[mx.array(which)]
    uniforms = np.stack([np.random.default_rng(seed).random(sampling.max_new_tokens) for seed in seeds])
    return _decode(read, cache, first_logits, sampling, uniforms, end_ids, stops)


def _take(cache: list[BatchKVCache], rows: Sequence[int]) -> None:
    """Keep these rows only; a row may be taken several times."""
    for layer in cache:
        layer.filter(mx.array(list(rows)))


def _decode(
    read: Callable[[mx.array], mx.array],
    cache: list[BatchKVCache],
    logits: mx.array,
    sampling: Sampling,
    uniforms: np.ndarray,
    end_ids: Sequence[int],
    stops: StopStrings | None,
) -> list[Completion]:
    """Draw tokens until every row has ended; ``uniforms`` is [B, max_new_tokens]."""
    count, most = uniforms.shape
    uniforms = np.minimum(uniforms, 1 - 2.0**-24).astype(np.float32)  # float32 would round the largest to 1
    ids: list[list[int]] = [[] for _ in range(count)]
    logprobs: list[list[float]] = [[] for _ in range(count)]
    kept_ids: list[list[np.ndarray]] = [[] for _ in range(count)]
    rows = np.arange(count)  # of the batch as it was, one per row that is left
    going, ended = np.ones(count, bool), np.zeros(count, bool)
    for t in range(most):
        warped = warp(logits, sampling)
        tokens, drawn_logprobs = draw(warped, mx.array(uniforms[rows, t]))
        if sampling.logprobs == "raw":
            drawn_logprobs = at_chosen(logits, tokens) - log_total(logits)
        mx.eval(tokens, drawn_logprobs, warped)
        drawn, logps = np.array(tokens), np.array(drawn_logprobs)
        left = np.array(warped > -mx.inf) if sampling.truncates else None
        for place in np.flatnonzero(going).tolist():
            ids[rows[place]].append(int(drawn[place]))
            logprobs[rows[place]].append(float(logps[place]))
            if left is not None:
                kept_ids[rows[place]].append(np.flatnonzero(left[place]).astype(np.int32))
        going &= ~np.isin(drawn, end_ids)
        if stops is not None:
            live = np.flatnonzero(going)
            going[live] = ~np.array(stops.ended(np.array(ids[rows[place]][-stops.reach :]) for place in live), bool)
        ended[rows] = ~going
        tell("completions", int(ended.sum()), count)
        if t + 1 == most or not going.any():
            break
        if going.sum() <= (1.0 - LEAVE_SHARE) * len(going):
            stay = np.flatnonzero(going)
            _take(cache, stay.tolist())
            rows, drawn, going = rows[stay], drawn[stay], going[stay]
        logits = read(mx.array(drawn[:, None]))
    tell("completions", count, count)
    return [
        Completion(
            np.array(ids[row], np.int32),
            np.array(logprobs[row], np.float32),
            "stop" if ended[row] else "length",
            tuple(kept_ids[row]) if sampling.truncates else None,
        )
        for row in range(count)
    ]


def warp(logits: mx.array, sampling: Sampling) -> mx.array:
    """Return [N, V] logits that tokens are drawn from, -inf where cut: temperature first, then top-k, then top-p."""
    if sampling.temperature != 1.0:
        logits = logits / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        least = mx.min(mx.topk(logits, sampling.top_k, axis=-1), axis=-1, keepdims=True)
        logits = mx.where(logits < least, -mx.inf, logits)
    if sampling.top_p < 1.0:
        order = mx.argsort(-logits, axis=-1)
        p = mx.softmax(mx.take_along_axis(logits, order, axis=-1), axis=-1, precise=True)
        cut = mx.cumsum(p, axis=-1) - p >= sampling.top_p  # the token that reaches top_p stays
        cut = mx.put_along_axis(mx.zeros(cut.shape, mx.bool_), order, cut, axis=-1)
        logits = mx.where(cut, -mx.inf, logits)
    return logits


def draw(logits: mx.array, uniform: mx.array) -> tuple[mx.array, mx.array]:
    """Invert the cumulative distribution of a softmax at given uniform numbers.

    First the block of tokens is found, then the token in it: MLX has no float64 on a GPU, and float32 would lose the
    tail of a sum over a whole vocabulary.

    Args:
        logits: [N, V] float32, of which -inf is never drawn.
        uniform: [N] in [0, 1).

    Returns:
        Tokens [N] and log-probs [N].
    """
    blocks = blocks_of(mx.softmax(logits, axis=-1, precise=True))
    sums = blocks.sum(axis=-1)
    ends = mx.cumsum(sums, axis=-1)  # [N, blocks]
    aim = uniform[:, None] * ends[:, -1:]
    block = mx.minimum((ends <= aim).sum(axis=-1, keepdims=True), sums.shape[1] - 1)  # [N, 1]
    start = mx.take_along_axis(ends, block, axis=1) - mx.take_along_axis(sums, block, axis=1)
    inside = mx.take_along_axis(blocks, block[:, :, None], axis=1)[:, 0]  # [N, BLOCK]
    passed = (mx.cumsum(inside, axis=-1) + start <= aim).sum(axis=-1, keepdims=True)
    # Sums of blocks and sums inside one are rounded differently: never step onto what has no probability.
    numbers = mx.arange(BLOCK)
    behind = mx.where((inside > 0) & (numbers >= passed), numbers, BLOCK).min(axis=-1)
    last = mx.where(inside > 0, numbers, 0).max(axis=-1)
    tokens = block[:, 0] * BLOCK + mx.where(behind < BLOCK, behind, last)
    return tokens, at_chosen(logits, tokens) - log_total(logits)
