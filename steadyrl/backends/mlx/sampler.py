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
    row_by_bytes: dict[bytes, int] = {}
    rows = [row_by_bytes.setdefault(prompt.tobytes(), len(row_by_bytes)) for prompt in prompts]
    distinct = [prompts[rows.index(row)] for row in range(len(row_by_bytes))]
    width = max(map(len, distinct))
    ids = np.full((len(distinct), width), pad_id, np.int32)
    for row, prompt in enumerate(distinct):
        ids[row, width - len(prompt) :] = prompt
    cache = [BatchKVCache([width - len(prompt) for prompt in distinct]) for _ in net.model.layers]

    def read(tokens: mx.array) -> mx.array:
        return logits(net.model(tokens, cache)[:, -1].astype(mx.float32)).astype(mx.float32)

    first_logits = read(mx.array(ids))
    if len(distinct) < len(prompts):
        _take_rows(cache, rows)
        first_logits = first_logits[mx.array(rows)]
    uniforms = np.stack([np.random.default_rng(seed).random(sampling.max_new_tokens) for seed in seeds])
    return _decode(read, cache, first_logits, sampling, uniforms, end_ids, stops)


def _take_rows(cache: list[BatchKVCache], rows: Sequence[int]) -> None:
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
    count, max_tokens = uniforms.shape
    uniforms = np.minimum(uniforms, 1 - 2.0**-24).astype(np.float32)  # float32 would round the largest to 1
    ids: list[list[int]] = [[] for _ in range(count)]
    logprobs: list[list[float]] = [[] for _ in range(count)]
    kept_ids: list[list[np.ndarray]] = [[] for _ in range(count)]
    rows = np.arange(count)  # of the batch as it was, one per row that is left
    going, ended = np.ones(count, bool), np.zeros(count, bool)
    for t in range(max_tokens):
        warped = warp(logits, sampling)
        tokens, drawn_logprobs = draw(warped, mx.array(uniforms[rows, t]))
        if sampling.logprobs == "raw":
            drawn_logprobs = at_chosen(logits, tokens) - log_total(logits)
        mx.eval(tokens, drawn_logprobs, warped)
        tokens_t, logprobs_t = np.array(tokens), np.array(drawn_logprobs)  # [rows]
        keep = np.array(warped > -mx.inf) if sampling.truncates else None  # [rows, V]
        for i in np.flatnonzero(going).tolist():
            ids[rows[i]].append(int(tokens_t[i]))
            logprobs[rows[i]].append(float(logprobs_t[i]))
            if keep is not None:
                kept_ids[rows[i]].append(np.flatnonzero(keep[i]).astype(np.int32))
        going &= ~np.isin(tokens_t, end_ids)
        if stops is not None:
            live = np.flatnonzero(going)
            going[live] = ~np.array(stops.ended(np.array(ids[row][-stops.reach :]) for row in rows[live]), bool)
        ended[rows] = ~going
        tell("completions", int(ended.sum()), count)
        if t + 1 == max_tokens or not going.any():
            break
        if going.sum() <= (1.0 - LEAVE_SHARE) * len(going):
            staying = np.flatnonzero(going)
            _take_rows(cache, staying.tolist())
            rows, tokens_t, going = rows[staying], tokens_t[staying], going[staying]
        logits = read(mx.array(tokens_t[:, None]))
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
    target = uniform[:, None] * ends[:, -1:]
    block = mx.minimum((ends <= target).sum(axis=-1, keepdims=True), sums.shape[1] - 1)  # [N, 1]
    start = mx.take_along_axis(ends, block, axis=1) - mx.take_along_axis(sums, block, axis=1)
    p = mx.take_along_axis(blocks, block[:, :, None], axis=1)[:, 0]  # [N, BLOCK]
    passed = (mx.cumsum(p, axis=-1) + start <= target).sum(axis=-1, keepdims=True)
    # Sums of blocks and sums inside one are rounded differently: never step onto what has no probability.
    numbers = mx.arange(BLOCK)
    candidate = mx.where((p > 0) & (numbers >= passed), numbers, BLOCK).min(axis=-1)
    last_possible = mx.where(p > 0, numbers, 0).max(axis=-1)
    tokens = block[:, 0] * BLOCK + mx.where(candidate < BLOCK, candidate, last_possible)
    return tokens, at_chosen(logits, tokens) - log_total(logits)
