"""What the sampler multiplied, kept for the pass of the update: under the same weights the products are the same.

Reading rows again is a third of an update. Where a single update follows, what the linear modules gave is therefore
kept while completions are drawn. The update's pass computes all that lies between the products itself, and one token
in 16 to 64 of each product too, other ones in every product. So a sampler that computes something else is found out,
and everything is read again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import nn

from steadyrl.backends.torch.adapter import added_to
from steadyrl.backends.torch.head import KEEP
from steadyrl.backends.torch.packed import Packed
from steadyrl.backends.torch.plan import Function, Plan
from steadyrl.backends.torch.products import CONV1D
from steadyrl.types import Batch, Completion

HEAD = "head"
# One token in so many is multiplied again in each product: the more products there are to meet it, the fewer.
PARTS = 16, 64
# Relative to the largest number of a product: rounding gives 1e-6 to 1e-5, whatever is wrong gives far more.
GAP = 1e-4

Name = tuple[int, str] | str  # (layer, product), or the head
Key = tuple[bytes, bytes]


class Recording:
    """Outputs of a decoder's products, a line for each token that it reads.

    Lines stand as a batch of these rows packs its tokens, as far as that is known beforehand: prompts in the order of
    their first rows, then what was drawn, row by row, with room for the longest answer.

    Args:
        order: [B], number of each row in the batch.
        head: Whether logits are kept too.
    """

    def __init__(self, order: Sequence[int], head: bool):
        self._order, self._head = np.array(order), head
        self._made: dict[Name, torch.Tensor] = {}
        self._known: dict[Key, int] = {}

    def begin(self, prompts: Sequence[np.ndarray], which: Sequence[int], new_tokens: int) -> None:
        """Make ready for the first pass.

        Args:
            prompts: [G] that are read, padded on the left.
            which: [B], number of each row's prompt among them.
            new_tokens: Drawn in a row at most.
        """
        lengths, self._which, self._new = np.array([len(p) for p in prompts]), np.array(which), new_tokens
        first = [self._order[self._which == number].min() for number in range(len(prompts))]
        ranks = np.argsort(first)
        self._heads = np.empty_like(lengths)
        self._heads[ranks] = lengths[ranks].cumsum() - lengths[ranks]
        self._drawn = int(lengths.sum())  # the line of the first token that was drawn
        width = lengths.max()
        ends = (1 + np.arange(len(prompts))) * width
        self._rows, self._passes = np.arange(len(which)), 0
        self._read: torch.Tensor | None = _places(ends - lengths, lengths)
        self._to, self._head_to = _places(self._heads, lengths), torch.from_numpy(self._order * new_tokens)

    def next_pass(self) -> None:
        """Note that the decoder reads the prompts, or one more token of each row that is left."""
        if self._passes:
            slots = self._order[self._rows]
            self._read = None
            self._to = torch.from_numpy(self._drawn + slots * (self._new - 1) + self._passes - 1)
            self._head_to = torch.from_numpy(slots * self._new + self._passes)
        self._passes += 1

    def leave(self, rows: Sequence[int]) -> None:
        """Note that these rows are read no further."""
        self._rows = np.setdiff1d(self._rows, rows)

    def watch(self, name: Name, product: Function) -> Function:
        """Return a product that is kept."""
        if name == HEAD and not self._head:
            return product

        def watched(x: torch.Tensor) -> torch.Tensor:
            y = product(x)
            if name == HEAD:
                self._keep(name, y[self._which] if self._read is not None else y, self._head_to)
            else:
                self._keep(name, y if self._read is None else y[self._read], self._to)
            return y

        return watched

    def _keep(self, name: Name, y: torch.Tensor, to: torch.Tensor) -> None:
        if name not in self._made:
            rows = len(self._order)
            lines = rows * self._new if name == HEAD else self._drawn + rows * (self._new - 1)
            with torch.inference_mode(False):  # what is made in it cannot be part of a graph
                self._made[name] = torch.empty(lines, y.shape[1])
        self._made[name].index_copy_(0, to, y)

    def finish(self, prompts: Sequence[np.ndarray], drawn: Sequence[Completion]) -> None:
        """Note what was drawn after the prompt of each row."""
        for row, (prompt, completion) in enumerate(zip(prompts, drawn, strict=True)):
            self._known[_key(prompt, completion.ids)] = row

    def of(self, part: Batch, packed: Packed) -> Recorded | None:
        """Return what was kept of the tokens of packed rows, once; None where some of them were not drawn here."""
        if not self._made:
            return None
        lines, of_head = np.zeros(part.tokens.shape, np.int64), []
        for place, (tokens, mask) in enumerate(zip(part.tokens, part.completion_mask, strict=True)):
            inside = np.flatnonzero(mask)
            start, end = (inside[0], inside[-1] + 1) if len(inside) else (0, 0)
            row = self._known.get(_key(tokens[:start], tokens[start:end]))
            if row is None:
                return None
            slot = self._order[row]
            lines[place, :start] = self._heads[self._which[row]] + np.arange(start)
            lines[place, start:end] = self._drawn + slot * (self._new - 1) + np.arange(end - start)
            of_head.append(slot * self._new + np.arange(end - start))
        made, self._made = self._made, {}
        return Recorded(made, lines.ravel()[packed.source], np.concatenate(of_head))


class Recorded:
    """Outputs of products for the tokens of one batch, in its order.

    Attributes:
        gap: By how much the trainer's products differ at most, relative to the largest number of each.
    """

    def __init__(self, made: dict[Name, torch.Tensor], lines: np.ndarray, of_head: np.ndarray):
        self._made, self._lines, self._of_head = made, lines, of_head
        self.gap, self._checked = 0.0, 0
        self._part = min(max(len(made) // 2, PARTS[0]), PARTS[1])  # where there are enough, each token is met twice

    def multiply(self, layer: int, name: str, modules: Sequence[nn.Module], x: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the outputs of modules for x [K, in], without their products; the way back is theirs."""
        joined = _laid(self._made.pop((layer, name)), self._lines)
        widths = [_weights(module)[0].shape[0] for module in modules]
        outputs = torch.split(joined, widths, dim=1)
        for module, output in zip(modules, outputs, strict=True):
            self._check(module, x, output)
        known: Any = _Known.apply
        return [known(x, output, *_weights(module)) for module, output in zip(modules, outputs, strict=True)]

    def logits(self, head: nn.Module, hidden: torch.Tensor) -> torch.Tensor | None:
        """Return the head's outputs [N, V] for hidden states [N, H], which hold no gradients; None if not kept."""
        if HEAD not in self._made:
            return None
        found = _laid(self._made.pop(HEAD), self._of_head)
        self._check(head, hidden, found)
        return found

    @torch.no_grad()
    def _check(self, module: nn.Module, x: torch.Tensor, output: torch.Tensor) -> None:
        some = slice(self._checked % min(self._part, len(x)), None, self._part)
        expected = module(x[some])
        gap = (output[some] - expected).abs().max() / expected.abs().max()
        self._checked += 1
        self.gap = max(self.gap, float(gap)) if gap <= GAP else math.inf  # what is no number is no small gap


def able(plan: Plan | None) -> bool:
    """Return whether every product of a plan is one that can be kept."""
    if plan is None or type(plan.head) is not nn.Linear:
        return False
    modules = chain.from_iterable((*b.qkv, b.out, *b.mlp_in, b.mlp_out) for b in plan.blocks)
    return all(block.through is None for block in plan.blocks) and all(map(_is_known, modules))


def room(
    order: Sequence[int], prompts: Sequence[np.ndarray], new_tokens: int, plan: Plan, tokens: int
) -> Recording | None:
    """Return a recording of so many completions, or None where they would be more than one pass of ``tokens`` reads."""
    if len(prompts) * (max(map(len, prompts)) + new_tokens) > tokens:
        return None
    return Recording(order, head=len(prompts) * new_tokens * len(next(plan.head.parameters())) <= KEEP)


def _key(prompt: np.ndarray, completion: np.ndarray) -> Key:
    return prompt.astype(np.int64).tobytes(), completion.astype(np.int64).tobytes()


def _places(starts: np.ndarray, lengths: np.ndarray) -> torch.Tensor:
    """Return the numbers of runs of this length that begin there, one run after the other."""
    return torch.from_numpy(np.concatenate([np.arange(a, a + n) for a, n in zip(starts, lengths, strict=True)]))


def _laid(made: torch.Tensor, lines: np.ndarray) -> torch.Tensor:
    """Return lines in this order; a copy, unless they stand so."""
    if np.array_equal(lines, np.arange(len(lines))):
        return made[: len(lines)]
    return made.index_select(0, torch.from_numpy(lines))


class _Known(torch.autograd.Function):
    """A linear module, perhaps with an adapter, whose output is known: y = x W' + b + scale * (x A') B'."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        output: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        down: torch.Tensor | None,
        up: torch.Tensor | None,
        scale: float,
    ) -> torch.Tensor:
        low = None if down is None else x @ down.t()
        ctx.save_for_backward(x, weight, down, up, low)
        ctx.scale = scale
        return output

    @staticmethod
    def backward(ctx: Any, d: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, down, up, low = ctx.saved_tensors
        to_x, _, to_weight, to_bias, to_down, to_up, _ = ctx.needs_input_grad
        d_x = d @ weight if to_x else None
        d_down = d_up = None
        if down is not None:
            d_low = (d @ up).mul_(ctx.scale)
            d_x = None if d_x is None else d_x.addmm_(d_low, down)
            d_down = d_low.t() @ x if to_down else None
            d_up = (d.t() @ low).mul_(ctx.scale) if to_up else None
        return (
            d_x,
            None,
            d.t() @ x if to_weight else None,
            d.sum(0) if to_bias else None,
            d_down,
            d_up,
            None,
        )


def _weights(
    module: nn.Module,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, float]:
    """Return weight [out, in], bias [out], and of an adapter down [rank, in], up [out, rank] and its scale."""
    added = added_to(module)
    base: Any = module if added is None else added.base
    weight = base.weight if type(base) is nn.Linear else base.weight.t()
    if added is None:
        return weight, base.bias, None, None, 0.0
    return weight, base.bias, added.down, added.up, added.scale


def _is_known(module: nn.Module) -> bool:
    added = added_to(module)
    base = module if added is None else added.base
    return type(base) is nn.Linear or f"{type(base).__module__}.{type(base).__name__}" == CONV1D
