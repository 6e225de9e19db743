"""Log-probs, entropies and exact KL of rows of logits in one pass over them: Triton kernels for a GPU.

A row's greatest logit is not known before the row is read, so sums of exponentials are taken relative to the greatest
so far and scaled down whenever a greater one comes (online softmax; Milakov and Gimelshein 2018, algorithm 3). All sums
are in float32. Importing this module needs Triton; ``head.row_kernels`` does so where there is a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

BLOCK = 4096  # logits of a row that one program reads at once
WARPS = 8
# It stands in for -inf, whose differences are no numbers. Float32 holds its product with a vocabulary.
LEAST = tl.constexpr(-1e30)


def row_stats(
    logits: torch.Tensor, chosen: torch.Tensor, scale: float, kept_mask: torch.Tensor | None, entropy: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return log-probs of chosen tokens, logs of the sums of exponentials and, if asked for, entropies: [n] each.

    Args:
        logits: [n, V], contiguous, of any floating type.
        chosen: [n] int64.
        scale: Logits are multiplied by it.
        kept_mask: [n, V] bool, the ids that truncation left; None for all.
        entropy: Whether to compute entropies, in nats.
    """
    logprobs = torch.empty(len(logits), device=logits.device)
    norms = torch.empty_like(logprobs)
    entropies = torch.empty_like(logprobs) if entropy else None
    _launch(_stats, logits, 1, kept_mask, chosen, logprobs, norms, entropies, scale)
    return logprobs, norms, entropies


def row_slopes(
    logits: torch.Tensor,
    chosen: torch.Tensor,
    scale: float,
    kept_mask: torch.Tensor | None,
    norms: torch.Tensor,
    d_logprobs: torch.Tensor,
    of_entropy: tuple[torch.Tensor, torch.Tensor] | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return the gradient of a loss by the logits, [n, V]; it takes their place where it has their type.

    Args:
        logits: See ``row_stats``.
        chosen: See ``row_stats``.
        scale: See ``row_stats``.
        kept_mask: See ``row_stats``.
        norms: [n] as ``row_stats`` returned them.
        d_logprobs: [n], the gradient by the log-probs.
        of_entropy: The entropies and the gradient by them, [n] each; None where they were not asked for.
        dtype: Of the result.
    """
    slopes = logits if logits.dtype == dtype else torch.empty_like(logits, dtype=dtype)
    entropies, d_entropies = (None, None) if of_entropy is None else (tensor.contiguous() for tensor in of_entropy)
    blocks = triton.cdiv(logits.shape[1], BLOCK)
    _launch(
        _slopes, logits, blocks, kept_mask, chosen, norms, d_logprobs.contiguous(), entropies, d_entropies, slopes,
        scale,
    )  # fmt: skip
    return slopes


def row_comparison(
    logits: torch.Tensor, reference: torch.Tensor, chosen: torch.Tensor, scale: float, kept_mask: torch.Tensor | None
) -> tuple[torch.Tensor, ...]:
    """Return log-probs of chosen tokens, entropies, the reference's log-probs, KL(policy || reference), and norms.

    They are [n] each; norms are the logs of the policy's sums of exponentials.

    Args:
        logits: The policy's; see ``row_stats``.
        reference: The reference's logits [n, V].
        chosen: See ``row_stats``.
        scale: See ``row_stats``.
        kept_mask: See ``row_stats``.
    """
    logprobs = torch.empty(len(logits), device=logits.device)
    entropies, ref_logprobs, kl, norms = (torch.empty_like(logprobs) for _ in range(4))
    _launch(_comparison, logits, 1, reference, kept_mask, chosen, logprobs, entropies, ref_logprobs, kl, norms, scale)
    return logprobs, entropies, ref_logprobs, kl, norms


def compared(
    policy: Callable[[], torch.Tensor],
    reference: Callable[[], torch.Tensor] | None,
    chosen: torch.Tensor,
    scale: float,
    kept_mask: torch.Tensor | None,
) -> dict[str, torch.Tensor]:
    """See ``head.distributions``; what makes logits is called once. The norms are there, too."""
    if reference is None:
        logprobs, norms, entropies = row_stats(policy(), chosen, scale, kept_mask, True)
        assert entropies is not None
        return {"logprobs": logprobs, "entropy": entropies, "norms": norms}
    ref_logits = reference()
    logprobs, entropies, ref_logprobs, kl, norms = row_comparison(policy(), ref_logits, chosen, scale, kept_mask)
    measured = {
        "logprobs": logprobs, "entropy": entropies, "ref_logprobs": ref_logprobs, "kl_ref_exact": kl, "norms": norms
    }  # fmt: skip
    if kept_mask is not None:
        measured["kl_ref_full"] = kl + ref_logprobs - row_stats(ref_logits, chosen, scale, None, False)[0]
    return measured


def _launch(kernel: Any, logits: torch.Tensor, blocks: int, *arguments: Any) -> None:
    """Run a kernel on each row, or on each of the blocks of each row."""
    rows, vocabulary = logits.shape
    kernel[(rows, blocks)](logits, *arguments, V=vocabulary, BLOCK=BLOCK, num_warps=WARPS)


@triton.jit
def _stats(
    logits: tl.tensor,
    kept_mask: tl.tensor,
    chosen: tl.tensor,
    logprobs: tl.tensor,
    norms: tl.tensor,
    entropies: tl.tensor,
    scale: tl.tensor,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)  # rows times V may exceed 2^31
    top = tl.full((), LEAST, tl.float32)
    sums = tl.zeros((BLOCK,), tl.float32)  # of every BLOCK-th id: added up across threads once, at the end
    products = tl.zeros((BLOCK,), tl.float32)  # of exponentials and their exponents
    for start in range(0, V, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        z = _read(logits, kept_mask, row, ids, scale, V)
        before = top
        top = tl.maximum(top, tl.max(z, 0))
        shrink = tl.exp(before - top)
        e = tl.exp(z - top)
        if entropies is not None:
            products = shrink * (products + sums * (before - top)) + e * (z - top)
        sums = shrink * sums + e
    total = tl.sum(sums, 0)
    tl.store(logprobs + row, _at_chosen(logits, kept_mask, chosen, row, scale, V) - top - tl.log(total))
    tl.store(norms + row, top + tl.log(total))
    if entropies is not None:
        tl.store(entropies + row, tl.log(total) - tl.sum(products, 0) / total)


@triton.jit
def _slopes(
    logits: tl.tensor,
    kept_mask: tl.tensor,
    chosen: tl.tensor,
    norms: tl.tensor,
    d_logprobs: tl.tensor,
    entropies: tl.tensor,
    d_entropies: tl.tensor,
    slopes: tl.tensor,
    scale: tl.tensor,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    logp = _read(logits, kept_mask, row, ids, scale, V) - tl.load(norms + row)
    steep = tl.load(d_logprobs + row)
    slope = tl.where(ids == tl.load(chosen + row), steep, 0.0)
    if entropies is not None:
        steep += tl.load(d_entropies + row) * (tl.load(entropies + row) + logp)
    slope -= tl.exp(logp) * steep
    tl.store(slopes + row * V + ids, (scale * slope).to(slopes.dtype.element_ty), mask=ids < V)


@triton.jit
def _comparison(
    logits: tl.tensor,
    reference: tl.tensor,
    kept_mask: tl.tensor,
    chosen: tl.tensor,
    logprobs: tl.tensor,
    entropies: tl.tensor,
    ref_logprobs: tl.tensor,
    kl: tl.tensor,
    norms: tl.tensor,
    scale: tl.tensor,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    top = tl.full((), LEAST, tl.float32)
    ref_top = tl.full((), LEAST, tl.float32)
    sums = tl.zeros((BLOCK,), tl.float32)
    ref_sums = tl.zeros((BLOCK,), tl.float32)
    products = tl.zeros((BLOCK,), tl.float32)
    apart = tl.zeros((BLOCK,), tl.float32)  # exponentials times the differences of logits
    for start in range(0, V, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        z = _read(logits, kept_mask, row, ids, scale, V)
        ref = _read(reference, kept_mask, row, ids, scale, V)
        before, ref_before = top, ref_top
        top, ref_top = tl.maximum(top, tl.max(z, 0)), tl.maximum(ref_top, tl.max(ref, 0))
        shrink, e = tl.exp(before - top), tl.exp(z - top)
        products = shrink * (products + sums * (before - top)) + e * (z - top)
        apart = shrink * apart + e * (z - ref)
        # Both in the same steps: of equal logits the sums are equal, and the KL is exactly 0.
        sums = shrink * sums + e
        ref_sums = tl.exp(ref_before - ref_top) * ref_sums + tl.exp(ref - ref_top)
    total, ref_total = tl.sum(sums, 0), tl.sum(ref_sums, 0)
    tl.store(logprobs + row, _at_chosen(logits, kept_mask, chosen, row, scale, V) - top - tl.log(total))
    tl.store(ref_logprobs + row, _at_chosen(reference, kept_mask, chosen, row, scale, V) - ref_top - tl.log(ref_total))
    tl.store(entropies + row, tl.log(total) - tl.sum(products, 0) / total)
    tl.store(norms + row, top + tl.log(total))
    # The log of a ratio near 1 is more exact than the difference of two logs.
    tl.store(kl + row, tl.sum(apart, 0) / total - (top - ref_top) - tl.log(total / ref_total))


@triton.jit
def _read(
    logits: tl.tensor, kept_mask: tl.tensor, row: tl.tensor, ids: tl.tensor, scale: tl.tensor, V: tl.constexpr
) -> tl.tensor:
    """Return scaled logits of a row; ``LEAST`` for -inf, for ids that were cut, and beyond the row."""
    z = tl.load(logits + row * V + ids, mask=ids < V, other=LEAST).to(tl.float32) * scale
    low = (ids >= V) | (z < LEAST)  # not a maximum, which would hide a NaN
    if kept_mask is not None:
        low = low | (tl.load(kept_mask + row * V + ids, mask=ids < V, other=0) == 0)
    return tl.where(low, LEAST, z)


@triton.jit
def _at_chosen(
    logits: tl.tensor, kept_mask: tl.tensor, chosen: tl.tensor, row: tl.tensor, scale: tl.tensor, V: tl.constexpr
) -> tl.tensor:
    """Return the scaled logit of a row's chosen id; -inf where truncation cut it."""
    place = row * V + tl.load(chosen + row)
    z = tl.load(logits + place).to(tl.float32) * scale
    if kept_mask is not None:
        z = tl.where(tl.load(kept_mask + place) == 0, -float("inf"), z)
    return z
