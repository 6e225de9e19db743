"""Kernels of the decoding step that a CUDA graph holds: attend to the cache and its new column, and draw a token.

PyTorch's attention under a mask reads the whole cache and its mask, the free end included, for a graph knows no lengths
but those of tensors. These kernels ask the device for the column and stop there. They are written in Triton, which
compiles them on their first call; ``decoder`` asks for this module where that is possible.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton compiles no annotations but its own.
from __future__ import annotations

import torch
import triton
import triton.language as tl

from steadyrl.backends.torch.kernels.launch import begin, early, is_since

BLOCK_BYTES = 16384  # of keys that are read at once: three such of keys and of values fit any GPU since 2020
BLOCKS = (16, 128)  # the fewest columns that a product of matrices takes, and the most that are read at once
LEAST = 16  # rows and columns of a product of matrices; more heads that share keys are attended from 16 by 16
WARPS = 4
FULL = 100  # programs that keep a GPU of some 130 multiprocessors busy
PROGRAMS = 264  # that are wanted where there are fewer: two for each multiprocessor
MOST_SPLITS = 32
SPLIT_COLUMNS = 256  # fewer are not worth a further part
# Of products of few rows: columns of a weight and numbers of a row that are multiplied at once, and how often ahead.
PRODUCT_BLOCKS, PRODUCT_STAGES, LONG_ROW = (32, 64), 6, 2048
MOST_ROWS, MOST_PARTS, LARGEST_WEIGHT = 64, 8, 2**24
LEAST_BLOCKS = 2  # of a row, in one part
AMPERE = 8  # major compute capability
PRODUCT_PROGRAMS = 128  # of one product: about one for each multiprocessor
DRAWN_BLOCK = 2048  # tokens whose probabilities are summed together when one is drawn


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    seen_mask: torch.Tensor,
    column: torch.Tensor,
    scale: float,
    splits: int | None = None,
    angles: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Store the keys and values of one token of every row, and attend from it to the columns up to its own.

    Queries and keys are turned by the token's position first, if its angles are given.

    Args:
        q: [B, heads, D], of any floating type and strides; heads that share keys stand beside each other.
        k: [B, kv_heads, D], likewise; stored in the type of the cache.
        v: [B, kv_heads, D_v], likewise.
        keys: [B, kv_heads, S, D], contiguous; queries are cast to its type. What stands behind the column is not read.
        values: [B, kv_heads, S, D_v], contiguous, of the same type.
        seen_mask: [B, S] bool, contiguous in S; a row that sees nothing gets zeros.
        column: [1] int64, where the token's keys and values go: the last that may be seen.
        scale: What products of queries and keys are multiplied by.
        splits: Parts of the columns that are attended to side by side, a power of two; None for ``splits_for``.
        angles: Cosines and sines, [B or 1, D]: x becomes x * cos + (-second half, first half) * sin, in its own type.

    Returns:
        [B, heads, D_v] in the type of the cache.
    """
    rows, kv_heads, length, width = keys.shape
    heads, width_v = q.shape[1], values.shape[3]
    shared, padded = heads // kv_heads, max(LEAST, triton.next_power_of_2(width))
    tiles = triton.cdiv(shared, LEAST)
    splits = splits or splits_for(rows * kv_heads * tiles, length)
    partials = keys.new_empty(rows, heads, splits, width_v, dtype=keys.dtype if splits == 1 else torch.float32)
    weights = keys.new_empty(rows, heads, splits, dtype=torch.float32)
    fitting = BLOCK_BYTES // (padded * keys.element_size())
    cos, sin = (None, None) if angles is None else (x.expand(rows, width) for x in angles)
    _attend[(rows, kv_heads * tiles, splits)](
        q, k, v, cos, sin, keys, values, seen_mask, column, partials, weights, *_strides(q), *_strides(k), *_strides(v),
        0 if cos is None else cos.stride(0), 0 if sin is None else sin.stride(0), seen_mask.stride(0), length, scale,
        SHARED=shared, D=width, D_V=width_v, ROWS=LEAST, TILES=tiles, WIDTH=padded,
        WIDTH_V=max(LEAST, triton.next_power_of_2(width_v)), BLOCK=min(max(fitting, BLOCKS[0]), BLOCKS[1]),
        SPLITS=splits, num_warps=WARPS, num_stages=3 if fitting >= BLOCKS[0] else 1, **early(keys.device),
    )  # fmt: skip
    if splits == 1:
        return partials[:, :, 0]
    output = keys.new_empty(rows, heads, width_v)
    _combine[(rows * heads,)](
        partials, weights, output, D_V=width_v, WIDTH_V=triton.next_power_of_2(width_v), SPLITS=splits,
        num_warps=WARPS, **early(keys.device),
    )  # fmt: skip
    return output


def product_parts(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return parts [P, B, ..., N] in float32 whose sum is the product of a few rows with a weight.

    A product of 64 rows has too few blocks to keep a GPU busy, so that each block is cut along its sum. What reads the
    product adds the parts up (see ``layer_kernels.add_norm``): a kernel of its own for that takes as long as half of
    the product.

    Args:
        x: [B, ..., K], of a type of two bytes, at most MOST_ROWS rows.
        weight: [N, K], contiguous, of the same type.
        bias: [N], or None.
    """
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    count, (width, length) = len(rows), weight.shape
    columns = PRODUCT_BLOCKS[length >= LONG_ROW]
    blocks = triton.cdiv(width, columns)
    splits = max(1, min(MOST_PARTS, PRODUCT_PROGRAMS // blocks, length // (LEAST_BLOCKS * PRODUCT_BLOCKS[1])))
    share = triton.cdiv(triton.cdiv(length, PRODUCT_BLOCKS[1]), splits)
    output = torch.empty(splits, *x.shape[:-1], width, device=x.device)
    _product_parts[(blocks, splits)](
        rows, weight, bias, output, count, width, share, K=length, ROWS=max(LEAST, triton.next_power_of_2(count)),
        COLUMNS=columns, BLOCK=PRODUCT_BLOCKS[1], num_warps=WARPS, num_stages=PRODUCT_STAGES, **early(x.device),
    )  # fmt: skip
    return output


def in_parts(weight: torch.Tensor, rows: int) -> bool:
    """Return whether ``product_parts`` is quicker than PyTorch's product, and the shared memory of a card holds it."""
    small = weight.element_size() == 2 and rows <= MOST_ROWS and weight.numel() <= LARGEST_WEIGHT
    return small and (not weight.is_cuda or is_since(AMPERE, weight.device))


def draw(logits: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Invert the cumulative distribution of a softmax at given uniform numbers, as ``sampler.draw`` does.

    Args:
        logits: [N, V] float32, contiguous; -inf is never drawn.
        uniform: [N] in [0, 1).

    Returns:
        Token ids [N], and their log-probabilities [N].
    """
    rows, vocabulary = logits.shape
    blocks = triton.cdiv(vocabulary, DRAWN_BLOCK)
    largest, sums = (torch.empty(rows, blocks, device=logits.device) for _ in range(2))
    tokens = torch.empty(rows, dtype=torch.long, device=logits.device)
    logprobs = torch.empty(rows, device=logits.device)
    launched = {"num_warps": WARPS, **early(logits.device)}
    _block_sums[(rows, blocks)](logits, largest, sums, vocabulary, BLOCK=DRAWN_BLOCK, **launched)
    _pick[(rows,)](
        logits, uniform, largest, sums, tokens, logprobs, vocabulary, blocks, BLOCK=DRAWN_BLOCK,
        BLOCKS=triton.next_power_of_2(blocks), **launched,
    )  # fmt: skip
    return tokens, logprobs


def splits_for(programs: int, length: int) -> int:
    """Return how many parts the columns are attended to in: what the host knows decides, so that a graph can hold it.

    Args:
        programs: That there are without parts: rows times key heads, where at most 16 heads share one.
        length: Columns of the cache.
    """
    if programs >= FULL or length <= 2 * SPLIT_COLUMNS:
        return 1
    splits = min(MOST_SPLITS, PROGRAMS // programs, length // SPLIT_COLUMNS)
    return 1 << splits.bit_length() - 1  # the power of two below


def _strides(x: torch.Tensor) -> tuple[int, int, int]:
    of_row, of_head, of_number = x.stride()
    return of_row, of_head, of_number


# Lengths differ from one batch to the next: a kernel is not compiled anew for those that 16 divides.
@triton.jit(do_not_specialize=["seen_row", "length"])
def _attend(
    q, k, v, cos, sin, keys, values, seen_mask, column, partials, weights,
    q_row, q_head, q_place, k_row, k_head, k_place, v_row, v_head, v_place, cos_row, sin_row, seen_row, length, scale,
    SHARED: tl.constexpr, D: tl.constexpr, D_V: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH_V: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Attend from up to ROWS heads of one row that share one key head, to one part of the columns.

    Programs of other heads and parts store the same new column as this one, and none reads it before it has stored it.
    """
    begin(EARLY)
    row, pair, part = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.program_id(2)
    kv_heads, head = tl.num_programs(1) // TILES, pair // TILES
    of_head = (row * kv_heads + head) * length
    r = pair % TILES * ROWS + tl.arange(0, ROWS)  # among the heads that share
    d, d_v, n = tl.arange(0, WIDTH), tl.arange(0, WIDTH_V), tl.arange(0, BLOCK)
    new = of_head + tl.load(column)
    cos_ptr, sin_ptr = cos, sin
    if cos is not None:
        cos_ptr, sin_ptr = cos + row * cos_row, sin + row * sin_row
    new_k = _read(k + row * k_row + head * k_head, k_place, cos_ptr, sin_ptr, d, d < D, D)
    new_v = tl.load(v + row * v_row + head * v_head + d_v * v_place, mask=d_v < D_V)
    tl.store(keys + new * D + d, new_k.to(keys.dtype.element_ty), mask=d < D)
    tl.store(values + new * D_V + d_v, new_v.to(values.dtype.element_ty), mask=d_v < D_V)
    tl.debug_barrier()  # other threads than those that store the new column read it below
    query_ptr = q + row * q_row + (head * SHARED + r)[:, None] * q_head
    query = _read(query_ptr, q_place, cos_ptr, sin_ptr, d[None], (r < SHARED)[:, None] & (d < D)[None], D)  # [ROWS, D]
    query = query.to(keys.dtype.element_ty)
    largest = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, WIDTH_V], tl.float32)
    end = tl.minimum(tl.load(column) + 1, length).to(tl.int32)
    share = tl.cdiv(tl.cdiv(end, BLOCK), SPLITS) * BLOCK
    for start in range(part * share, tl.minimum((part + 1) * share, end), BLOCK):
        c = start + n
        sees = tl.load(seen_mask + row * seen_row + c, mask=c < end, other=0) != 0
        key_ptr = keys + of_head * D + c[None] * D + d[:, None]
        key = tl.load(key_ptr, mask=(c < end)[None] & (d < D)[:, None], other=0.0)  # [D, BLOCK]
        # Full float32 where the cache is float32; other types are multiplied as they are.
        score = tl.dot(query, key, input_precision="ieee") * scale
        score = tl.where(sees[None], score, -float("inf"))
        new_largest = tl.maximum(largest, tl.max(score, 1))
        shift = tl.where(new_largest == -float("inf"), 0.0, new_largest)  # nothing is seen yet
        p, fade = tl.exp(score - shift[:, None]), tl.exp(largest - shift)
        # What is masked is multiplied by 0, so that what was never written must not be read: it may be no number.
        value_ptr = values + of_head * D_V + c[:, None] * D_V + d_v[None]
        value = tl.load(value_ptr, mask=(c < end)[:, None] & (d_v < D_V)[None], other=0.0)  # [BLOCK, D_V]
        acc = acc * fade[:, None] + tl.dot(p.to(value.dtype), value, input_precision="ieee")
        total, largest = total * fade + tl.sum(p, 1), new_largest
    total = tl.where(total == 0.0, 1.0, total)
    to = ((row * kv_heads + head) * SHARED + r) * SPLITS + part
    real = (acc / total[:, None]).to(partials.dtype.element_ty)
    tl.store(partials + to[:, None] * D_V + d_v[None], real, mask=(r < SHARED)[:, None] & (d_v < D_V)[None])
    if SPLITS > 1:
        tl.store(weights + to, largest + tl.log(total), mask=r < SHARED)


@triton.jit
def _read(ptr, place, cos, sin, d, real, D: tl.constexpr):
    """Return numbers of heads at their places d, turned by a position if there are cosines; 0 where nothing is real."""
    x = tl.load(ptr + d * place, mask=real, other=0.0)
    if cos is not None:
        first = d < D // 2
        partner = tl.load(ptr + tl.where(first, d + D // 2, d - D // 2) * place, mask=real, other=0.0).to(tl.float32)
        c = tl.load(cos + d, mask=d < D, other=0.0).to(tl.float32)
        s = tl.load(sin + d, mask=d < D, other=0.0).to(tl.float32)
        x = (x.to(tl.float32) * c + tl.where(first, -partner, partner) * s).to(x.dtype)
    return x


@triton.jit
def _combine(
    partials, weights, joined, D_V: tl.constexpr, WIDTH_V: tl.constexpr, SPLITS: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    """Join the parts of one head of one row by the logs of the sums of their weights."""
    begin(EARLY)
    head = tl.program_id(0).to(tl.int64)
    s, d_v = tl.arange(0, SPLITS), tl.arange(0, WIDTH_V)
    log_weight = tl.load(weights + head * SPLITS + s)
    largest = tl.max(log_weight, 0)
    weight = tl.exp(log_weight - tl.where(largest == -float("inf"), 0.0, largest))
    total = tl.sum(weight, 0)
    ptr = partials + (head * SPLITS + s)[:, None] * D_V + d_v[None]
    combined = tl.sum(weight[:, None] * tl.load(ptr, mask=(d_v < D_V)[None], other=0.0), 0)
    combined = combined / tl.where(total == 0.0, 1.0, total)
    tl.store(joined + head * D_V + d_v, combined.to(joined.dtype.element_ty), mask=d_v < D_V)


@triton.jit(do_not_specialize=["count", "share"])
def _product_parts(
    x, weight, bias, output, count, width, share,
    K: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Multiply all rows with some columns of the weight, along one part of their sums."""
    begin(EARLY)
    part, n = tl.program_id(1), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    r, k = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for block in range(part * share, tl.minimum((part + 1) * share, tl.cdiv(K, BLOCK))):
        start = block * BLOCK  # that it is a multiple is seen at once, and whole lines are read ahead
        inside = start + k < K
        of_rows = tl.load(x + r[:, None] * K + (start + k)[None], mask=(r < count)[:, None] & inside[None], other=0.0)
        weight_ptr = weight + n[None].to(tl.int64) * K + (start + k)[:, None]
        of_weight = tl.load(weight_ptr, mask=(n < width)[None] & inside[:, None], other=0.0)
        total = tl.dot(of_rows, of_weight, total)
    if bias is not None:
        total += tl.where(part == 0, tl.load(bias + n, mask=n < width, other=0.0).to(tl.float32), 0.0)[None]
    to = output + (part * count + r[:, None]) * width + n[None]
    tl.store(to, total, mask=(r < count)[:, None] & (n < width)[None])


@triton.jit
def _block_sums(logits, largest, sums, vocabulary, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """Store the greatest logit of one block of a row, and the sum of exponentials relative to it."""
    begin(EARLY)
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    n = block * BLOCK + tl.arange(0, BLOCK)
    z = tl.load(logits + row * vocabulary + n, mask=n < vocabulary, other=-float("inf"))
    block_largest = tl.max(z, 0)
    e = tl.exp(z - tl.where(block_largest == -float("inf"), 0.0, block_largest))
    to = row * tl.num_programs(1) + block
    tl.store(largest + to, block_largest)
    tl.store(sums + to, tl.sum(e, 0))


@triton.jit
def _pick(
    logits, uniform, largest, sums, tokens, logprobs, vocabulary, blocks, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Find the block in which a row's uniform number falls, and the token in it; sums over blocks are in float64."""
    begin(EARLY)
    row, b = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCKS)
    block_largest = tl.load(largest + row * blocks + b, mask=b < blocks, other=-float("inf"))
    top = tl.max(block_largest, 0)
    weight = tl.load(sums + row * blocks + b, mask=b < blocks, other=0.0) * tl.exp(block_largest - top)
    weight = weight.to(tl.float64)
    ends = tl.cumsum(weight, 0)
    total = tl.max(ends, 0)
    target = tl.load(uniform + row).to(tl.float64) * total
    # Sums are rounded in more than one order: never step onto what has no probability.
    real = tl.max(tl.where(weight > 0, b, 0), 0)
    block = tl.minimum(tl.sum(tl.where(ends <= target, 1, 0), 0), real)
    start = tl.sum(tl.where(b < block, weight, 0.0), 0)
    n = tl.arange(0, BLOCK)
    ids = block * BLOCK + n
    z = tl.load(logits + row * vocabulary + ids, mask=ids < vocabulary, other=-float("inf"))
    p = tl.exp(z - top)
    passed = tl.sum(tl.where(start + tl.cumsum(p.to(tl.float64), 0) <= target, 1, 0), 0)
    behind = tl.min(tl.where((p > 0) & (n >= passed), n, BLOCK), 0)
    offset = tl.where(behind < BLOCK, behind, tl.max(tl.where(p > 0, n, -1), 0))
    offset = tl.maximum(offset, 0)  # of numbers that are none, too
    tl.store(tokens + row, (block * BLOCK + offset).to(tl.int64))
    chosen = tl.sum(tl.where(n == offset, z, 0.0), 0)
    tl.store(logprobs + row, chosen - top - tl.log(total).to(tl.float32))
