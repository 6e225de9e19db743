"""Linear modules and norms of a model as few kernels, in the place of what its modules do by themselves.

On a CPU the products of a few rows with a large matrix are what takes the time of decoding, and a plain linear layer
reaches a third of the machine's rate there. So for the length of one call (``laid_out``) the weights are laid out once
more in the blocked form of oneDNN; the copies are dropped at the end. On other devices they are copied where they are
multiplied in another type than they are kept in.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from steadyrl.backends.torch.device import lays_blocks

Function = Callable[[torch.Tensor], torch.Tensor]

CONV1D = "transformers.pytorch_utils.Conv1D"  # GPT-2's linear modules: weights [in, out]
ADAPTED = "peft.tuners.lora.layer.Linear"
SUMMED = "summed"  # attribute of linear modules whose outputs are added to the stream by ``layer_kernels.add_norm``


@contextmanager
def laid_out(
    body: nn.Module,
    rows: int,
    dtype: torch.dtype,
    siblings: Sequence[Sequence[nn.Module]] = (),
    kernels: ModuleType | None = None,
) -> Iterator[None]:
    """Let the linear modules of a model multiply about so many rows quickly; weights must not change inside.

    Args:
        body: The model without its head.
        rows: About as many as are multiplied at once.
        dtype: That matrices are multiplied in.
        siblings: See ``Reads``.
        kernels: ``decoding_kernels``, where it runs.
    """
    changed: list[tuple[nn.Module, Any]] = []
    replaced: set[int] = set()  # ids of modules, and of those inside them, that multiply in another way already

    def replace_forward(module: nn.Module, forward: Any) -> None:
        replaced.update(id(child) for child in module.modules())
        changed.append((module, module.__dict__.get("forward")))
        module.forward = forward

    blocks = lays_blocks(next(body.parameters()).device, dtype)  # of oneDNN
    try:
        for group in siblings:
            for module, forward in joined(group, dtype):
                replace_forward(module, forward)
        for module in body.modules():
            if id(module) in replaced:
                continue
            if kernels is not None and SUMMED in module.__dict__ and (multiply := in_parts(module, dtype, kernels)):
                replace_forward(module, multiply)
            elif not blocks:
                for linear, forward in joined([module], dtype):
                    replace_forward(linear, forward)
            elif (multiply := product(module, rows, dtype)) is not None:
                replace_forward(module, _of_any_shape(multiply))
        yield
    finally:
        for module, old_forward in changed:
            if old_forward is None:
                del module.forward
            else:
                module.forward = old_forward


def joined(group: Sequence[nn.Module], dtype: torch.dtype) -> Iterator[tuple[nn.Module, Any]]:
    """Yield each of some modules that read the same input with a forward that takes its part of one product for all.

    The first that is called multiplies, and the others take what is left of it.
    """
    pairs = [pair for module in group if (pair := weights_of(module)) is not None]
    if len(pairs) < len(group):  # quantised, or no linear module
        return
    weight = _concatenated([weight.detach().to(dtype) for weight, _ in pairs])  # [out of all, in]
    biases = None
    if any(bias is not None for _, bias in pairs):
        biases = _concatenated([(w.new_zeros(len(w)) if b is None else b.detach()).to(dtype) for w, b in pairs])
    product, end = Joined(weight, biases, len(group)), 0
    for module, (weight_part, _) in zip(group, pairs, strict=True):
        start, end = end, end + len(weight_part)
        yield module, partial(product.part, slice(start, end))


class Joined:
    """One product for several modules that read the same input.

    Args:
        weight: [out, in] of all of them.
        bias: [out], or None.
        module_count: How many modules there are.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, module_count: int):
        self._weight, self._bias, self._module_count = weight, bias, module_count
        self._input: torch.Tensor | None = None
        self._outputs, self._left = weight, 0

    def part(self, columns: slice, x: torch.Tensor) -> torch.Tensor:
        """Return what a module gives for an input [..., in]: a view of the outputs of all, made once for each input."""
        if x is not self._input or self._left == 0:
            self._outputs = F.linear(x.to(self._weight.dtype), self._weight, self._bias)
            self._input, self._left = x, self._module_count
        self._left -= 1
        outputs = self._outputs
        if self._left == 0:  # all have taken theirs: nothing is kept
            self._input, self._outputs = None, self._weight
        return outputs if self._module_count == 1 else outputs[..., columns]


def _concatenated(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    # One alone is not copied: it may be the very weights that train.
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


def product(module: nn.Module, rows: int, dtype: torch.dtype) -> Function | None:
    """Return a function that applies a linear module to inputs [n, in], about so many rows; None for another kind."""
    pair = weights_of(module)
    if pair is None:  # quantised, or no linear module
        return None
    weight, bias = pair[0], None if pair[1] is None else pair[1].to(dtype)
    if lays_blocks(weight.device, dtype):
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.to(dtype).contiguous(), rows)
        multiply = torch.ops.mkldnn._linear_pointwise
        return lambda x: multiply(x.to(dtype), packed, bias, "none", [], "")
    weight = weight.to(dtype)  # the very weights that train, where they are of this type
    return lambda x: F.linear(x.to(dtype), weight, bias)


def in_parts(module: nn.Module, dtype: torch.dtype, kernels: ModuleType) -> Function | None:
    """Return the forward of a linear module that gives parts of its outputs; see ``decoding_kernels.product_parts``."""
    pair = weights_of(module)
    if pair is None:
        return None
    weight, bias = pair[0].detach().to(dtype).contiguous(), None if pair[1] is None else pair[1].detach().to(dtype)

    def multiply(x: torch.Tensor) -> torch.Tensor:
        if not kernels.in_parts(weight, x.numel() // x.shape[-1]):
            return F.linear(x.to(dtype), weight, bias)
        partials: torch.Tensor = kernels.product_parts(x.to(dtype), weight, bias)
        return partials

    return multiply


def _of_any_shape(multiply: Function) -> Function:
    return lambda x: multiply(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)


def _type_name(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__name__}"


def is_linear(module: nn.Module) -> bool:
    """Return whether a module multiplies by one matrix, perhaps with an adapter."""
    return type(module) is nn.Linear or _type_name(module) in {CONV1D, ADAPTED}


def weights_of(module: nn.Module) -> tuple[torch.Tensor, torch.Tensor | None] | None:
    """Return (weight [out, in], bias [out]) of a linear module, an adapter added in; None for anything else."""
    if type(module) is nn.Linear:
        return module.weight, module.bias
    name = _type_name(module)
    if name == CONV1D:
        conv: Any = module
        return conv.weight.t(), conv.bias
    if name == ADAPTED:
        adapted: Any = module
        inner = weights_of(adapted.base_layer)
        if inner is None or adapted.disable_adapters or len(adapted.active_adapters) != 1:
            return None
        added = added_to(module)
        if added is not None and type(added.base) is nn.Linear and added.down.dtype == inner[0].dtype:
            return inner[0].clone().addmm_(added.up, added.down, alpha=added.scale), inner[1]  # no autocast in place
        delta = adapted.get_delta_weight(adapted.active_adapters[0])
        if type(adapted.base_layer) is not nn.Linear:
            delta = delta.t()  # get_delta_weight answers in the layout of the layer it adapts
        return inner[0] + delta, inner[1]
    return None


@torch.no_grad()
def quicken(model: nn.Module) -> None:
    """Let the norms and adapters of a model take few kernels; what is not computed alike stays as it is."""
    for module in model.modules():
        name = _type_name(module)
        if name == ADAPTED:
            module.forward = MethodType(_adapted, module)
        elif name.endswith("RMSNorm") and (forward := _fused_norm(module)):
            # Bound to its module, so that a copy of the model has norms of its own.
            module.forward = MethodType(forward, module)


def _fused_norm(module: nn.Module) -> Callable[..., torch.Tensor] | None:
    """Return the fused form of a norm over the root of the mean square, tried on two tokens; None if it has none."""
    norm: Any = module
    weight = getattr(norm, "weight", None)
    alone = len(inspect.signature(type(module).forward).parameters) == 2  # others take a gate, too
    if not alone or weight is None or weight.dim() != 1 or type(module).__module__.startswith("torch."):
        return None
    x = torch.sin(torch.arange(2.0 * len(weight), device=weight.device)).view(2, -1)
    x = (x * torch.tensor([[1.0], [1e-3]], device=weight.device)).to(weight.dtype)  # epsilon shows in the second
    expected = norm(x).float()
    near = 1e-5 if weight.dtype == torch.float32 else 4 * torch.finfo(weight.dtype).eps
    return next(
        (form for form in (rms_norm, rms_norm_from_one)
         if torch.allclose(form(module, x).float(), expected, rtol=near, atol=1e-7)), None
    )  # fmt: skip


def rms_norm(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Compute a norm over the root of the mean square, as the forward of its module."""
    return F.rms_norm(x.to(self.weight.dtype), self.weight.shape, self.weight, epsilon(self))


def rms_norm_from_one(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Compute the norm of Gemma, whose weight is the distance from 1."""
    return F.rms_norm(x.to(self.weight.dtype), self.weight.shape, self.weight + 1.0, epsilon(self))


def epsilon(norm: Any) -> float:
    """Return what a norm adds to the mean square."""
    return float(norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps)


def _adapted(self: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Compute a linear module with a plain adapter: its second product adds to the first, without passes of its own."""
    adapter = added_to(self)
    flat = x.reshape(-1, x.shape[-1])  # [n, in]
    low = None if adapter is None else F.linear(flat, adapter.down.to(x.dtype))  # peft would copy x for every module
    if adapter is None or low is None or args or kwargs:
        output: torch.Tensor = type(self).forward(self, x, *args, **kwargs)
        return output
    base: torch.Tensor = adapter.base(flat)
    if base.dtype == low.dtype:
        base = base.addmm_(low, adapter.up.t().to(low.dtype), alpha=adapter.scale)
    else:
        base = base + adapter.scale * F.linear(low, adapter.up.to(low.dtype))
    return base.view(*x.shape[:-1], -1)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which matrices are multiplied in the type they have."""
    return torch.autocast(device.type, enabled=False) if torch.is_autocast_enabled(device.type) else nullcontext()


@dataclass(frozen=True)
class Added:
    """What one plain adapter adds to x @ base.weight.T: scale * x @ down.T @ up.T."""

    base: nn.Module
    down: torch.Tensor  # [rank, in]
    up: torch.Tensor  # [out, rank]
    scale: float  # alpha over the rank


def added_to(module: nn.Module) -> Added | None:
    """Return what the adapter around a module adds, or None where there is none, or not a single plain one."""
    layer: Any = module
    if _type_name(layer) != ADAPTED or layer.disable_adapters or layer.merged or len(layer.active_adapters) != 1:
        return None
    adapter = layer.active_adapters[0]
    down, up = layer.lora_A[adapter], layer.lora_B[adapter]
    plain = adapter not in layer.lora_variant and type(layer.lora_dropout[adapter]) is nn.Identity
    if not plain or up.bias is not None:
        return None
    return Added(layer.base_layer, down.weight, up.weight, layer.scaling[adapter])
