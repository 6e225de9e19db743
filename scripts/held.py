"""Modes of PyTorch for ``memory``: one counts what tensors hold, the other makes products in bfloat16 quick."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

_aten = torch.ops.aten
PRODUCTS = {
    _aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten.matmul, _aten.linear, _aten.scaled_dot_product_attention,
    _aten._scaled_dot_product_flash_attention_for_cpu, _aten._scaled_dot_product_flash_attention_for_cpu_backward,
}  # fmt: skip


class Held(TorchDispatchMode):
    """Counts the bytes of tensors that were made in it, each storage once.

    Attributes:
        now: Of those that are alive.
        most: At most, since it was last set.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute, and count what comes out."""
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor):
                self._add(tensor)
        return found

    def _add(self, tensor: torch.Tensor) -> None:
        opaque = tensor.layout == torch._mkldnn  # type: ignore[attr-defined]  # blocks of oneDNN
        kept: Any = tensor if opaque else tensor.untyped_storage()
        if id(kept) in self._known:
            return
        size = tensor.numel() * tensor.element_size() if opaque else kept.nbytes()
        self._known.add(id(kept))
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(kept, self._drop, id(kept), size)

    def _drop(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


class Widened(TorchDispatchMode):
    """Computes products of bfloat16 matrices in float32, and rounds what comes out.

    A processor without AVX-512 takes hundreds of times as long for them. What goes in and comes out is as large.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute."""
        kwargs = kwargs or {}
        if func.overloadpacket not in PRODUCTS or not any(map(_is_rounded, tree_leaves(args))):
            return func(*args, **kwargs)
        wide = func(*tree_map(_wide, args), **tree_map(_wide, kwargs))
        if func.overloadpacket is _aten._scaled_dot_product_flash_attention_for_cpu:
            return wide[0].bfloat16(), *wide[1:]  # the rest is logarithms, which are float32 anyway
        return tree_map(lambda x: x.bfloat16() if isinstance(x, torch.Tensor) else x, wide)


def _is_rounded(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype == torch.bfloat16


def _wide(x: Any) -> Any:
    return x.float() if _is_rounded(x) else x
