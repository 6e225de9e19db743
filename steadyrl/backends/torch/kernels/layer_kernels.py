"""Rotations by position, gated activations, norms and moves of rows as one Triton kernel each, with their way back.

Written out as operations of PyTorch a rotation takes ten launches a layer and a gate two, each of which reads and
writes all numbers once more. Here both read them once, compute in float32, and round once. Importing this module needs
Triton; ``fused`` does so where there is a GPU.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# Triton compiles no annotations but its own, and torch's autograd functions have none.
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from steadyrl.backends.torch.kernels.launch import begin, early

BLOCK = 1024  # numbers of a row that one program gates
PARTS = 264  # of a tensor whose products are summed
PROGRAMS = 528  # that go back through norms, each through many rows: four for each multiprocessor of an H100


def rotate(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return queries and keys turned by their positions, in the types and layouts that they have; carries gradients.

    Args:
        q: [B, heads, T, D], of any floating type and strides.
        k: [B, kv_heads, T, D], likewise.
        cos: [B or 1, T, D]: x becomes x * cos + (-second half, first half) * sin.
        sin: The same shape.
    """
    turned: tuple[torch.Tensor, torch.Tensor] = _Rotation.apply(q, k, cos, sin)
    return turned


def gate(gates: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return silu(gates) * values, contiguous; carries gradients.

    Args:
        gates: [..., N], of any floating type and strides.
        values: The same shape and type.
    """
    gated: torch.Tensor = _Gate.apply(gates, values)
    return gated


def add_norm(
    x: torch.Tensor, branch: torch.Tensor, weight: torch.Tensor, offset: float, epsilon: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x + branch, and its norm over the root of the mean square, times weights; both carry gradients.

    Args:
        x: [..., H], of any floating type and strides; the sum has its type.
        branch: The same shape, of any floating type; or [P, ..., H] in float32, parts whose sum is rounded to ``dtype``
            first, contiguous. Parts carry no gradients.
        weight: [H].
        offset: What is added to the weights; 1 for those that say how far they are from 1.
        epsilon: What is added to the mean square.
        dtype: Of the norm.
    """
    outputs: tuple[torch.Tensor, torch.Tensor] = _AddNorm.apply(x, branch, weight, offset, epsilon, dtype)
    return outputs


def moved(tensors: Sequence[torch.Tensor], index: torch.Tensor, back: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return rows of tensors at other places, contiguous, in one launch; they carry gradients.

    Args:
        tensors: At most three, [n, ...] each, of any floating type.
        index: [m] int64, the row that comes to each place; -1 for zeros.
        back: [n] int64, the place that each row comes to.
    """
    rows: tuple[torch.Tensor, ...] = _Moved.apply(index, back, *tensors)
    return rows


def products(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Return the sums over all pairs of a * b, a * a and b * b, [3] float64, in one launch for each pair.

    Args:
        pairs: Tensors of float32, contiguous, of one size in each pair.
    """
    sums = torch.zeros(len(pairs), PARTS, 3, device=pairs[0][0].device)  # a sum for each program
    for block_sums, (a, b) in zip(sums, pairs, strict=True):
        _products[(min(PARTS, triton.cdiv(a.numel(), BLOCK)),)](a, b, block_sums, a.numel(), BLOCK=BLOCK, num_warps=4)
    return sums.sum((0, 1), dtype=torch.float64)


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q, k, cos, sin):
        ctx.save_for_backward(cos, sin)
        return _rotated(q, k, cos, sin, False)

    @staticmethod
    def backward(ctx: Any, dq, dk):
        cos, sin = ctx.saved_tensors
        return *_rotated(dq, dk, cos, sin, True), None, None


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates, values):
        ctx.save_for_backward(gates, values)
        gated = torch.empty(gates.shape, dtype=gates.dtype, device=gates.device)
        _launch_gate(_gate, gates, values, gated, **early(gates.device))
        return gated

    @staticmethod
    def backward(ctx: Any, d_gated):
        gates, values = ctx.saved_tensors
        d_gates, d_values = (torch.empty(gates.shape, dtype=gates.dtype, device=gates.device) for _ in range(2))
        _launch_gate(_gate_back, gates, values, d_gated.contiguous(), d_gates, d_values)
        return d_gates, d_values


class _Moved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, index, back, *tensors):
        ctx.save_for_backward(back)
        return _moved(tensors, index)

    @staticmethod
    def backward(ctx: Any, *d_tensors):
        (back,) = ctx.saved_tensors
        return None, None, *_moved(d_tensors, back)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x, branch, weight, offset, epsilon, dtype):
        rows, width = _as_rows(x), x.shape[-1]
        sums = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        normed = torch.empty(x.shape, dtype=dtype, device=x.device)
        scales = torch.empty(len(rows), device=x.device)
        extra, part_count = _as_rows(branch), branch.shape[0] if branch.dim() > x.dim() else 0
        _add_norm[(len(rows),)](
            rows, extra, weight, sums, normed, scales, rows.stride(0), extra.stride(0), width, offset, epsilon,
            WIDTH=triton.next_power_of_2(width), PARTS=part_count, num_warps=_warps(width), **early(x.device),
        )  # fmt: skip
        ctx.save_for_backward(sums, weight, scales)
        ctx.offset, ctx.types = offset, (x.dtype, branch.dtype)
        return sums, normed

    @staticmethod
    def backward(ctx: Any, d_sums, d_normed):
        sums, weight, scales = ctx.saved_tensors
        width = sums.shape[-1]
        rows = sums.numel() // width
        d_x, d_branch = (torch.empty(sums.shape, dtype=dtype, device=sums.device) for dtype in ctx.types)
        programs = min(rows, PROGRAMS)
        d_weights = torch.empty(programs, width, device=sums.device)  # a sum for each program
        _add_norm_back[(programs,)](
            d_sums.contiguous(), d_normed.contiguous(), sums, weight, scales, d_x, d_branch, d_weights, rows, width,
            ctx.offset, WIDTH=triton.next_power_of_2(width), num_warps=_warps(width),
        )  # fmt: skip
        d_weight = d_weights.sum(0).to(weight.dtype) if ctx.needs_input_grad[2] else None
        return d_x, d_branch, d_weight, None, None, None


def _warps(width: int) -> int:
    warps: int = triton.next_power_of_2(width) // 256
    return min(16, max(1, warps))


def _rotated(q, k, cos, sin, back):
    """Return new tensors [B, heads, T, D] that lie token by token, as projections of hidden states do."""
    batch, heads, length, width = q.shape
    kv_heads = k.shape[1]
    turned = [
        torch.empty(batch, length, x.shape[1], width, dtype=x.dtype, device=x.device).transpose(1, 2) for x in (q, k)
    ]
    cos, sin = cos.expand(batch, length, width), sin.expand(batch, length, width)
    half = triton.next_power_of_2(width // 2)
    _rotate[(batch * length, 2)](
        q, k, cos, sin, *turned, length, *q.stride(), *k.stride(), *cos.stride()[:2], *sin.stride()[:2],
        HEADS=heads, KV_HEADS=kv_heads, WIDTH=width, ROWS=triton.next_power_of_2(heads), HALF=half, BACK=back,
        num_warps=min(8, max(1, triton.next_power_of_2(heads) * half // 256)),
    )  # fmt: skip
    return tuple(turned)


def _moved(tensors, index):
    rows = [_as_rows(x.flatten(1)) for x in tensors]
    to = tuple(torch.empty(len(index), *x.shape[1:], dtype=x.dtype, device=x.device) for x in tensors)
    blocks = [triton.next_power_of_2(x.shape[1]) for x in rows]
    rows_per_program = max(1, BLOCK * 4 // max(blocks))
    all_three = [*range(len(rows)), 0, 0][:3]
    _move[(triton.cdiv(len(index), rows_per_program), len(rows))](
        *(rows[i] for i in all_three), *(to[i] for i in all_three), index, len(index),
        *(rows[i].stride(0) for i in all_three), *(rows[i].shape[1] for i in all_three),
        *(blocks[i] for i in all_three), PLACES=rows_per_program, num_warps=4,
    )  # fmt: skip
    return to


def _launch_gate(kernel, gates, values, *contiguous, **launched):
    gates, values = _as_rows(gates), _as_rows(values)
    rows, width = gates.shape
    kernel[(rows, triton.cdiv(width, BLOCK))](
        gates, values, *contiguous, gates.stride(0), values.stride(0), width, BLOCK=BLOCK, num_warps=4, **launched
    )


def _as_rows(x: torch.Tensor) -> torch.Tensor:
    """Return [rows, N], contiguous in N: a view where there is one."""
    flat = x.reshape(-1, x.shape[-1])
    return flat if flat.stride(1) == 1 else flat.contiguous()


@triton.jit(do_not_specialize=["length"])
def _rotate(
    q, k, cos, sin, turned_q, turned_k, length,
    q_row, q_head, q_place, q_one, k_row, k_head, k_place, k_one, cos_row, cos_place, sin_row, sin_place,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, HALF: tl.constexpr,
    BACK: tl.constexpr,
):  # fmt: skip
    """Turn all heads of one token: program 0 of its queries, 1 of its keys."""
    token = tl.program_id(0).to(tl.int64)
    row, place = token // length, token % length
    half: tl.constexpr = WIDTH // 2
    d = tl.arange(0, HALF)
    cos_ptr, sin_ptr = cos + row * cos_row + place * cos_place + d, sin + row * sin_row + place * sin_place + d
    cos_1 = tl.load(cos_ptr, mask=d < half, other=0.0).to(tl.float32)[None]
    cos_2 = tl.load(cos_ptr + half, mask=d < half, other=0.0).to(tl.float32)[None]
    sin_1 = tl.load(sin_ptr, mask=d < half, other=0.0).to(tl.float32)[None]
    sin_2 = tl.load(sin_ptr + half, mask=d < half, other=0.0).to(tl.float32)[None]
    h = tl.arange(0, ROWS)
    if tl.program_id(1) == 0:
        _turn(
            q + row * q_row + place * q_place, q_head, q_one, turned_q + token * HEADS * WIDTH, cos_1, cos_2, sin_1,
            sin_2, h, d, HEADS, WIDTH, BACK,
        )  # fmt: skip
    else:
        _turn(
            k + row * k_row + place * k_place, k_head, k_one, turned_k + token * KV_HEADS * WIDTH, cos_1, cos_2, sin_1,
            sin_2, h, d, KV_HEADS, WIDTH, BACK,
        )  # fmt: skip


@triton.jit
def _turn(
    x, of_head, of_one, turned, cos_1, cos_2, sin_1, sin_2, h, d,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """Turn the heads of one token; BACK takes a gradient of what was turned to that of what was not."""
    half: tl.constexpr = WIDTH // 2
    inside = (h < HEADS)[:, None] & (d < half)[None]
    ptr = x + h[:, None] * of_head + d[None] * of_one
    first = tl.load(ptr, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(ptr + half * of_one, mask=inside, other=0.0).to(tl.float32)
    if BACK:
        low, high = first * cos_1 + second * sin_2, second * cos_2 - first * sin_1
    else:
        low, high = first * cos_1 - second * sin_1, second * cos_2 + first * sin_2
    to = turned + h[:, None] * WIDTH + d[None]
    tl.store(to, low.to(turned.dtype.element_ty), mask=inside)
    tl.store(to + half, high.to(turned.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["length"])
def _move(
    a, b, c, to_a, to_b, to_c, index, length, a_row, b_row, c_row, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr,
    BLOCK_A: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """Fill some places of one of up to three tensors."""
    place = tl.program_id(0).to(tl.int64) * PLACES + tl.arange(0, PLACES)
    source = tl.load(index + place, mask=place < length, other=-1)
    if tl.program_id(1) == 0:
        _fill(a, to_a, source, place, length, a_row, A, BLOCK_A)
    elif tl.program_id(1) == 1:
        _fill(b, to_b, source, place, length, b_row, B, BLOCK_B)
    else:
        _fill(c, to_c, source, place, length, c_row, C, BLOCK_C)


@triton.jit
def _fill(x, to, source, place, length, x_row, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    n = tl.arange(0, BLOCK)[None]
    real = (source >= 0)[:, None] & (n < WIDTH)
    numbers = tl.load(x + source[:, None] * x_row + n, mask=real, other=0.0)
    tl.store(to + place[:, None] * WIDTH + n, numbers, mask=(place < length)[:, None] & (n < WIDTH))


@triton.jit
def _gate(gates, values, gated, gates_row, values_row, width, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    begin(EARLY)
    row, n = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(gates + row * gates_row + n, mask=n < width, other=0.0).to(tl.float32)
    v = tl.load(values + row * values_row + n, mask=n < width, other=0.0).to(tl.float32)
    tl.store(gated + row * width + n, (g * tl.sigmoid(g) * v).to(gated.dtype.element_ty), mask=n < width)


@triton.jit
def _gate_back(gates, values, d_gated, d_gates, d_values, gates_row, values_row, width, BLOCK: tl.constexpr):
    row, n = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(gates + row * gates_row + n, mask=n < width, other=0.0).to(tl.float32)
    v = tl.load(values + row * values_row + n, mask=n < width, other=0.0).to(tl.float32)
    d = tl.load(d_gated + row * width + n, mask=n < width, other=0.0).to(tl.float32)
    s = tl.sigmoid(g)
    d_g = d * v * s * (1.0 + g * (1.0 - s))
    tl.store(d_gates + row * width + n, d_g.to(d_gates.dtype.element_ty), mask=n < width)
    tl.store(d_values + row * width + n, (d * g * s).to(d_values.dtype.element_ty), mask=n < width)


@triton.jit
def _add_norm(
    x, branch, weight, sums, normed, scales, x_row, branch_row, width, offset, epsilon, WIDTH: tl.constexpr,
    PARTS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    row, n = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    inside = n < width
    extra = tl.load(branch + row * branch_row + n, mask=inside, other=0.0).to(tl.float32)
    if PARTS > 0:
        for part in tl.static_range(1, PARTS):
            branch_place = part * tl.num_programs(0) + row
            extra += tl.load(branch + branch_place * branch_row + n, mask=inside, other=0.0)
        extra = extra.to(normed.dtype.element_ty).to(tl.float32)  # as a product that is not in parts is rounded
    added = tl.load(x + row * x_row + n, mask=inside, other=0.0).to(tl.float32) + extra
    rounded = added.to(sums.dtype.element_ty)  # the norm is of the sum as it is stored
    tl.store(sums + row * width + n, rounded, mask=inside)
    stream = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(stream * stream, 0) / width + epsilon)
    tl.store(scales + row, scale)
    w = tl.load(weight + n, mask=inside, other=0.0).to(tl.float32) + offset
    tl.store(normed + row * width + n, (stream * scale * w).to(normed.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _add_norm_back(
    d_sums, d_normed, sums, weight, scales, d_x, d_branch, d_weights, rows, width, offset, WIDTH: tl.constexpr
):  # fmt: skip
    """Go back through every n-th row; each program has its own sum for the weights."""
    n = tl.arange(0, WIDTH)
    inside = n < width
    w = tl.load(weight + n, mask=inside, other=0.0).to(tl.float32) + offset
    d_weight = tl.zeros([WIDTH], tl.float32)
    for number in range(tl.program_id(0), rows, tl.num_programs(0)):
        # In 64 bits: rows times their width may exceed 2^31.
        index = (tl.zeros([WIDTH], tl.int64) + number) * width + n
        scale = tl.load(scales + number)
        unit = tl.load(sums + index, mask=inside, other=0.0).to(tl.float32) * scale
        d = tl.load(d_normed + index, mask=inside, other=0.0).to(tl.float32)
        d_weight += d * unit
        d_unit = d * w
        slope = scale * (d_unit - unit * (tl.sum(d_unit * unit, 0) / width))
        slope += tl.load(d_sums + index, mask=inside, other=0.0).to(tl.float32)
        tl.store(d_x + index, slope.to(d_x.dtype.element_ty), mask=inside)
        tl.store(d_branch + index, slope.to(d_branch.dtype.element_ty), mask=inside)
    tl.store(d_weights + tl.program_id(0) * width + n, d_weight, mask=inside)


@triton.jit(do_not_specialize=["count"])
def _products(a, b, sums, count, BLOCK: tl.constexpr):
    """Sum the products of every n-th block of two tensors."""
    n = tl.arange(0, BLOCK)
    ab, aa, bb = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(count, BLOCK), tl.num_programs(0)):
        index = (tl.zeros([BLOCK], tl.int64) + block) * BLOCK + n
        x = tl.load(a + index, mask=index < count, other=0.0)
        y = tl.load(b + index, mask=index < count, other=0.0)
        ab += x * y
        aa += x * x
        bb += y * y
    to = sums + tl.program_id(0) * 3
    tl.store(to, tl.sum(ab, 0))
    tl.store(to + 1, tl.sum(aa, 0))
    tl.store(to + 2, tl.sum(bb, 0))
