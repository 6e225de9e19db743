"""Tests of the kernels of ``rows``, against float64: test_decoding_kernels.py runs them by Triton's interpreter."""

import math

import pytest
import torch
from torch import nn

from steadyrl.backends.torch.kernels import rows
from steadyrl.backends.torch.read import head as torch_head
from steadyrl.backends.torch.read.head import Capped, chosen_logprobs, decoding_head, distributions, logits_of
from tests.rounding import OF_BFLOAT16, rounding

BLOCK = 16
# Rows and ids: one block, part of one, several of which the last is short, one id beyond a block.
SHAPES = [(1, 16), (3, 5), (2, 33)]
# A sum of a few dozen exponentials, and logits of up to some 30.
NEAR = rounding(30.0, operations=64)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(rows, "BLOCK", BLOCK)


@pytest.fixture
def on_kernels(monkeypatch):
    """Let the head use the kernels on this device, in several chunks."""
    monkeypatch.setattr(torch_head, "row_kernels", lambda device: rows)
    monkeypatch.setattr(torch_head, "CHUNK", 1)
    monkeypatch.setattr(torch_head, "LEAST_ROWS", 5)


def case(n, vocabulary, dtype=torch.float32, cut=False):
    generator = torch.Generator().manual_seed(n * vocabulary)
    logits, other = (4 * torch.randn(2, n, vocabulary, generator=generator)).to(dtype)
    chosen = torch.randint(vocabulary, (n,), generator=generator)
    if not cut:
        return logits, other, chosen, None
    kept = torch.rand(n, vocabulary, generator=generator) < 0.3
    kept[:, : BLOCK if vocabulary > BLOCK else 0] = False  # a whole block of the row
    kept[torch.arange(n), chosen] = True
    return logits, other, chosen, kept


def exact(logits, scale, kept):
    """Log-probs [n, V] in float64; what was cut has none to speak of."""
    z = logits.double() * scale
    return (z if kept is None else torch.where(kept, z, -1e9)).log_softmax(-1)


def at(values, chosen):
    return values.gather(1, chosen[:, None])[:, 0]


def assert_near(values, expected, bound=NEAR):
    torch.testing.assert_close(values.double(), expected.double(), atol=bound, rtol=0)


every_case = [
    pytest.mark.halved,
    pytest.mark.parametrize("shape", SHAPES),
    pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16]),
    pytest.mark.parametrize(("scale", "cut"), [(1.0, False), (1 / 0.7, True), (0.5, False)]),
]


def cases(test):
    for mark in every_case:
        test = mark(test)
    return test


def test_a_row_counted_by_hand():
    """Of probabilities 1/2, 1/4 and 1/4, over those of 1/4, 1/4 and 1/2: entropy 1.5 log 2, KL 0.25 log 2."""
    two, chosen = math.log(2), torch.tensor([0])
    logits, reference = torch.tensor([[two, 0.0, 0.0]]), torch.tensor([[0.0, 0.0, two]])
    logprobs, norms, entropies = rows.row_stats(logits, chosen, 1.0, None, True)
    assert_near(torch.cat([logprobs, norms, entropies]), torch.tensor([-two, 2 * two, 1.5 * two]))
    found = rows.row_comparison(logits, reference, chosen, 1.0, None)
    assert_near(torch.cat(found), torch.tensor([-two, 1.5 * two, -2 * two, 0.25 * two, 2 * two]))
    slopes = rows.row_slopes(logits, chosen, 1.0, None, norms, torch.tensor([8.0]), None, torch.float32)
    assert_near(slopes, torch.tensor([[4.0, -2.0, -2.0]]))


@cases
def test_stats_equal_those_in_float64(shape, dtype, scale, cut):
    logits, _, chosen, kept = case(*shape, dtype, cut)
    logp = exact(logits, scale, kept)
    logprobs, norms, entropies = rows.row_stats(logits, chosen, scale, kept, True)
    assert_near(logprobs, at(logp, chosen))
    assert_near(norms, at(logits.double() * scale - logp, chosen))
    assert_near(entropies, -(logp.exp() * logp).sum(-1))
    assert rows.row_stats(logits, chosen, scale, kept, False)[2] is None


@cases
def test_comparisons_equal_those_in_float64(shape, dtype, scale, cut):
    logits, other, chosen, kept = case(*shape, dtype, cut)
    logp, ref = exact(logits, scale, kept), exact(other, scale, kept)
    logprobs, entropies, theirs, kl, norms = rows.row_comparison(logits, other, chosen, scale, kept)
    assert_near(logprobs, at(logp, chosen))
    assert_near(entropies, -(logp.exp() * logp).sum(-1))
    assert_near(theirs, at(ref, chosen))
    assert_near(kl, (logp.exp() * (logp - ref)).sum(-1))
    assert_near(norms, at(logits.double() * scale - logp, chosen))


@cases
def test_equal_logits_have_a_kl_of_exactly_0(shape, dtype, scale, cut):
    logits, _, chosen, kept = case(*shape, dtype, cut)
    assert not rows.row_comparison(logits, logits.clone(), chosen, scale, kept)[3].any()


def test_the_kl_of_close_logits_is_never_below_0_by_more_than_a_millionth():
    logits, other, chosen, _ = case(6, 50)
    for distance in (1e-2, 1e-4, 1e-6):
        kl = rows.row_comparison(logits, logits + distance * other, chosen, 1.0, None)[3]
        expected = exact(logits, 1.0, None), exact(logits + distance * other, 1.0, None)
        assert kl.min() > -1e-6
        assert_near(kl, (expected[0].exp() * (expected[0] - expected[1])).sum(-1), 1e-6)


@pytest.mark.parametrize("entropy", [False, True])
@cases
def test_slopes_are_those_of_autograd_in_float64(shape, dtype, scale, cut, entropy):
    logits, _, chosen, kept = case(*shape, dtype, cut)
    d_logprobs, d_entropies = torch.randn(2, shape[0], generator=torch.Generator().manual_seed(1))
    leaf = logits.double().requires_grad_()
    logp = exact(leaf, scale, kept)
    value = at(logp, chosen) @ d_logprobs.double()
    if entropy:
        value = value - (logp.exp() * logp).sum(-1) @ d_entropies.double()
    (wanted,) = torch.autograd.grad(value, leaf)
    _, norms, entropies = rows.row_stats(logits, chosen, scale, kept, True)
    cut_off = 4 * OF_BFLOAT16  # the interpreter drops the bits that a GPU rounds
    for out in (torch.float32, torch.bfloat16):
        own = logits.clone()
        found = rows.row_slopes(
            own, chosen, scale, kept, norms, d_logprobs, (entropies, d_entropies) if entropy else None, out
        )
        assert (found is own) == (dtype == out), "in place where the types agree"
        assert found.dtype == out
        largest = wanted.abs().max().item()
        assert_near(found, wanted, NEAR + (largest * cut_off if out == torch.bfloat16 else 0))


def test_logits_of_minus_infinity_count_0():
    logits, other, chosen, _ = case(4, 50)
    gone = torch.ones(4, 50, dtype=torch.bool).tril_(40).logical_not_()
    gone[:, :BLOCK] = True  # nothing is to be had of the first block
    gone[torch.arange(4), chosen] = False
    logits, other = logits.masked_fill(gone, -torch.inf), other.masked_fill(gone, -torch.inf)
    logp, ref = exact(logits, 1.0, ~gone), exact(other, 1.0, ~gone)
    logprobs, norms, entropies = rows.row_stats(logits, chosen, 1.0, None, True)
    assert_near(logprobs, at(logp, chosen))
    assert_near(entropies, -(logp.exp() * logp).sum(-1))
    assert_near(rows.row_comparison(logits, other, chosen, 1.0, None)[3], (logp.exp() * (logp - ref)).sum(-1))
    ones = torch.ones(4)
    slopes = rows.row_slopes(logits, chosen, 1.0, None, norms, ones, (entropies, ones), torch.bfloat16)
    assert slopes.isfinite().all() and not slopes[gone].any()


def test_a_logit_that_is_no_number_is_not_passed_over():
    logits, other, chosen, _ = case(1, 50)
    logits[0, 20] = torch.nan
    for values in (
        rows.row_stats(logits, chosen, 1.0, None, True),
        rows.row_comparison(logits, other, chosen, 1.0, None),
    ):
        assert values[0].isnan().all()


def layer(tokens=12, width=6, vocabulary=33):
    generator = torch.Generator().manual_seed(3)
    head = nn.Linear(width, vocabulary)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    hidden = torch.randn(tokens, width, generator=generator, requires_grad=True)
    return head, hidden, torch.randint(vocabulary, (tokens,), generator=generator)


@pytest.mark.halved
@pytest.mark.parametrize("products", [None, torch.bfloat16])
@pytest.mark.parametrize("cap", [0.0, 1.5])
@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("kernels", [False, True])
def test_the_head_has_the_values_and_gradients_of_the_plain_way(products, cap, entropy, kernels, request):
    """In lower products those of rounded factors; the way back rounds once more, the gradient by the logits."""
    if kernels:
        request.getfixturevalue("on_kernels")
    head, hidden, chosen = layer()
    leaves = [hidden, *head.parameters()]
    capped = Capped(head, cap) if cap else head
    logprobs, entropies = chosen_logprobs(hidden, capped, chosen, 1 / 0.7, None, entropy, products)
    rounded = [leaf.to(products or torch.float32).double() for leaf in (hidden, head.weight)]
    logits = rounded[0] @ rounded[1].t() + head.bias.double()
    logp = exact(cap * torch.tanh(logits / cap) if cap else logits, 1 / 0.7, None)
    weights = torch.linspace(-1, 1, len(chosen))
    value, wanted = logprobs @ weights, at(logp, chosen) @ weights.double()
    assert_near(logprobs.detach(), at(logp, chosen).detach())
    if entropy:
        spread = -(logp.exp() * logp).sum(-1)
        assert_near(entropies.detach(), spread.detach())
        value, wanted = value + entropies.sum(), wanted + spread.sum()
    for one, other in zip(torch.autograd.grad(value, leaves), torch.autograd.grad(wanted, leaves), strict=True):
        size = other.abs().max().item()
        assert_near(one, other, rounding(size, 64) if products is None else rounding(size, 4, OF_BFLOAT16))


@pytest.mark.halved
@pytest.mark.parametrize("cap", [0.0, 1.5])
@pytest.mark.parametrize("entropy", [False, True])
def test_what_was_measured_already_gives_the_same_values_and_gradients(cap, entropy, on_kernels):
    head, hidden, chosen = layer()
    capped = Capped(head, cap) if cap else head
    logits = logits_of(capped)(hidden.detach()).detach()
    logprobs, norms, entropies = rows.row_stats(logits, chosen, 1 / 0.7, None, True)

    def slopes(measured):
        values, spread = chosen_logprobs(hidden, capped, chosen, 1 / 0.7, None, entropy, None, measured)
        value = values @ torch.linspace(-1, 1, len(chosen)) + (spread.square().sum() if entropy else 0.0)
        return values.detach(), *torch.autograd.grad(value, [hidden, *head.parameters()])

    for one, other in zip(slopes(None), slopes((logprobs, entropies, norms)), strict=True):
        assert_near(one, other, 1e-5)


@pytest.mark.halved
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("referring", [False, True])
def test_distributions_are_measured_alike_with_and_without_kernels(cut, referring, request):
    logits, other, chosen, kept = case(12, 33, cut=cut)
    reference = (lambda rows: rows, other) if referring else None

    def measured():
        found = {}
        for part, name, values in distributions(lambda part: logits[part].clone(), reference, (kept, chosen, 0.5), 33):
            found.setdefault(name, torch.full((12,), torch.nan))[part] = values
        return found

    expected = measured()
    request.getfixturevalue("on_kernels")
    found = measured()
    norms = found.pop("norms")
    assert set(found) == set(expected) and len(found) == 2 + 2 * referring + (referring and cut)
    assert_near(norms, at(logits.double() * 0.5 - exact(logits, 0.5, kept), chosen))
    for name, values in found.items():
        assert_near(values, expected[name])


def test_sampler_and_trainer_multiply_the_same_rounded_factors():
    head, hidden, _ = layer()
    logits = decoding_head(head, 1.0, 4, torch.bfloat16)(hidden.detach())
    assert torch.equal(logits, logits_of(head, torch.bfloat16)(hidden.detach()))
    rounded = hidden.detach().bfloat16().double() @ head.weight.detach().bfloat16().double().t()
    assert_near(logits, rounded + head.bias.detach().double())
    assert (logits - logits_of(head)(hidden.detach())).abs().max() > NEAR, "the lower type has to show"
