"""Log-probs and entropies of chosen tokens from hidden states, a chunk of tokens at a time.

Logits of a chunk are computed again on the way back, so that no more than one chunk of them is ever alive. Sums over a
vocabulary are taken in blocks: on a CPU MLX adds one number after the other, and 49,152 of them come out 7e-5 wrong.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn
import numpy as np

CHUNK = 2**23  # logits computed at once
BLOCK = 128  # numbers that are added one after the other
_PRODUCT_BLOCK = 512  # likewise, of a sum over the vocabulary in a product of matrices
LEAST_ROWS = 512  # but at least so many tokens: every chunk reads the whole head

Logits = Callable[[mx.array], mx.array]


def chunks(rows: int, vocabulary: int) -> list[slice]:
    """Return the slices of rows whose logits are computed at once."""
    width = max(LEAST_ROWS, CHUNK // vocabulary)
    return [slice(start, min(start + width, rows)) for start in range(0, rows, width)]


def blocks_of(array: mx.array) -> mx.array:
    """Return [N, V] as [N, ceil(V / BLOCK), BLOCK], filled up with zeros."""
    padded = mx.pad(array, [(0, 0), (0, -array.shape[1] % BLOCK)])
    return padded.reshape(array.shape[0], -1, BLOCK)


@mx.custom_function
def to_vocabulary(hidden: mx.array, weight: mx.array) -> mx.array:
    """Return logits [N, V] of hidden states [N, H] and a head's weights [V, H].

    On the way back a sum runs over the vocabulary. The reference BLAS adds one product after the other, and next to
    the chosen token's those of the others are lost: gradients of a real model come out 3e-3 wrong.
    """
    return hidden @ weight.T


@to_vocabulary.vjp
def _to_vocabulary_vjp(
    inputs: tuple[mx.array, mx.array], cotangent: mx.array, output: mx.array
) -> tuple[mx.array, mx.array]:
    hidden, weight = inputs
    count, width = weight.shape
    blocked = count - count % _PRODUCT_BLOCK
    d_hidden = cotangent[:, blocked:] @ weight[blocked:]
    if blocked:
        blocks = cotangent[:, :blocked].reshape(len(hidden), -1, _PRODUCT_BLOCK).swapaxes(0, 1)
        d_hidden += (blocks @ weight[:blocked].reshape(-1, _PRODUCT_BLOCK, width)).sum(axis=0)
    return d_hidden.astype(hidden.dtype), (cotangent.T @ hidden).astype(weight.dtype)


def total(array: mx.array) -> mx.array:
    """Return the sums [N] over the columns of [N, V]."""
    return blocks_of(array).sum(axis=-1).sum(axis=-1)


def log_total(logits: mx.array) -> mx.array:
    """Return log sum exp [N] of logits [N, V], which may be -inf."""
    greatest = mx.stop_gradient(logits.max(axis=-1, keepdims=True))
    return mx.log(total(mx.exp(logits - greatest))) + greatest[:, 0]


def log_softmax(logits: mx.array, scale: float, kept_mask: mx.array | None) -> mx.array:
    """Return log-probs [N, V] in float32, normalised over the kept ids, -inf for the others.

    Args:
        logits: [N, V].
        scale: Logits are multiplied by it: one over the temperature.
        kept_mask: [N, V] bool, the ids that truncation left; None for all.
    """
    logits = logits.astype(mx.float32) * scale
    if kept_mask is not None:
        logits = mx.where(kept_mask, logits, -mx.inf)
    return logits - log_total(logits)[:, None]


def entropy_of(logp: mx.array) -> mx.array:
    """Return the entropy [N] of log-probs [N, V], which may be -inf."""
    # The smallest float stands in for -inf, which times 0 is no number, on the way back neither.
    return -total(mx.exp(logp) * mx.maximum(logp, -3e38))


def at_chosen(logp: mx.array, chosen: mx.array) -> mx.array:
    """Return the log-prob [N] of one token of each row; MLX reads beyond the end without a word."""
    return mx.take_along_axis(logp, chosen[:, None], axis=1)[:, 0]


def chosen_logprobs(
    hidden: mx.array,
    head: nn.Module,
    logits: Logits,
    chosen: np.ndarray,
    scale: float,
    kept_mask: np.ndarray | None,
    entropy: bool,
) -> tuple[mx.array, mx.array | None]:
    """Return log-probs [N] of chosen tokens and, if asked for, entropies [N]; both carry gradients.

    Args:
        hidden: [N, H].
        head: The module that ``logits`` computes with.
        logits: Hidden states to logits.
        chosen: [N] int, each below V.
        scale: Logits are multiplied by it.
        kept_mask: [N, V] bool, the ids that truncation left; None for all.
        entropy: Whether to compute entropies.
    """

    def measure(states: mx.array, rows: slice) -> list[mx.array]:
        mask = None if kept_mask is None else mx.array(kept_mask[rows])
        logp = log_softmax(logits(states.astype(mx.float32)), scale, mask)
        logprobs = at_chosen(logp, mx.array(chosen[rows]))
        return [logprobs, entropy_of(logp)] if entropy else [logprobs]

    measured = []
    for rows in chunks(len(chosen), head.weight.shape[0]):
        # The weights of the head are inputs of their own: what a recomputed function merely sees has no gradient.
        measured.append(nn.utils.checkpoint(head, lambda states, rows=rows: measure(states, rows))(hidden[rows]))
    columns = [mx.concatenate(list(chunk_values)) for chunk_values in zip(*measured, strict=True)]
    return columns[0], columns[1] if entropy else None
