"""Which modules of a model read what, found by reading a few tokens."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from steadyrl.backends.torch.products import is_linear

_LOOKS = {"__get__", "size", "dim", "numel"}  # operations that ask a tensor for something else than its numbers


@dataclass(frozen=True)
class Reads:
    """What a few tokens showed.

    Attributes:
        siblings: Groups of linear modules that read one and the same input, several in each.
        multiplied: Norms whose outputs linear modules read, and nothing else does.
    """

    siblings: list[list[nn.Module]]
    multiplied: list[nn.Module]


@torch.no_grad()
def reads_of(body: nn.Module) -> Reads:
    """Return what reads what in a model."""
    tracing = _Tracing()
    hooks, inside = [], set[int]()
    for module in body.modules():
        if id(module) in inside:
            continue
        if is_linear(module):
            inside |= {id(part) for part in module.modules()}
            hooks += [module.register_forward_pre_hook(tracing.begin), module.register_forward_hook(tracing.end)]
        elif type(module).__name__.endswith("Norm"):
            hooks.append(module.register_forward_hook(tracing.normed))
    try:
        with tracing:
            read_some(body)
    finally:
        for hook in hooks:
            hook.remove()
    return tracing.found()


@torch.no_grad()
def read_some(body: nn.Module) -> None:
    """Let a model read a few tokens; several, for the embedding of one may be zero, as a pad token's is."""
    ids = torch.arange(1, 5, device=next(body.parameters()).device)[None]
    body(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)


class _Tracing(TorchFunctionMode):
    """Notes what linear modules read, and what else happens to the outputs of norms."""

    def __init__(self) -> None:
        super().__init__()
        self._readers: dict[int, list[nn.Module]] = {}  # by the number of the tensor that they read
        self._norms: dict[int, nn.Module] = {}  # by that of their output
        self._elsewhere = set[int]()  # outputs that something else has read
        self._alive: list[Any] = []  # lest another tensor takes the number of one
        self._inside = 0

    def begin(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Note that a linear module reads."""
        self._alive.append(args[0])
        self._readers.setdefault(id(args[0]), []).append(module)
        self._inside += 1

    def end(self, *_: Any) -> None:
        """A linear module is done."""
        self._inside -= 1

    def normed(self, module: nn.Module, _: Any, output: Any) -> None:
        """Note what a norm gives."""
        self._alive.append(output)
        self._norms[id(output)] = module

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._inside and getattr(func, "__name__", "") not in _LOOKS:
            self._elsewhere |= {id(leaf) for leaf in tree_leaves((args, kwargs)) if id(leaf) in self._norms}
        return func(*args, **(kwargs or {}))

    def found(self) -> Reads:
        """Return all of it."""
        groups = self._readers.values()
        siblings = [group for group in groups if 1 < len(group) == len({id(module) for module in group})]
        calls = Counter(id(norm) for norm in self._norms.values())
        multiplied = [
            norm
            for number, norm in self._norms.items()
            if number in self._readers and number not in self._elsewhere and calls[id(norm)] == 1
        ]
        return Reads(siblings, multiplied)
