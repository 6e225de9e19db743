"""What the sampler multiplied, kept for the pass of the update: under the same weights the products are the same.

Reading rows again is a third of an update. Where a single update follows, what the linear modules gave is therefore
kept while completions are drawn. The update's pass computes all that lies between the products itself, and one token
in sixteen of each product too, other ones in every product. So a sampler that computes something else is found out,
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
from steadyrl.backends.torch.families import Function, Plan
from steadyrl.backends.torch.head import KEEP
from steadyrl.backends.torch.packed import Packed
from steadyrl.backends.torch.products import CONV1D
from steadyrl.types import Batch, Completion

HEAD = "head"
PART = 16  # one token in so many is multiplied again
# Relative to the largest number of a product: rounding gives 1e-6 to 1e-5, whatever is wrong gives far more.
GAP = 1e-4

Name = tuple[int, str] | str  # (layer, product), or the head
Key = tuple[bytes, bytes]
# Of each pass: where its lines go, and which they are; None for all of them in order, or the first.
Moves = list[tuple[torch.Tensor, torch.Tensor | None]]


class Recording:
    """Outputs of a decoder's products, pass by pass: first the prompts, then one token of each row that is left.

    Args:
        head: Whether logits are kept too.
    """

    def __init__(self, head: bool):
        self._head = head
        self._made: dict[Name, list[torch.Tensor]] = {}
        self._left: dict[int, int] = {}  # by row, the first pass that did not read it
        self._width = 0
        self._lines: dict[Key, tuple[np.ndarray, np.ndarray]] = {}

    def watch(self, name: Name, product: Function) -> Function:
        """Return a product that is kept."""
        if name == HEAD and not self._head:
            return product
        made = self._made.setdefault(name, [])

        def watched(x: torch.Tensor) -> torch.Tensor:
            made.append(product(x))
            return made[-1]

        return watched

    def leave(self, rows: Sequence[int]) -> None:
        """Note that the next pass does not read these rows."""
        self._left.update(dict.fromkeys(rows, len(self._made[0, "qkv"])))

    def finish(
        self, prompts: Sequence[np.ndarray], which: Sequence[int], drawn: Sequence[Completion], width: int
    ) -> None:
        """Note what was drawn.

        Args:
            prompts: Token ids of each row.
            which: Number of each row's prompt among those that were read.
            drawn: The completions.
            width: Tokens that a prompt was padded to, on the left.
        """
        self._width = width
        places: list[list[int]] = [[] for _ in prompts]
        for number in range(1, len(self._made[0, "qkv"])):
            for place, row in enumerate(row for row in range(len(prompts)) if self._left[row] > number):
                places[row].append(place)
        for row, (prompt, completion) in enumerate(zip(prompts, drawn, strict=True)):
            read = len(completion.ids) - 1  # nothing was drawn from the last token
            steps = [*range(which[row] * width + width - len(prompt), (which[row] + 1) * width), *places[row][:read]]
            passes = [0] * len(prompt) + list(range(1, read + 1))
            self._lines[_key(prompt, completion.ids)] = np.array(passes), np.array(steps)

    def of(self, part: Batch, packed: Packed) -> Recorded | None:
        """Return what was kept of the tokens of packed rows, once; None where some of them were not drawn here."""
        if not self._made:
            return None
        passes, places = np.full((2, *part.tokens.shape), -1)
        for row, (tokens, mask) in enumerate(zip(part.tokens, part.completion_mask, strict=True)):
            inside = np.flatnonzero(mask)
            start, end = (inside[0], inside[-1] + 1) if len(inside) else (0, 0)
            known = self._lines.get(_key(tokens[:start], tokens[start:end]))
            if known is None:
                return None
            passes[row, : end - 1], places[row, : end - 1] = known
        rows, columns = np.nonzero(part.completion_mask)
        at, place = passes[rows, columns - 1], places[rows, columns - 1]
        made, self._made = self._made, {}
        return Recorded(
            made,
            _moves(passes.ravel()[packed.source], places.ravel()[packed.source]),
            _moves(at, np.where(at == 0, place // self._width, place)),  # of prompts, the last token alone has logits
        )


class Recorded:
    """Outputs of products for the tokens of one batch, in its order.

    Attributes:
        gap: By how much the trainer's products differ at most, relative to the largest number of each.
    """

    def __init__(self, made: dict[Name, list[torch.Tensor]], moves: Moves, head_moves: Moves):
        self._made, self._moves, self._head_moves = made, moves, head_moves
        self.gap, self._checked = 0.0, 0

    def multiply(self, layer: int, name: str, modules: Sequence[nn.Module], x: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the outputs of modules for x [K, in], without their products; the way back is theirs."""
        joined = _laid(self._made.pop((layer, name)), self._moves)
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
        found = _laid(self._made.pop(HEAD), self._head_moves)
        self._check(head, hidden, found)
        return found

    @torch.no_grad()
    def _check(self, module: nn.Module, x: torch.Tensor, output: torch.Tensor) -> None:
        some = slice(self._checked % min(PART, len(x)), None, PART)
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


def room(prompts: Sequence[np.ndarray], new_tokens: int, plan: Plan, tokens: int) -> Recording | None:
    """Return a recording of so many completions, or None where they would be more than one pass of ``tokens`` reads."""
    if len(prompts) * (max(map(len, prompts)) + new_tokens) > tokens:
        return None
    return Recording(head=len(prompts) * new_tokens * len(next(plan.head.parameters())) <= KEEP)


def _key(prompt: np.ndarray, completion: np.ndarray) -> Key:
    return prompt.astype(np.int64).tobytes(), completion.astype(np.int64).tobytes()


def _moves(passes: np.ndarray, places: np.ndarray) -> Moves:
    """Return the moves that lay lines in order, of each line the pass [n] and the place in it [n]."""
    found: Moves = []
    for number in range(int(passes.max(initial=-1)) + 1):
        to = np.flatnonzero(passes == number)
        lines = None if np.array_equal(places[to], np.arange(len(to))) else torch.from_numpy(places[to])
        found.append((torch.from_numpy(to), lines))
    return found


def _laid(made: list[torch.Tensor], moves: Moves) -> torch.Tensor:
    """Return lines of all passes in one matrix; a pass is dropped when it was read."""
    found = made[0].new_empty(sum(len(to) for to, _ in moves), made[0].shape[1])
    for to, lines in moves:
        of_pass = made.pop(0)
        found.index_copy_(0, to, of_pass[: len(to)] if lines is None else of_pass[lines])
    return found


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
