"""Log-probs and entropies of chosen tokens from hidden states, in chunks, without keeping logits.

Through autograd's own log_softmax the vocabulary is walked eight times and four matrices as large as the logits are
alive at once. Here it is walked three times forward and twice back, a chunk of tokens at a time; probabilities are
kept for the way back where all of them are small enough, else computed again. On a GPU with Triton it is walked once
forward and once back, by the kernels of ``rows``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from steadyrl.backends.torch.arithmetic import add_product, wide_product
from steadyrl.backends.torch.device import optional_kernels, to_device
from steadyrl.backends.torch.read.products import Function, product, without_autocast
from steadyrl.core.types import Batch, Sampling

CHUNK = 2**23  # logits computed at once
CHUNK_ON_GPU = 2**27  # there a product of few rows takes longer to begin than to compute
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
    kept_mask: torch.Tensor | None,
    entropy: bool,
    products: torch.dtype | None = None,
    measured: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return log-probs [N] of chosen tokens and, if asked for, entropies [N]; both carry gradients.

    Args:
        hidden: [N, H].
        head: Linear, hidden states to logits; perhaps with a cap.
        chosen: [N] int64.
        scale: Logits are multiplied by it: one over the temperature.
        kept_mask: [N, V] bool, the ids that truncation left; None for all.
        entropy: Whether to compute entropies.
        products: See ``logits_of``.
        measured: Log-probs, entropies and norms [N] that ``rows`` gave for these hidden states already; None for no.
    """
    cap, linear = (head.cap, head.linear) if isinstance(head, Capped) else (0.0, head)
    if type(linear) is not nn.Linear:  # an adapter on the head itself
        logp = log_softmax(logits_of(head, products)(hidden), scale, kept_mask)
        return logp.gather(1, chosen[:, None])[:, 0], entropy_of(logp) if entropy else None
    logprobs, entropies = _Chosen.apply(  # type: ignore[no-untyped-call]  # of torch
        hidden, linear.weight, linear.bias, chosen, scale, kept_mask, entropy, cap, products, measured
    )
    return logprobs, entropies if entropy else None


def sampled_tokens(
    batch: Batch, sampling: Sampling, vocabulary: int, device: torch.device
) -> tuple[torch.Tensor | None, torch.Tensor, float]:
    """Return how completion tokens were sampled, row by row.

    Returns:
        The ids that truncation left, [N, V] bool, None where nothing was cut; the ids sampled, [N] int64; and what
        logits are multiplied by before log-probs are taken.
    """
    chosen = to_device(batch.tokens[batch.completion_mask].astype(np.int64), device)
    if sampling.logprobs == "raw":
        return None, chosen, 1.0
    if batch.kept is None:
        return None, chosen, 1.0 / sampling.temperature
    lengths = batch.kept.lengths[batch.completion_mask]
    kept_mask = torch.zeros(len(lengths), vocabulary, dtype=torch.bool, device=device)
    rows = to_device(np.repeat(np.arange(len(lengths)), lengths), device)
    kept_mask[rows, to_device(batch.kept.ids.astype(np.int64), device)] = True
    kept_mask[to_device(np.flatnonzero(lengths == 0), device)] = True  # 0 ids stand for a token where nothing was cut
    return kept_mask, chosen, 1.0 / sampling.temperature


def distributions(
    policy: Callable[[slice], torch.Tensor],
    reference: tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor] | None,
    sampled: tuple[torch.Tensor | None, torch.Tensor, float],
    vocabulary: int,
) -> Iterator[tuple[slice, str, torch.Tensor]]:
    """Yield (rows, name, values) of what is measured from whole distributions, a chunk of rows at a time.

    Kernels measure the norms too, with which the way back can do without another look at all logits.

    Args:
        policy: What makes logits [rows, V] of these of the N tokens.
        reference: What makes logits of hidden states, and those of the tokens [N, H]; None without a reference.
        sampled: See ``sampled_tokens``.
        vocabulary: V.
    """
    kept_mask, chosen, scale = sampled
    kernels = row_kernels(chosen.device)
    measure = _compared if kernels is None else kernels.compared
    for rows in chunks(len(chosen), vocabulary, chosen.device):
        reference_rows = None if reference is None else partial(reference[0], reference[1][rows])
        cut = None if kept_mask is None else kept_mask[rows]
        for name, values in measure(partial(policy, rows), reference_rows, chosen[rows], scale, cut).items():
            yield rows, name, values


def _compared(
    policy: Callable[[], torch.Tensor],
    reference: Callable[[], torch.Tensor] | None,
    chosen: torch.Tensor,
    scale: float,
    kept_mask: torch.Tensor | None,
) -> dict[str, torch.Tensor]:
    index = chosen[:, None]
    logp = log_softmax(policy(), scale, kept_mask)  # [n, V]
    p = logp.exp()  # [n, V]
    measured = {"logprobs": logp.gather(1, index)[:, 0], "entropy": -expected(p, logp, kept_mask is not None)}
    if reference is not None:
        ref_logits = reference()  # once the policy's logits are not needed any more
        ref = log_softmax(ref_logits, scale, kept_mask)  # [n, V]
        measured["ref_logprobs"] = ref_logprobs = ref.gather(1, index)[:, 0]
        measured["kl_ref_exact"] = exact = expected(p, logp.sub_(ref), kept_mask is not None)
        if kept_mask is not None:
            # Of every kept token the reference's two log-probs differ by the same: the mass that was cut.
            full_logprobs = log_softmax(ref_logits, scale, None).gather(1, index)[:, 0]
            measured["kl_ref_full"] = exact + ref_logprobs - full_logprobs
    return measured


def logits_of(head: nn.Module, products: torch.dtype | None = None) -> Function:
    """Return a function from hidden states [N, H] to logits [N, V] in float32, whatever the weights are kept in.

    Args:
        head: Linear, perhaps with a cap; its weights must not change while the function is used.
        products: The lower type that hidden states and weights are rounded to before they are multiplied; None for
            float32. An adapter on the head itself is always computed as it is.
    """
    if isinstance(head, Capped):
        uncapped, bend = logits_of(head.linear, products), head.bend
        return lambda hidden: bend(uncapped(hidden))
    if type(head) is not nn.Linear:
        return lambda hidden: head(hidden).float()
    bias = None if head.bias is None else head.bias.float()
    weight = head.weight.to(products or torch.float32)
    if products is None:
        return lambda hidden: nn.functional.linear(hidden.float(), weight, bias)
    return lambda hidden: _logits(hidden.to(weight.dtype), weight, bias)


def products_on(device: torch.device, lower: torch.dtype | None) -> torch.dtype | None:
    """Return the type that the head multiplies in: only a GPU multiplies in a lower one, as it does in the layers."""
    return lower if device.type == "cuda" else None


def decoding_head(head: Any, scale: float, rows: int, products: torch.dtype | None = None) -> Function:
    """Return a function from hidden states [B, H] to logits [B, V] in float32, as the trainer computes them.

    Args:
        head: Linear, perhaps with a cap; its weights must not change while the function is used.
        scale: What the model multiplies logits by.
        rows: About as many rows as are decoded at once.
        products: See ``logits_of``.
    """
    linear = head.linear if isinstance(head, Capped) else head
    multiply = product(linear, rows, torch.float32) or (lambda hidden: linear(hidden).float())
    if products is not None and type(linear) is nn.Linear:
        multiply = logits_of(linear, products)

    def logits(hidden: torch.Tensor) -> torch.Tensor:
        with without_autocast(hidden.device):
            uncapped = multiply(hidden.float() if scale == 1.0 else hidden.float() * scale)
            return head.bend(uncapped) if isinstance(head, Capped) else uncapped

    return logits


def log_softmax(logits: torch.Tensor, scale: float, kept_mask: torch.Tensor | None) -> torch.Tensor:
    """Return log-probs [N, V] in float32, normalised over the kept ids, -inf for the others."""
    logits = logits.float()
    if scale != 1.0:
        logits = logits * scale
    if kept_mask is not None:
        logits = logits.masked_fill(~kept_mask, -torch.inf)
    return logits.log_softmax(-1)


def entropy_of(logp: torch.Tensor) -> torch.Tensor:
    """Return the entropy [N] of log-probs [N, V], which may be -inf."""
    return -expected(logp.exp(), logp, truncated=True)


def expected(p: torch.Tensor, values: torch.Tensor, truncated: bool) -> torch.Tensor:
    """Return the means [N] of values [N, V] under probabilities; where truncation cut, values are no numbers."""
    return (p * (values.masked_fill(p == 0, 0.0) if truncated else values)).sum(-1)


def chunks(rows: int, vocabulary: int, device: torch.device) -> list[slice]:
    """Return the slices of rows whose logits are computed at once."""
    width = max(LEAST_ROWS, (CHUNK_ON_GPU if device.type == "cuda" else CHUNK) // vocabulary)
    return [slice(start, min(start + width, rows)) for start in range(0, rows, width)]


@optional_kernels
def row_kernels(device: torch.device) -> ModuleType:
    """Return the module ``rows``, tried on one row."""
    from steadyrl.backends.torch.kernels import rows

    first = torch.zeros(1, dtype=torch.long, device=device)
    rows.row_stats(torch.zeros(1, 2, device=device), first, 1.0, None, entropy=True)
    return rows


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
        kept_mask: torch.Tensor | None,
        entropy: bool,
        cap: float,
        products: torch.dtype | None,
        measured: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden_dtype, factor = hidden.dtype, products or torch.float32
        hidden, wide, offset = hidden.to(factor), weight.to(factor), None if bias is None else bias.float()
        logprobs = hidden.new_empty(len(hidden), dtype=torch.float32)
        entropies = logprobs.new_empty(len(hidden) if entropy else 0)
        kernels, needed = row_kernels(hidden.device), any(ctx.needs_input_grad)
        # A cap's slope is not to be had of probabilities. The kernels are quicker than what would keep these.
        keep = needed and len(hidden) * len(weight) <= KEEP and not cap and kernels is None
        weights, norms = logprobs.new_empty((len(hidden), len(weight)) if keep else 0), torch.empty_like(logprobs)
        if measured is not None:
            logprobs, entropies, norms = (x.clone() for x in measured)
        for chunk in chunks(len(hidden), len(weight), hidden.device) if measured is None else ():
            room = weights[chunk] if keep else None
            cut = None if kept_mask is None else kept_mask[chunk]
            logits = _bend(_logits(hidden[chunk], wide, offset, None if entropy else room), cap)
            if kernels is None:
                logprobs[chunk], norms[chunk], spread = _stats(logits, chosen[chunk], scale, cut, entropy, room)
            else:
                logprobs[chunk], norms[chunk], spread = kernels.row_stats(logits, chosen[chunk], scale, cut, entropy)
            if spread is not None:
                entropies[chunk] = spread
            del logits  # before the next ones are made
        if needed:  # the way back overwrites the weights: it is taken once
            ctx.save_for_backward(hidden, wide, offset, chosen, kept_mask, weights, norms, entropies)
            ctx.settings = scale, entropy, keep, hidden_dtype, weight.dtype, bias is not None, cap, kernels
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, chosen, kept_mask, weights, norms, entropies = ctx.saved_tensors
        scale, entropy, keep, hidden_dtype, weight_dtype, has_bias, cap, kernels = ctx.settings
        to_hidden, to_weight, to_bias = ctx.needs_input_grad[:3]
        d_hidden = torch.empty_like(hidden, dtype=torch.float32) if to_hidden else None
        d_weight = None  # the first chunk fills it
        if to_weight:
            d_weight = (torch.empty_like if len(hidden) else torch.zeros_like)(weight, dtype=torch.float32)
        d_bias = torch.zeros_like(bias) if has_bias and to_bias else None
        d_logprobs, d_entropies = gradients

        def by_logits(chunk: slice) -> torch.Tensor:  # what it makes on the way is gone before the next chunk's
            slope, cut = None, None if kept_mask is None else kept_mask[chunk]
            of_entropy = (entropies[chunk], d_entropies[chunk]) if entropy else None
            if not keep:
                logits = _bend(_logits(hidden[chunk], weight, bias), cap)
                slope = (logits / cap).square_().neg_().add_(1.0) if cap else None
            if kernels is None:
                p = weights[chunk] if keep else _shift(logits, scale, cut).exp_()
                d: torch.Tensor = _slopes(p, chosen[chunk], scale, norms[chunk], d_logprobs[chunk], of_entropy)
            else:
                d = kernels.row_slopes(
                    logits, chosen[chunk], scale, cut, norms[chunk], d_logprobs[chunk], of_entropy, hidden.dtype
                )
            if slope is not None:
                d *= slope
            return d.to(hidden.dtype)

        for chunk in chunks(len(hidden), len(weight), hidden.device):
            d = by_logits(chunk)  # [n, V]
            if d_hidden is not None:
                wide_product(d, weight, out=d_hidden[chunk])
            if d_weight is not None:
                add_product(d_weight, d.t(), hidden[chunk], keep=chunk.start > 0)
            if d_bias is not None:
                d_bias += d.sum(0, dtype=torch.float32)
            del d  # before the next one is made
        return (
            None if d_hidden is None else d_hidden.to(hidden_dtype),
            None if d_weight is None else d_weight.to(weight_dtype),
            None if d_bias is None else d_bias.to(weight_dtype),
            None, None, None, None, None, None, None,
        )  # fmt: skip


def _stats(
    logits: torch.Tensor,
    chosen: torch.Tensor,
    scale: float,
    kept_mask: torch.Tensor | None,
    entropy: bool,
    room: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return log-probs, sums of the exponentials of shifted logits, and entropies; the exponentials go to ``room``."""
    z = _shift(logits, scale, kept_mask)  # [n, V]
    chosen_z = z.gather(1, chosen[:, None])[:, 0]
    p = torch.exp(z, out=room if entropy else z)
    total = p.sum(-1)  # [n]
    if not entropy:
        return chosen_z - total.log(), total, None
    # The smallest float stands in for -inf, which times 0 is no number.
    return chosen_z - total.log(), total, total.log() - (p * z.clamp_(min=-3e38)).sum(-1) / total


def _slopes(
    weights: torch.Tensor,
    chosen: torch.Tensor,
    scale: float,
    totals: torch.Tensor,
    d_logprobs: torch.Tensor,
    of_entropy: tuple[torch.Tensor, torch.Tensor] | None,
) -> torch.Tensor:
    """Turn exponentials [n, V] of shifted logits into the gradient by the logits, in place; see ``rows.row_slopes``."""
    if of_entropy is None:
        d = weights.mul_(-(d_logprobs / totals)[:, None])
    else:
        entropies, d_entropies = of_entropy
        p = weights.div_(totals[:, None])
        steep = torch.special.xlogy(p, p).mul_(d_entropies[:, None])  # [n, V]
        d = p.mul_(-(d_logprobs + d_entropies * entropies)[:, None]).sub_(steep)
    d.scatter_add_(1, chosen[:, None], d_logprobs[:, None])
    if scale != 1.0:
        d *= scale
    return d


def _logits(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return logits [n, V], in ``out`` if given."""
    z = wide_product(hidden, weight.t(), out)
    if bias is not None:
        z += bias
    return z


def _bend(z: torch.Tensor, cap: float) -> torch.Tensor:
    """Turn logits [n, V] into capped ones, in place; 0 caps nothing."""
    return z.div_(cap).tanh_().mul_(cap) if cap else z


def _shift(z: torch.Tensor, scale: float, kept_mask: torch.Tensor | None) -> torch.Tensor:
    """Turn logits [n, V] into scaled ones less the greatest of each row; -inf where truncation cut."""
    if scale != 1.0:
        z *= scale
    if kept_mask is not None:
        z.masked_fill_(~kept_mask, -torch.inf)
    z -= z.amax(-1, keepdim=True)
    return z
