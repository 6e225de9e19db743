"""Which modules of a model read what, found by reading a few tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from steadyrl.backends.torch.read.products import is_linear

_LOOKS = {"__get__", "size", "dim", "numel"}  # operations that ask a tensor for something else than its numbers


@dataclass(frozen=True)
class Reads:
    """What a few tokens showed."""

    siblings: list[list[nn.Module]]  # groups of linear modules that read one and the same input, several in each
    multiplied: list[nn.Module]  # norms whose outputs linear modules read, and nothing else does


@dataclass(frozen=True)
class Call:
    """A module's inputs and its output."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any


class Watch(TorchFunctionMode):
    """The calls of some modules, and what reads their outputs while this is entered; see ``watch``.

    Attributes:
        calls: In the order in which they end. They keep their tensors, so that no later one has the number of another.
        read_elsewhere: Numbers of the outputs that anything but a linear module reads.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.read_elsewhere: set[int] = set()
        self._outputs: set[int] = set()
        self._in_linear = 0

    def hook(self, module: nn.Module) -> Iterator[RemovableHandle]:
        """Note the calls of a module."""
        yield module.register_forward_hook(self._ended, with_kwargs=True)

        def linear_begins(*_: Any) -> None:
            self._in_linear += 1

        if is_linear(module):
            yield module.register_forward_pre_hook(linear_begins)

    def _ended(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self._in_linear -= is_linear(module)
        self.calls.append(Call(module, args, kwargs, output))
        self._outputs.add(id(output))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._in_linear and getattr(func, "__name__", "") not in _LOOKS:
            self.read_elsewhere |= self._outputs & {id(leaf) for leaf in tree_leaves((args, kwargs))}
        return func(*args, **(kwargs or {}))


def watch(body: nn.Module, modules: Iterable[nn.Module]) -> Watch:
    """Let a model read a few tokens, and return how it calls some of its modules."""
    watching = Watch()
    hooks = [hook for module in modules for hook in watching.hook(module)]
    # Several tokens, for the embedding of one may be zero, as a pad token's is.
    ids = torch.arange(1, 5, device=next(body.parameters()).device)[None]
    try:
        with watching:
            body(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return watching


@torch.no_grad()
def reads_of(body: nn.Module) -> Reads:
    """Return what reads what in a model."""
    modules, inside = list[nn.Module](), set[nn.Module]()
    for module in body.modules():
        if module not in inside and is_linear(module):
            inside.update(module.modules())
            modules.append(module)
        elif module not in inside and type(module).__name__.endswith("Norm"):
            modules.append(module)
    watching = watch(body, modules)
    readers: dict[int, list[nn.Module]] = {}  # by the number of the tensor that they read
    for call in watching.calls:
        if is_linear(call.module):
            readers.setdefault(id(call.args[0]), []).append(call.module)
    times = Counter(call.module for call in watching.calls)
    multiplied = [
        call.module
        for call in watching.calls
        if not is_linear(call.module) and id(call.output) in readers.keys() - watching.read_elsewhere
        and times[call.module] == 1
    ]  # fmt: skip
    return Reads([group for group in readers.values() if 1 < len(group) == len(set(group))], multiplied)
