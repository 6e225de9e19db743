"""Rotations and gates of a model's layers by one kernel each, in the place of what its modules write out.

A module is changed only if our form gives what its own does, tried on two tokens. Parameters are not touched, and a
copy of the model has the same forms: what replaces a module's forward is bound to the module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from steadyrl.backends.torch.device import of_triton

ROTATION = "apply_rotary_pos_emb"  # what nearly all families of transformers call it, in the module of the family
HEADS, KV_HEADS, WIDTH = 4, 2, 16  # of the rotation that is tried


@of_triton
def layer_kernels(device: torch.device) -> ModuleType:
    """Return ``layer_kernels``, tried on a few numbers."""
    from steadyrl.backends.torch import layer_kernels

    numbers = torch.zeros(1, 1, 1, 4, device=device)
    layer_kernels.rotate(numbers, numbers, numbers[0], numbers[0])
    layer_kernels.gate(numbers, numbers)
    return layer_kernels


@torch.no_grad()
def fuse_layers(model: nn.Module) -> None:
    """Let attention rotate, and feed-forwards gate, by our kernels, on a GPU that has them."""
    weight = next(model.parameters())
    kernels = layer_kernels(weight.device)
    if kernels is None:
        return
    rotates: dict[Any, bool] = {}
    for module in model.modules():
        written: Any = type(module).forward
        if isinstance(written, FunctionType) and ROTATION in written.__code__.co_names:
            theirs: Any = written.__globals__.get(ROTATION)
            if theirs not in rotates:
                rotates[theirs] = _rotate_alike(theirs, kernels, weight)
            if rotates[theirs]:
                module.forward = MethodType(_with_rotation(written, _rotation(theirs, kernels)), module)
        elif _gates_by_silu(module):
            _let_gate(module, kernels, weight)


def round_norms(norms: Iterable[nn.Module]) -> None:
    """Let norms give what they compute in the type that autocast multiplies in, where it is on.

    For norms whose outputs are multiplied and nothing else: then it is rounded once and not for each product, and only
    one copy is kept for the way back.
    """
    for norm in norms:
        own: Any = norm.__dict__.get("forward")
        norm.forward = MethodType(_rounding(type(norm).forward if own is None else own.__func__), norm)


def _rounding(forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def rounded(self: Any, x: torch.Tensor) -> torch.Tensor:
        output, device = forward(self, x), x.device.type
        return output.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else output

    return rounded


def _rotation(theirs: Callable[..., Any], kernels: ModuleType) -> Callable[..., Any]:
    """Return a rotation by our kernel, and by the family's own function where it is asked for something else."""

    def rotate(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *args: Any, **more: Any) -> Any:
        whole = cos.dim() == 3 and cos.shape == sin.shape and cos.shape[-1] == q.shape[-1] == k.shape[-1]
        if args or more or not whole or q.dim() != 4:
            return theirs(q, k, cos, sin, *args, **more)
        return kernels.rotate(q, k, cos, sin)

    return rotate


def _rotate_alike(theirs: Any, kernels: ModuleType, like: torch.Tensor) -> bool:
    """Return whether a family's rotation is ours."""
    q, k, cos, sin = (
        torch.sin(torch.arange(float(size * 2 * WIDTH), device=like.device) * step).view(shape)
        for step, size, shape in (
            (1.0, HEADS, (1, HEADS, 2, WIDTH)),
            (0.7, KV_HEADS, (1, KV_HEADS, 2, WIDTH)),
            (0.3, 1, (1, 2, WIDTH)),  # its halves differ: a rotation of pairs beside each other would show
            (0.9, 1, (1, 2, WIDTH)),
        )
    )
    try:
        return _near(kernels.rotate(q, k, cos, sin), theirs(q, k, cos, sin))
    except (TypeError, ValueError, RuntimeError, IndexError):  # it takes something else
        return False


def _with_rotation(written: FunctionType, rotate: Callable[..., Any]) -> FunctionType:
    """Return a forward of attention that calls another rotation."""
    names = {**written.__globals__, ROTATION: rotate}
    copied = FunctionType(written.__code__, names, written.__name__, written.__defaults__, written.__closure__)
    copied.__kwdefaults__ = written.__kwdefaults__
    return copied


def _gates_by_silu(module: nn.Module) -> bool:
    parts = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    activation = getattr(module, "act_fn", None)
    return all(isinstance(part, nn.Module) for part in parts) and (
        isinstance(activation, nn.SiLU) or type(activation).__name__ == "SiLUActivation"
    )


def _let_gate(module: nn.Module, kernels: ModuleType, like: torch.Tensor) -> None:
    def gated(self: Any, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.down_proj(kernels.gate(self.gate_proj(x), self.up_proj(x)))
        return output

    own: Any = module
    width = own.gate_proj.in_features
    x = torch.sin(torch.arange(2.0 * width, device=like.device)).view(1, 2, width).to(like.dtype)
    ours = MethodType(gated, module)
    if _near([ours(x)], [own(x)]):
        own.forward = ours


def _near(ours: Any, theirs: Any) -> bool:
    """Return whether tensors agree but for rounding, as far as sums of numbers as large as the largest may."""
    return all(
        one.shape == other.shape
        and bool((one.double() - other.double()).abs().max() <= 32 * torch.finfo(other.dtype).eps * other.abs().max())
        for one, other in zip(ours, theirs, strict=True)
    )
