"""Log-probs and entropies of chosen tokens from hidden states, in chunks, without keeping logits.

Through autograd's own log_softmax the vocabulary is walked eight times and four matrices as large as the logits are
alive at once. Here it is walked three times forward and twice back, a chunk of tokens at a time; probabilities are
kept for the way back where all of them are small enough, else computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from steadyrl.backends.torch.products import Function, product, without_autocast

CHUNK = 2**23  # logits computed at once
LEAST_ROWS = 512  # but at least so many tokens: every chunk reads the whole head and adds to its whole gradient
KEEP = 2**26  # probabilities that are kept for the backward pass; more of them are computed again


class Capped(nn.Module):
    """An output layer whose logits are bent to lie within a cap, smoothly: cap * tanh(logits / cap) (Gemma 2)."""

    def __init__(self, linear: nn.Module, cap: float):
        super().__init__()
        self.linear, self.cap = linear, cap
        sizes: Any = linear
        self.in_features, self.out_features = sizes.in_features, sizes.out_features

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits [..., V] of hidden states [..., H]."""
        return self.bend(self.linear(hidden))

    def bend(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the capped logits of those that the layer gives."""
        return (logits / self.cap).tanh() * self.cap


def chosen_logprobs(
    hidden: torch.Tensor,
    head: nn.Module,
    chosen: torch.Tensor,
    scale: float,
    kept: torch.Tensor | None,
    entropy: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return log-probs [N] of chosen tokens and, if asked for, entropies [N]; both carry gradients.

    Args:
        hidden: [N, H].
        head: Linear, hidden states to logits; perhaps with a cap.
        chosen: [N] int64.
        scale: Logits are multiplied by it: one over the temperature.
        kept: [N, V] bool, the ids that truncation left; None for all.
        entropy: Whether to compute entropies.
    """
    cap, linear = (head.cap, head.linear) if isinstance(head, Capped) else (0.0, head)
    if type(linear) is not nn.Linear:  # an adapter on the head itself
        logp = log_softmax(logits_of(head, hidden), scale, kept)
        return logp.gather(1, chosen[:, None])[:, 0], entropy_of(logp) if entropy else None
    found: tuple[torch.Tensor, torch.Tensor] = _Chosen.apply(  # type: ignore[no-untyped-call]  # of torch
        hidden, linear.weight, linear.bias, chosen, scale, kept, entropy, cap
    )
    return found[0], found[1] if entropy else None


def distributions(
    policy: Callable[[slice], torch.Tensor],
    reference: tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor] | None,
    drawn: tuple[torch.Tensor | None, torch.Tensor, float],
    vocabulary: int,
) -> Iterator[tuple[slice, str, torch.Tensor]]:
    """Yield (rows, name, values) of what is measured from whole distributions, a chunk of rows at a time.

    Args:
        policy: What makes logits [rows, V] of these of the N tokens.
        reference: What makes logits of hidden states, and those of the tokens [N, H]; None without a reference.
        drawn: See ``how_drawn``.
        vocabulary: V.
    """
    kept, chosen, scale = drawn
    for rows in chunks(len(chosen), vocabulary):
        cut, at = None if kept is None else kept[rows], chosen[rows, None]
        logp = log_softmax(policy(rows), scale, cut)  # [rows, V]
        p = logp.exp()
        yield rows, "logprobs", logp.gather(1, at)[:, 0]
        yield rows, "entropy", -expected(p, logp, cut is not None)
        if reference is not None:
            logits, states = reference
            theirs = logits(states[rows])
            ref = log_softmax(theirs, scale, cut)
            there = ref.gather(1, at)[:, 0]
            exact = expected(p, logp.sub_(ref), cut is not None)
            yield rows, "ref_logprobs", there
            yield rows, "kl_ref_exact", exact
            if cut is not None:
                # Of every kept token the reference's two log-probs differ by the same: the mass that was cut.
                whole = log_softmax(theirs, scale, None).gather(1, at)[:, 0]
                yield rows, "kl_ref_full", exact + there - whole


def logits_of(head: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """Return logits [N, V] in float32, whatever the head's weights are kept in."""
    if isinstance(head, Capped):
        return head.bend(logits_of(head.linear, hidden))
    if type(head) is not nn.Linear:
        found: torch.Tensor = head(hidden)
        return found.float()
    bias = None if head.bias is None else head.bias.float()
    return nn.functional.linear(hidden.float(), head.weight.float(), bias)


def decoding_head(head: Any, scale: float, rows: int) -> Function:
    """Return a function from hidden states [B, H] to logits [B, V] in float32, as the trainer computes them.

    Args:
        head: Linear, perhaps with a cap; its weights must not change while the function is used.
        scale: What the model multiplies logits by.
        rows: About as many rows as are decoded at once.
    """
    linear = head.linear if isinstance(head, Capped) else head
    multiply = product(linear, rows, torch.float32) or (lambda hidden: linear(hidden).float())

    def logits(hidden: torch.Tensor) -> torch.Tensor:
        with without_autocast(hidden.device):
            found = multiply(hidden.float() if scale == 1.0 else hidden.float() * scale)
            return head.bend(found) if isinstance(head, Capped) else found

    return logits


def log_softmax(logits: torch.Tensor, scale: float, kept: torch.Tensor | None) -> torch.Tensor:
    """Return log-probs [N, V] in float32, normalised over the kept ids, -inf for the others."""
    logits = logits.float()
    if scale != 1.0:
        logits = logits * scale
    if kept is not None:
        logits = logits.masked_fill(~kept, -torch.inf)
    return logits.log_softmax(-1)


def entropy_of(logp: torch.Tensor) -> torch.Tensor:
    """Return the entropy [N] of log-probs [N, V], which may be -inf."""
    return -expected(logp.exp(), logp, truncated=True)


def expected(p: torch.Tensor, values: torch.Tensor, truncated: bool) -> torch.Tensor:
    """Return the means [N] of values [N, V] under probabilities; where truncation cut, values are no numbers."""
    return (p * (values.masked_fill(p == 0, 0.0) if truncated else values)).sum(-1)


def chunks(rows: int, vocabulary: int) -> list[slice]:
    """Return the slices of rows whose logits are computed at once."""
    width = max(LEAST_ROWS, CHUNK // vocabulary)
    return [slice(start, min(start + width, rows)) for start in range(0, rows, width)]


class _Chosen(torch.autograd.Function):
    """logp = x_chosen - log sum exp x; d logp / dx = onehot - p; d entropy / dx = -p * (log p + entropy).

    Where x = cap * tanh(y / cap), dx / dy = 1 - (x / cap)^2.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        chosen: torch.Tensor,
        scale: float,
        kept: torch.Tensor | None,
        entropy: bool,
        cap: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden_dtype, hidden = hidden.dtype, hidden.float()
        wide, offset = weight.float(), None if bias is None else bias.float()
        logprobs = hidden.new_empty(len(hidden))
        entropies = hidden.new_empty(len(hidden) if entropy else 0)
        needed = any(ctx.needs_input_grad)
        keep = needed and len(hidden) * len(weight) <= KEEP and not cap  # whose slope is not to be had of probabilities
        weights, totals = hidden.new_empty((len(hidden), len(weight)) if keep else 0), torch.empty_like(logprobs)
        for part in chunks(len(hidden), len(weight)):
            room = weights[part] if keep else None
            cut = None if kept is None else kept[part]
            made = _made(hidden[part], wide, offset, None if entropy else room)
            z = _shift(_bend(made, cap), scale, cut)
            found = z.gather(1, chosen[part][:, None])[:, 0]
            p = torch.exp(z, out=room if entropy else z)
            totals[part] = total = p.sum(-1)
            logprobs[part] = found - total.log()
            if entropy:  # the smallest float stands in for -inf, which times 0 is no number
                entropies[part] = total.log() - (p * z.clamp_(min=-3e38)).sum(-1) / total
        if needed:  # the way back overwrites the weights: it is taken once
            ctx.save_for_backward(hidden, wide, offset, chosen, kept, weights, totals, entropies)
            ctx.settings = scale, entropy, keep, hidden_dtype, weight.dtype, bias is not None, cap
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, chosen, kept, weights, totals, entropies = ctx.saved_tensors
        scale, entropy, keep, hidden_dtype, weight_dtype, has_bias, cap = ctx.settings
        to_hidden, to_weight, to_bias = ctx.needs_input_grad[:3]
        d_hidden = torch.empty_like(hidden) if to_hidden else None
        d_weight = None  # the first chunk fills it
        if to_weight:
            d_weight = torch.empty_like(weight) if len(hidden) else torch.zeros_like(weight)
        d_bias = torch.zeros_like(bias) if has_bias and to_bias else None
        d_logprobs, d_entropies = gradients
        for part in chunks(len(hidden), len(weight)):
            slope = None
            if keep:
                d = weights[part]
            else:
                made = _bend(_made(hidden[part], weight, bias), cap)
                slope = (made / cap).square_().neg_().add_(1.0) if cap else None
                d = _shift(made, scale, None if kept is None else kept[part]).exp_()
            if entropy:
                p = d.div_(totals[part][:, None])
                steep = torch.special.xlogy(p, p).mul_(d_entropies[part][:, None])
                d = p.mul_(-(d_logprobs[part] + d_entropies[part] * entropies[part])[:, None]).sub_(steep)
            else:
                d.mul_(-(d_logprobs[part] / totals[part])[:, None])
            d.scatter_add_(1, chosen[part][:, None], d_logprobs[part][:, None])
            if scale != 1.0:
                d *= scale
            if slope is not None:
                d *= slope
            if d_hidden is not None:
                torch.mm(d, weight, out=d_hidden[part])
            if d_weight is not None:
                d_weight.addmm_(d.t(), hidden[part], beta=float(part.start > 0))
            if d_bias is not None:
                d_bias += d.sum(0)
        return (
            None if d_hidden is None else d_hidden.to(hidden_dtype),
            None if d_weight is None else d_weight.to(weight_dtype),
            None if d_bias is None else d_bias.to(weight_dtype),
            None, None, None, None, None,
        )  # fmt: skip


def _made(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return logits [n, V], in ``out`` if given."""
    z = torch.mm(hidden, weight.t(), out=out)
    if bias is not None:
        z += bias
    return z


def _bend(z: torch.Tensor, cap: float) -> torch.Tensor:
    """Turn logits [n, V] into capped ones, in place; 0 caps nothing."""
    return z.div_(cap).tanh_().mul_(cap) if cap else z


def _shift(z: torch.Tensor, scale: float, kept: torch.Tensor | None) -> torch.Tensor:
    """Turn logits [n, V] into scaled ones less the greatest of each row; -inf where truncation cut."""
    if scale != 1.0:
        z *= scale
    if kept is not None:
        z.masked_fill_(~kept, -torch.inf)
    z -= z.amax(-1, keepdim=True)
    return z
