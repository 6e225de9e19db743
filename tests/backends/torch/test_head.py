"""Chunked log-probs and entropies against autograd's own log_softmax, values and gradients."""

import weakref

import pytest

from tests import needs

torch = needs.package("torch")

from torch import nn  # noqa: E402

from steadyrl.backends.torch.read import head as torch_head  # noqa: E402
from steadyrl.backends.torch.read.head import Capped, chosen_logprobs, chunks, logits_of  # noqa: E402

TOKENS, WIDTH, VOCABULARY = 23, 6, 17


def case(bias, kept):
    generator = torch.Generator().manual_seed(0)
    head = nn.Linear(WIDTH, VOCABULARY, bias=bias)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    hidden = torch.randn(TOKENS, WIDTH, generator=generator)
    chosen = torch.randint(VOCABULARY, (TOKENS,), generator=generator)
    keep = None
    if kept:
        keep = torch.rand(TOKENS, VOCABULARY, generator=generator) < 0.4
        keep[torch.arange(TOKENS), chosen] = True
    weights = torch.randn(2, TOKENS, generator=generator)
    return head, hidden, chosen, keep, weights


def plain(head, hidden, chosen, scale, keep):
    """The same in float64, the straightforward way."""
    logits = (hidden.double() @ head.weight.double().t()) * scale
    if head.bias is not None:
        logits = logits + head.bias.double() * scale
    if keep is not None:
        logits = torch.where(keep, logits, -1e9)
    p = logits.softmax(-1)
    return p.gather(1, chosen[:, None])[:, 0].log(), -(p * p.clamp(min=1e-300).log()).sum(-1)


@pytest.fixture(params=["kept for the way back", "computed again"])
def small_chunks(request, monkeypatch):
    """Several chunks, the last of them short."""
    monkeypatch.setattr(torch_head, "CHUNK", 5 * VOCABULARY)
    monkeypatch.setattr(torch_head, "LEAST_ROWS", 1)
    monkeypatch.setattr(torch_head, "KEEP", 10**6 if request.param.startswith("kept") else 0)
    assert len(chunks(TOKENS, VOCABULARY, torch.device("cpu"))) == 5


@pytest.mark.parametrize("scale", [1.0, 1 / 0.7])
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.usefixtures("small_chunks")
def test_values_and_gradients_equal_the_plain_way(bias, kept, scale):
    head, hidden, chosen, keep, weights = case(bias, kept)
    leaves = [hidden.requires_grad_(), *head.parameters()]
    logprobs, entropies = chosen_logprobs(hidden, head, chosen, scale, keep, entropy=True)
    expected = plain(head, hidden, chosen, scale, keep)
    torch.testing.assert_close(logprobs.double(), expected[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropies.double(), expected[1], atol=1e-5, rtol=1e-5)
    found = torch.autograd.grad((torch.stack([logprobs, entropies]) * weights).sum(), leaves)
    wanted = torch.autograd.grad((torch.stack(expected) * weights).sum(), leaves)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=2e-4)


@pytest.mark.usefixtures("small_chunks")
def test_without_entropy_the_gradient_is_that_of_the_log_probs_alone():
    head, hidden, chosen, keep, weights = case(True, True)
    leaves = [hidden.requires_grad_(), *head.parameters()]
    logprobs, entropies = chosen_logprobs(hidden, head, chosen, 1.0, keep, entropy=False)
    assert entropies is None
    found = torch.autograd.grad((logprobs * weights[0]).sum(), leaves)
    wanted = torch.autograd.grad((plain(head, hidden, chosen, 1.0, keep)[0] * weights[0]).sum(), leaves)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=2e-4)


def test_without_tokens_the_gradient_of_the_head_is_0():
    head, hidden, chosen, _, _ = case(True, False)
    torch.full((VOCABULARY, WIDTH), 7.0)  # what lies in memory that is not filled
    logprobs, _ = chosen_logprobs(hidden[:0], head, chosen[:0], 1.0, None, entropy=False)
    logprobs.sum().backward()
    assert all(parameter.grad.abs().sum() == 0 for parameter in head.parameters())


def test_the_way_back_can_be_taken_once():
    head, hidden, chosen, _, _ = case(False, False)
    logprobs, _ = chosen_logprobs(hidden, head, chosen, 1.0, None, entropy=False)
    logprobs.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        logprobs.sum().backward()


def test_a_frozen_head_gets_no_gradient():
    head, hidden, chosen, _, _ = case(False, False)
    head.requires_grad_(False)
    logprobs, _ = chosen_logprobs(hidden.requires_grad_(), head, chosen, 1.0, None, entropy=False)
    logprobs.sum().backward()
    assert head.weight.grad is None
    assert hidden.grad.abs().sum() > 0


def test_every_row_stands_in_one_chunk():
    parts = chunks(1000, 2**20, torch.device("cpu"))
    assert [row for part in parts for row in range(part.start, part.stop)] == list(range(1000))
    assert len(parts) == 2, "at least 512 rows at once, however large the vocabulary"


@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.usefixtures("small_chunks")
def test_a_cap_on_the_logits_has_the_gradient_of_the_plain_way(kept, entropy):
    head, hidden, chosen, keep, weights = case(True, kept)
    capped, scale = Capped(head, 1.5), 1 / 0.7
    leaves = [hidden.requires_grad_(), *head.parameters()]
    logprobs, entropies = chosen_logprobs(hidden, capped, chosen, scale, keep, entropy)
    bent = 1.5 * torch.tanh(head(hidden).double() / 1.5)
    assert bent.abs().max() > 1.4 and (bent - head(hidden)).abs().max() > 1, "the cap has to show"
    logits = bent * scale if keep is None else torch.where(keep, bent * scale, -1e9)
    logp = logits.log_softmax(-1)
    expected = [logp.gather(1, chosen[:, None])[:, 0], -(logp.exp() * logp).sum(-1)]
    values = [logprobs, entropies] if entropy else [logprobs]
    for one, other in zip(values, expected, strict=False):
        torch.testing.assert_close(one.double(), other, atol=1e-5, rtol=1e-5)
    found, wanted = (
        torch.autograd.grad(sum((value * weight).sum() for value, weight in zip(both, weights, strict=False)), leaves)
        for both in (values, expected[: len(values)])
    )
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=2e-4)
    torch.testing.assert_close(logits_of(capped)(hidden).double(), bent, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("small_chunks")
def test_logits_of_a_chunk_are_gone_before_the_next_are_made(monkeypatch):
    head, hidden, chosen, _, weights = case(bias=True, kept=False)
    made, before, multiply = [], [], torch_head._logits

    def noted(*inputs):
        before.append(sum(of() is not None for of in made))
        logits = multiply(*inputs)
        made.append(weakref.ref(logits))
        return logits

    monkeypatch.setattr(torch_head, "_logits", noted)
    logprobs, entropies = chosen_logprobs(hidden.requires_grad_(), head, chosen, 1.0, None, entropy=True)
    (logprobs @ weights[0] + entropies @ weights[1]).backward()
    assert len(before) in {5, 10}
    assert set(before) == {0}
