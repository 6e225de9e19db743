"""The kernels of decoding against float64: on a GPU, and interpreted on the CPU if TRITON_INTERPRET is set.

``test_decoding_kernels`` runs this file in a process of its own, for Triton reads that variable once.
"""

import copy

import pytest
import torch
import transformers

from steadyrl.backends.torch.arithmetic import fast_float32
from steadyrl.backends.torch.draw import decoder as torch_decoder
from steadyrl.backends.torch.draw.decoder import Decoder
from steadyrl.backends.torch.draw.graph import StepState
from steadyrl.backends.torch.kernels import decoding_kernels, fused, layer_kernels
from steadyrl.backends.torch.read import packed, products
from steadyrl.backends.torch.read.products import SUMMED, laid_out, quicken
from steadyrl.backends.torch.read.reader import Reader
from steadyrl.backends.torch.read.reads import reads_of
from tests import needs
from tests.backends.torch.interpreter import INTERPRETED
from tests.backends.torch.test_decoder import (
    COMMON,
    MODELS,
    ROTARY,
    VOCABULARY,
    batch_of,
    padded,
    parts_of,
    random_model,
)
from tests.rounding import NATS, OF_BFLOAT16, rounding

DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
ROWS, KV_HEADS = 3, 2


def drawn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def at(column):
    return torch.tensor([column], device=DEVICE)


def inputs(shared, length, column, width, dtype, of_values=None):
    """Return q, keys, values and seen: nothing is a number behind the column, and the last row sees nothing."""
    keys = drawn(ROWS, KV_HEADS, length, width, seed=1, dtype=dtype)
    values = drawn(ROWS, KV_HEADS, length, of_values or width, seed=2, dtype=dtype)
    keys[:, :, column + 1 :], values[:, :, column + 1 :] = torch.nan, torch.nan
    seen = drawn(ROWS, length, seed=3) > -0.5
    seen[0, : min(5, column)], seen[1], seen[-1] = False, True, False
    q = drawn(ROWS, width, KV_HEADS * shared, seed=4).transpose(1, 2)  # neither contiguous nor of the cache's type
    return q, keys, values, seen


def expected(q, keys, values, seen, column, scale):
    """Return float64 attention [B, heads, D_v], and how far a computation in the cache's type may be from it."""
    q, keys, values = q.to(keys.dtype).double(), keys[:, :, : column + 1].double(), values[:, :, : column + 1].double()
    q = q.unflatten(1, (KV_HEADS, -1))
    scores = (q @ keys.transpose(2, 3) * scale).masked_fill(~seen[:, None, None, : column + 1], -torch.inf)
    found = scores.softmax(-1).nan_to_num(0.0) @ values
    # A score of absolute error e changes weights by a share of e, and then there is the sum over columns.
    largest, terms = values.abs().max().item(), (q.abs() @ keys.abs().transpose(2, 3)).max().item() * scale
    return found.flatten(1, 2), rounding(largest * (1 + terms), keys.shape[3] + column)


def attended(q, keys, values, seen, column, *more):
    """Attend from a token whose keys and values are in the column; the kernel puts them there."""
    last = int(column)
    k, v = keys[:, :, last].clone(), values[:, :, last].clone()
    keys[:, :, last], values[:, :, last] = torch.nan, torch.nan
    return decoding_kernels.attend(q, k, v, keys, values, seen, column, *more)


def of_bfloat16(values, column):
    """Return what two roundings to bfloat16 add to the bound: of the weights, and of the result."""
    return rounding(values[:, :, : column + 1].abs().max().item(), 2, OF_BFLOAT16)


# Heads that share keys, columns of the cache, the last that is seen, head size, parts.
CASES = [
    (7, 150, 140, 64, 1), (1, 37, 20, 80, 1), (20, 33, 32, 96, 1), (3, 260, 250, 8, 4), (2, 140, 129, 128, 8),
    (4, 40, 3, 256, 2), (2, 16, 0, 32, 1),
]  # fmt: skip


@pytest.mark.halved
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("shared", "length", "column", "width", "splits"), CASES)
def test_attention_equals_that_of_float64_and_reads_nothing_behind_the_column(
    shared, length, column, width, splits, dtype
):
    q, keys, values, seen = inputs(shared, length, column, width, dtype)
    scale = 1.5 * width**-0.5
    found = attended(q, keys, values, seen, at(column), scale, splits)
    assert found.dtype == dtype and found.shape == (ROWS, KV_HEADS * shared, width)
    wanted, near = expected(q, keys, values, seen, column, scale)
    if dtype == torch.bfloat16:
        near += of_bfloat16(values, column)
    torch.testing.assert_close(found.double(), wanted, atol=near, rtol=0)
    assert found[-1].eq(0).all()  # sees nothing
    assert (found[0] - found[1]).abs().max() > 4 * near


@pytest.mark.halved
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("shared", "width", "splits", "of_rows"), [(2, 24, 1, ROWS), (20, 16, 1, 1), (3, 8, 4, ROWS)])
def test_attention_turns_queries_and_keys_as_the_rotation_does(shared, width, splits, of_rows, dtype):
    q, keys, values, seen = inputs(shared, 60, 50, width, dtype)
    q, k = q.to(dtype), drawn(ROWS, width, KV_HEADS, seed=7, dtype=dtype).transpose(1, 2)
    cos, sin = drawn(of_rows, width, seed=8), drawn(of_rows, width, seed=9)
    rotated = layer_kernels.rotate(q[:, :, None], k[:, :, None], cos[:, None], sin[:, None])
    turned_q, turned_k = (x[:, :, 0] for x in rotated)
    outputs, caches = [], []
    for queries, new_keys, angles in ((q, k, (cos, sin)), (turned_q, turned_k, None)):
        cache = keys.clone(), values.clone()
        token = queries, new_keys, values[:, :, 50].clone()
        outputs.append(decoding_kernels.attend(*token, *cache, seen, at(50), 0.2, splits, angles))
        caches.append(cache[0][:, :, 50])
    unit = OF_BFLOAT16 if dtype == torch.bfloat16 else 2.0**-24
    torch.testing.assert_close(*caches, rtol=0, atol=rounding(caches[1].abs().max().item(), 3, unit))
    assert (caches[0] - k).abs().max() > 0.1
    torch.testing.assert_close(*outputs, rtol=0, atol=rounding(values[:, :, :51].abs().max().item(), 64, unit))


def usual(name, *beginnings):
    """Return a case that each week's run tries alone where its name begins otherwise."""
    return name if name.startswith(beginnings) else pytest.param(name, marks=pytest.mark.weekly)


FEW = (7, 3)  # lengths of prompts: each program of a kernel is interpreted by itself
HUNYUAN = "hunyuan, norms of what is turned"
# The layers whose attention is given what a rotation returns: not where a part of a head turns, nor where norms follow.
TURNED = {
    "qwen3": {0, 1}, "gemma3, a window and a rotation by kind": {0, 1}, "phi3, half of a head turns, window": set(),
    "smollm3, one layer turns nothing": {0}, HUNYUAN: set(),
}  # fmt: skip


@pytest.mark.parametrize("name", [usual(name, "qwen3", "phi3", "hunyuan") for name in TURNED])
@torch.no_grad()
def test_a_step_whose_attention_rotates_equals_the_plain_step(name, monkeypatch):
    monkeypatch.setattr(torch_decoder, "kernels", lambda device: decoding_kernels)
    monkeypatch.setattr(fused, "layer_kernels", lambda device: layer_kernels)
    hunyuan = transformers.HunYuanDenseV1Config(**COMMON, **ROTARY, head_dim=16)
    monkeypatch.setitem(MODELS, HUNYUAN, lambda: hunyuan)
    model = random_model(name).to(DEVICE)
    parts = parts_of(model)
    ids, visible = (x.to(DEVICE) for x in padded(FEW))
    decoder = Decoder(parts, 4, 20)
    _, plain = decoder.prefill(ids, visible)
    quicken(model)
    fused.fuse_layers(parts.body)
    _, static = decoder.prefill(ids, visible)
    assert static.rotated == TURNED[name]
    state = StepState(static)
    for t in range(2):
        tokens = (ids[:, -1] * 5 + t) % VOCABULARY
        wanted, found = (x.log_softmax(-1) for x in (decoder.step(tokens, plain), state.step(decoder, tokens, static)))
        assert (found - wanted).abs().max().item() <= NATS


def test_values_may_have_another_width_than_keys():
    q, keys, values, seen = inputs(2, 40, 35, 24, torch.float32, of_values=40)
    found = attended(q, keys, values, seen, at(35), 0.2)
    wanted, near = expected(q, keys, values, seen, 35, 0.2)
    torch.testing.assert_close(found.double(), wanted, atol=near, rtol=0)


def test_few_rows_of_long_caches_are_attended_to_in_parts():
    assert [decoding_kernels.splits_for(*of) for of in ((128, 9000), (100, 9000), (2, 512))] == [1, 1, 1]
    assert [decoding_kernels.splits_for(*of) for of in ((64, 8192), (2, 8192), (1, 32768), (2, 600))] == [4, 32, 32, 2]
    q, keys, values, seen = inputs(2, 1030, 1000, 16, torch.float32)
    assert decoding_kernels.splits_for(ROWS * KV_HEADS, 1030) == 4
    found = attended(q, keys, values, seen, at(1000), 0.25)
    wanted, near = expected(q, keys, values, seen, 1000, 0.25)
    torch.testing.assert_close(found.double(), wanted, atol=near, rtol=0)


@pytest.mark.halved
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("shared", "splits"), [(2, 1), (5, 4)])
def test_the_new_column_is_written_and_no_other(shared, splits, dtype):
    q, keys, values, seen = inputs(shared, 300, 290, 24, dtype)
    k = drawn(ROWS, 24, KV_HEADS, seed=7).transpose(1, 2)
    v = drawn(24, KV_HEADS, ROWS, seed=8, dtype=torch.bfloat16).permute(2, 1, 0)
    wanted = keys.clone(), values.clone()
    wanted[0][:, :, 290], wanted[1][:, :, 290] = k, v
    decoding_kernels.attend(q, k, v, keys, values, seen, at(290), 0.2, splits)
    for found, expected_ones in zip((keys, values), wanted, strict=True):
        assert torch.equal(found.nan_to_num(9.0), expected_ones.nan_to_num(9.0))


@pytest.mark.parametrize(
    "name", [usual(name, "gemma3", "gpt2") for name in ("gemma3, a window and a rotation by kind", "granite", "gpt2")]
)
@torch.no_grad()
def test_a_step_through_the_kernels_equals_the_plain_step(name, monkeypatch):
    asked = []
    monkeypatch.setattr(torch_decoder, "kernels", lambda device: asked.append(device) or decoding_kernels)
    ids, visible = (x.to(DEVICE) for x in padded(FEW))
    decoder = Decoder(parts_of(random_model(name).to(DEVICE)), 4, 20)
    (_, plain), (_, static) = decoder.prefill(ids, visible), decoder.prefill(ids, visible)
    for of_layer in (*static.keys.values(), *static.values.values()):
        of_layer[:, :, plain.used :] = torch.nan
    state = StepState(static)
    for t in range(2):
        tokens = (ids[:, -1] * 5 + t) % VOCABULARY
        wanted, found = (x.log_softmax(-1) for x in (decoder.step(tokens, plain), state.step(decoder, tokens, static)))
        assert (found - wanted).abs().max().item() <= NATS
    assert {device.type for device in asked} == {DEVICE.type}


@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning", "ignore:invalid value:RuntimeWarning")  # of NumPy
@pytest.mark.parametrize("vocabulary", [5, 64, 301])
def test_tokens_are_drawn_as_the_plain_way_draws_them(vocabulary, monkeypatch):
    monkeypatch.setattr(decoding_kernels, "DRAWN_BLOCK", 64)
    rows = 24
    logits = 3 * drawn(rows, vocabulary, seed=vocabulary)
    logits[:, : vocabulary // 2][drawn(rows, vocabulary // 2, seed=1) > 0] = -torch.inf
    logits[1], logits[1, vocabulary - 1] = -torch.inf, 0.0
    uniform = torch.rand(rows, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    uniform[2], uniform[3] = 0.0, 1 - 2.0**-24
    tokens, logprobs = decoding_kernels.draw(logits, uniform)
    p = logits.double().softmax(-1)
    ends = p.cumsum(-1).gather(1, tokens[:, None])[:, 0]
    chosen = p.gather(1, tokens[:, None])[:, 0]
    assert (chosen > 0).all()
    near = rounding(1.0, vocabulary)
    assert (ends - chosen - near <= uniform).all() and (uniform <= ends + near).all()
    torch.testing.assert_close(logprobs.double(), chosen.log(), rtol=0, atol=rounding(30.0, vocabulary))
    assert tokens[1] == vocabulary - 1 and logprobs[1].abs() <= near
    none = decoding_kernels.draw(torch.full((2, vocabulary), torch.nan, device=DEVICE), uniform[:2])[0]
    assert ((none >= 0) & (none < vocabulary)).all()


def test_products_of_pairs_are_summed_over_all_of_them(monkeypatch):
    monkeypatch.setattr(layer_kernels, "PARTS", 3)
    monkeypatch.setattr(layer_kernels, "BLOCK", 16)
    pairs = [(drawn(n, seed=n), drawn(n, seed=n + 1)) for n in (1, 16, 333)]
    wanted = [sum(float((x.double() * y.double()).sum()) for x, y in chosen) for chosen in (
        pairs, [(a, a) for a, _ in pairs], [(b, b) for _, b in pairs])]  # fmt: skip
    assert layer_kernels.products(pairs).tolist() == pytest.approx(wanted, rel=1e-5)


@torch.no_grad()
def test_a_step_that_does_something_to_what_a_rotation_returns_is_not_captured(monkeypatch):
    monkeypatch.setattr(torch_decoder, "kernels", lambda device: decoding_kernels)
    monkeypatch.setattr(fused, "layer_kernels", lambda device: layer_kernels)
    monkeypatch.setitem(MODELS, HUNYUAN, lambda: transformers.HunYuanDenseV1Config(**COMMON, **ROTARY, head_dim=16))
    parts = parts_of(random_model(HUNYUAN).to(DEVICE))
    fused.fuse_layers(parts.body)
    ids, visible = (x.to(DEVICE) for x in padded(FEW))
    decoder = Decoder(parts, 4, 20)
    _, cache = decoder.prefill(ids, visible)
    cache.rotated.add(0)  # as if it had been otherwise then
    with pytest.raises(RuntimeError, match="something else than while prompts were read"):
        StepState(cache).step(decoder, ids[:, -1], cache)


def test_whether_layers_are_fused_is_decided_in_full_float32(monkeypatch):
    precisions, gate = [], layer_kernels.gate
    monkeypatch.setattr(fused, "layer_kernels", lambda device: layer_kernels)
    monkeypatch.setattr(
        layer_kernels, "gate", lambda *x: precisions.append(torch.get_float32_matmul_precision()) or gate(*x)
    )
    with fast_float32():
        fused.fuse_layers(random_model("qwen3").to(DEVICE))
    assert set(precisions) == {"highest"}


@pytest.fixture
def far_apart():
    """Return three rows of 2^30 numbers, the last of which begins at 2^31; of their memory little is touched."""
    needs.skip_without("address_space")
    return torch.empty(3, 2**30, dtype=torch.bfloat16, device=DEVICE)


def test_offsets_beyond_31_bits_reach_their_rows(far_apart):
    near = [drawn(3, 16, seed=n, dtype=torch.bfloat16) for n in range(2)]
    far = [far_apart[:, 64 * n : 64 * n + 16].copy_(rows) for n, rows in enumerate(near)]
    assert torch.equal(layer_kernels.gate(*far), layer_kernels.gate(*near))
    weight = drawn(16, seed=4)
    of_far, of_near = (layer_kernels.add_norm(*x, weight, 0.0, 1e-6, torch.float32) for x in (far, near))
    assert all(map(torch.equal, of_far, of_near))
    cos, sin = drawn(1, 3, 16, seed=5), drawn(1, 3, 16, seed=6)
    of_far, of_near = (layer_kernels.rotate(*(y[None, None] for y in x), cos, sin) for x in (far, near))
    assert all(map(torch.equal, of_far, of_near))


def test_rows_of_a_cache_beyond_31_bits_are_written_and_read(far_apart):
    """Of one column that is seen attention gives the values, which are in the cache then."""
    q, k, v = (drawn(3, 1, 32, seed=n, dtype=torch.bfloat16) for n in range(3))
    cache, seen = far_apart.view(3, 1, -1, 32), torch.ones(3, 1, dtype=torch.bool, device=DEVICE)
    assert torch.equal(decoding_kernels.attend(q, k, v, cache, cache, seen, at(0), 0.2, 1), v)
    assert torch.equal(far_apart[:, :32], v[:, 0])


def turned(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


# Heads of queries and of keys, width of a head, rows and whether all of them have the same positions.
ROTATIONS = [(4, 2, 16, 2, False), (3, 1, 24, 1, False), (14, 2, 64, 3, True), (1, 1, 2, 2, False)]


@pytest.mark.halved
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "kv_heads", "width", "rows", "alike"), ROTATIONS)
def test_a_rotation_and_its_way_back_equal_those_of_float64(heads, kv_heads, width, rows, alike, dtype):
    length = 5
    q, k = (drawn(rows, length, n, width, seed=n, dtype=dtype).transpose(1, 2) for n in (heads, kv_heads))
    cos, sin = (drawn(1 if alike else rows, length, width, seed=7 + n) for n in range(2))
    steep = [drawn(rows, n, length, width, seed=20 + n, dtype=dtype) for n in (heads, kv_heads)]
    ours, exact = ([x.detach().to(to).requires_grad_() for x in (q, k)] for to in (dtype, torch.float64))
    found = layer_kernels.rotate(*ours, cos, sin)
    wanted = [turned(x, cos[:, None].double(), sin[:, None].double()) for x in exact]
    torch.autograd.backward(found, steep)
    torch.autograd.backward(wanted, [x.double() for x in steep])
    unit = OF_BFLOAT16 if dtype == torch.bfloat16 else 2.0**-24
    for one, other in zip((*found, *(x.grad for x in ours)), (*wanted, *(x.grad for x in exact)), strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one.double(), other, rtol=0, atol=rounding(other.abs().max().item(), 3, unit))


@pytest.mark.halved
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "width"), [(1, 5), (3, 16), (2, 33)])
def test_a_gate_and_its_way_back_equal_those_of_float64(rows, width, dtype, monkeypatch):
    monkeypatch.setattr(layer_kernels, "BLOCK", 16)
    both = drawn(rows, 2, 2 * width, seed=width, dtype=dtype)
    steep = drawn(rows, 2, width, seed=3, dtype=dtype)
    for cut in (both, both.transpose(0, 1)):  # rows beside one another, and rows that must be copied
        ours, exact = (cut.detach().to(to).requires_grad_() for to in (dtype, torch.float64))
        found = layer_kernels.gate(ours[..., :width], ours[..., width:])
        wanted = torch.nn.functional.silu(exact[..., :width]) * exact[..., width:]
        slopes = steep.reshape(found.shape)
        found.backward(slopes)
        wanted.backward(slopes.double())
        unit = OF_BFLOAT16 if dtype == torch.bfloat16 else 2.0**-24
        for one, other in ((found, wanted), (ours.grad, exact.grad)):
            assert one.dtype == dtype
            torch.testing.assert_close(one.double(), other, rtol=0, atol=rounding(other.abs().max().item(), 8, unit))


@pytest.mark.halved
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "width", "programs", "offset"), [(1, 5, 4, 0.0), (7, 32, 3, 1.0), (3, 33, 1, 0.0)])
def test_a_sum_with_its_norm_and_the_way_back_equal_those_of_float64(rows, width, programs, offset, dtype, monkeypatch):
    monkeypatch.setattr(layer_kernels, "PROGRAMS", programs)
    x, more = drawn(rows, 2, width, seed=1), drawn(rows, 2, width, seed=2, dtype=dtype)
    weight = drawn(width, seed=3)
    steep = drawn(rows, 2, width, seed=4), drawn(rows, 2, width, seed=5, dtype=dtype)
    ours, exact = [x, more, weight], [x.double(), more.double(), weight.double()]
    for tensor in (*ours, *exact):
        tensor.requires_grad_()
    found = layer_kernels.add_norm(*ours, offset, 1e-3, dtype)
    sums = exact[0] + exact[1]
    wanted = sums, sums * (sums.square().mean(-1, keepdim=True) + 1e-3).rsqrt() * (exact[2] + offset)
    torch.autograd.backward(found, steep)
    torch.autograd.backward(wanted, [tensor.double() for tensor in steep])
    assert [tensor.dtype for tensor in found] == [torch.float32, dtype]
    for one, other in zip((*found, *(t.grad for t in ours)), (*wanted, *(t.grad for t in exact)), strict=True):
        unit = OF_BFLOAT16 if one.dtype == torch.bfloat16 else 2.0**-24
        # The way back goes through the reciprocal of the root, which is 8 where numbers are small.
        near = rounding(8 * max(1.0, other.abs().max().item()), width + rows, unit)
        torch.testing.assert_close(one.double(), other, rtol=0, atol=near)


@pytest.mark.halved
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("rows", "length", "width"), [(1, 130, 33), (5, 700, 64), (64, 2112, 70)])
def test_parts_of_a_product_add_up_to_it(rows, length, width, biased):
    x, weight = (drawn(n, length, seed=n, dtype=torch.bfloat16) for n in (rows, width))
    bias = drawn(width, seed=3, dtype=torch.bfloat16) if biased else None
    assert decoding_kernels.in_parts(weight, rows) and not decoding_kernels.in_parts(weight, 65)
    parts = decoding_kernels.product_parts(x[:, None], weight, bias)
    assert parts.shape == (min(8, 128 // -(-width // (64 if length >= 2048 else 32)), length // 128), rows, 1, width)
    wanted = x.double() @ weight.double().t() + (0.0 if bias is None else bias.double())
    largest = (x.double().abs() @ weight.double().abs().t()).max().item()
    assert (parts.double().sum(0)[:, 0] - wanted).abs().max() <= rounding(largest, 2)
    if len(parts) > 1:
        assert (parts[0, :, 0].double() - wanted).abs().max() > rounding(largest, 2), "one part is not the whole"


@pytest.mark.parametrize("parts", [1, 3])
def test_a_sum_with_parts_of_a_product_rounds_it_as_the_product_is_rounded(parts):
    x, more, weight = drawn(5, 1, 33, seed=1), drawn(parts, 5, 1, 33, seed=2), drawn(33, seed=3)
    found = layer_kernels.add_norm(x, more, weight, 1.0, 1e-3, torch.bfloat16)
    wanted = layer_kernels.add_norm(x, more.sum(0).bfloat16(), weight, 1.0, 1e-3, torch.bfloat16)
    assert [tensor.shape for tensor in found] == [x.shape, x.shape]
    # Parts are added in another order: a sum at the very edge is rounded to the number beside it.
    assert (found[0] - wanted[0]).abs().max() <= 2 * OF_BFLOAT16 * more.sum(0).abs().max()
    assert (found[0] == wanted[0]).float().mean() > 0.9


def test_rows_move_to_their_places_and_gradients_back():
    """Pieces of 2, 0 and 3 tokens in rows of 3: places without a token are zeros."""
    back = torch.tensor([0, 1, 6, 7, 8], device=DEVICE)
    index = torch.full((9,), -1, device=DEVICE).index_copy(0, back, torch.arange(5, device=DEVICE))
    tensors = [drawn(4, 5, seed=1).t(), drawn(5, 2, 3, seed=2), drawn(5, 1, 40, seed=3)]
    leaves = [tensor.requires_grad_() for tensor in tensors]
    moved = layer_kernels.moved(leaves, index, back)
    for own, found in zip(tensors, moved, strict=True):
        wanted = own.new_zeros(9, *own.shape[1:]).index_copy(0, back, own)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    slopes = [drawn(*found.shape, seed=4) for found in moved]
    torch.autograd.backward(moved, slopes)
    for leaf, slope in zip(leaves, slopes, strict=True):
        torch.testing.assert_close(leaf.grad, slope[back], rtol=0, atol=0)


# How often a model of two layers rotates, gates, and adds with a norm.
FUSED = {
    "qwen3": (2, 2, 4), "gemma3, a window and a rotation by kind": (2, 0, 0), "granite": (2, 2, 0),
    "gpt2": (0, 0, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", [usual(name, "qwen3", "gpt2") for name in FUSED])
def test_a_model_with_fused_layers_and_its_copy_compute_what_it_did(name, monkeypatch):
    monkeypatch.setattr(fused, "layer_kernels", lambda device: layer_kernels)
    model = random_model(name).to(DEVICE)
    ids = padded((4, 2))[0].to(DEVICE)
    calls = {"rotate": 0, "gate": 0, "add_norm": 0}

    def counted(what):
        own = getattr(layer_kernels, what)

        def call(*inputs):
            calls[what] += 1
            return own(*inputs)

        return call

    for what in calls:
        monkeypatch.setattr(layer_kernels, what, counted(what))

    def read(one):
        one.zero_grad()
        logits = one(input_ids=ids).logits
        logits.log_softmax(-1)[..., 3].sum().backward()
        return logits.detach(), [p.grad for p in one.parameters() if p.grad is not None]

    plain, slopes = read(model)
    quicken(model)
    fused.fuse_layers(model)
    fused.fuse_sums(model.base_model, reads_of(model.base_model).multiplied)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5)  # the copy computes with weights of its own
    calls.update(rotate=0, gate=0, add_norm=0)
    logits, gradients = read(copied)
    assert tuple(calls.values()) == FUSED[name]
    torch.testing.assert_close(logits, plain, rtol=0, atol=rounding(plain.abs().max().item()))
    largest = max(x.abs().max().item() for x in slopes)
    for one, other in zip(gradients, slopes, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=rounding(largest, 4096))


# How many products of a model of two layers are given in parts: those whose outputs a fused norm adds to the stream.
IN_PARTS = {"qwen3": 4, "llama, untied, biases": 4, "granite": 0, "gpt2": 0}


@pytest.mark.parametrize("name", [usual(name, "qwen3", "gpt2") for name in IN_PARTS])
@torch.no_grad()
def test_a_step_whose_products_come_in_parts_equals_the_plain_step(name, monkeypatch):
    monkeypatch.setattr(torch_decoder, "kernels", lambda device: decoding_kernels)
    monkeypatch.setattr(fused, "layer_kernels", lambda device: layer_kernels)
    monkeypatch.setattr(products, "lays_blocks", lambda *_: False)
    monkeypatch.setattr(decoding_kernels, "PRODUCT_BLOCKS", (16, 16))  # small as the model is, products have parts
    monkeypatch.setattr(decoding_kernels, "LEAST_BLOCKS", 1)
    launched, whole = [], decoding_kernels.product_parts
    monkeypatch.setattr(decoding_kernels, "product_parts", lambda *of: launched.append(whole(*of)) or launched[-1])
    model = random_model(name).to(DEVICE)
    quicken(model)
    parts = parts_of(model)
    fused.fuse_layers(parts.body)
    fused.fuse_sums(parts.body, reads_of(parts.body).multiplied)
    assert sum(SUMMED in vars(module) for module in parts.body.modules()) == IN_PARTS[name]
    ids, visible = (x.to(DEVICE) for x in padded(FEW))
    logits = []
    for kernels in (None, decoding_kernels):
        with laid_out(parts.body, 4, torch.bfloat16, (), kernels), torch.autocast(DEVICE.type, torch.bfloat16):
            decoder = Decoder(parts, 4, 20, torch.bfloat16)
            _, cache = decoder.prefill(ids, visible)
            state = StepState(cache)
            logits.append(state.step(decoder, ids[:, -1] * 5 % VOCABULARY, cache))
    assert len(launched) == 2 * IN_PARTS[name] and all(len(of) > 1 for of in launched)
    largest = logits[0].abs().max().item()
    torch.testing.assert_close(*logits, rtol=0, atol=rounding(largest, 16, OF_BFLOAT16))


@pytest.mark.halved
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("lower", [None, torch.bfloat16])
def test_packed_rows_through_fused_layers_give_what_they_gave(recompute, lower, monkeypatch):
    monkeypatch.setattr(fused, "layer_kernels", lambda device: layer_kernels)
    part = batch_of([[3, 9], [3, 9], [5]], [[8, 9, 10], [12, 13], [14]])

    def read(parts, model):
        hidden = Reader(model, parts, lower, recompute)(part)
        hidden.square().sum().backward()
        return hidden.detach(), [p.grad for p in model.parameters() if p.grad is not None]

    found = []
    for fuses in (False, True):
        model = random_model("llama").to(DEVICE)
        quicken(model)
        parts = parts_of(model)
        if fuses:
            monkeypatch.setattr(packed, "layer_kernels", lambda device: layer_kernels)
            fused.fuse_layers(parts.body)
            fused.fuse_sums(parts.body, reads_of(parts.body).multiplied)
        found.append(read(parts, model))
    (hidden, gradients), (other, slopes) = found
    unit = 2.0**-24 if lower is None else OF_BFLOAT16
    torch.testing.assert_close(other, hidden, rtol=0, atol=rounding(hidden.abs().max().item(), 64, unit))
    largest = max(x.abs().max().item() for x in gradients)
    for one, two in zip(gradients, slopes, strict=True):
        torch.testing.assert_close(two, one, rtol=0, atol=rounding(largest, 256, unit))
