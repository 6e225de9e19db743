"""Rotations and gates of a model's layers by one kernel each, in the place of what its modules write out.

A module is changed only if our form gives what its own does, tried on two tokens. Parameters are not touched, and a
copy of the model has the same forms: what replaces a module's forward is bound to the module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from steadyrl.backends.torch.arithmetic import full_float32
from steadyrl.backends.torch.device import optional_kernels
from steadyrl.backends.torch.read.attention import rotated
from steadyrl.backends.torch.read.products import SUMMED, epsilon, is_linear, rms_norm, rms_norm_from_one
from steadyrl.backends.torch.read.reads import Call, watch

ROTATION = "apply_rotary_pos_emb"  # what nearly all families of transformers call it, in the module of the family
OFFSETS = {rms_norm: 0.0, rms_norm_from_one: 1.0}  # of the weights
LAYER = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
FUSED, FOLLOWING = "fused_norm", "following_norm"  # attributes of norms and layers; the latter is no part of its layer
HEADS, KV_HEADS, WIDTH = 4, 2, 16  # of the rotation that is tried


@optional_kernels
def layer_kernels(device: torch.device) -> ModuleType:
    """Return ``layer_kernels``, tried on a few numbers."""
    from steadyrl.backends.torch.kernels import layer_kernels

    numbers = torch.zeros(1, 1, 1, 4, device=device)
    layer_kernels.rotate(numbers, numbers, numbers[0], numbers[0])
    layer_kernels.gate(numbers, numbers)
    return layer_kernels


@torch.no_grad()
@full_float32()
def fuse_layers(model: nn.Module) -> None:
    """Let attention rotate, and feed-forwards gate, by our kernels, on a GPU that has them."""
    weight = next(model.parameters())
    kernels = layer_kernels(weight.device)
    if kernels is None:
        return
    rotates: dict[Any, bool] = {}
    for module in model.modules():
        forward: Any = type(module).forward
        if isinstance(forward, FunctionType) and ROTATION in forward.__code__.co_names:
            family_rotation: Any = forward.__globals__.get(ROTATION)
            if family_rotation not in rotates:
                rotates[family_rotation] = _rotate_alike(family_rotation, kernels, weight)
            if rotates[family_rotation]:
                rotate = _rotation(family_rotation, kernels, getattr(module, "layer_idx", None))
                module.forward = MethodType(_with_rotation(forward, rotate), module)
        elif _gates_by_silu(module):
            _let_gate(module, kernels, weight)


@torch.no_grad()
@full_float32()
def fuse_sums(body: nn.Module, multiplied: Sequence[nn.Module]) -> None:
    """Let layers add to the stream and compute the next norm at once, and norms round what is multiplied only once.

    A layer is changed if it is a pre-norm layer of attention and a feed-forward, tried on a few tokens: what it gives
    has to be what its own forward gave.

    Args:
        body: Of a model whose norms are quickened (see ``products``).
        multiplied: Norms whose outputs are multiplied and nothing else; they give the type of autocast where it is on.
    """
    kernels = layer_kernels(next(body.parameters()).device)
    if kernels is None:
        return
    forms = {module: getattr(module.__dict__.get("forward"), "__func__", None) for module in body.modules()}
    offsets = {module: OFFSETS[form] for module, form in forms.items() if form in OFFSETS}
    norms = {module: Norm(kernels.add_norm, module, offset, module in multiplied) for module, offset in offsets.items()}
    for module, norm in norms.items():
        module.__dict__[FUSED] = norm
        module.forward = MethodType(_as_fused, module)
    layers: list[Any] = [module for module in body.modules() if all(hasattr(module, part) for part in LAYER)]
    blocks = [block for layer in layers for block in (layer.self_attn, layer.mlp)]
    calls = watch(body, [*layers, *norms, *blocks, *filter(is_linear, body.modules())]).calls
    for call in calls:
        layer: Any = call.module
        normed = layer in layers and layer.post_attention_layernorm in norms
        if not normed or not isinstance(call.output, torch.Tensor):
            continue
        following = next((c.module for c in calls if c.module in norms and c.args[0] is call.output), None)
        layer.__dict__[FOLLOWING] = following
        before, layer.forward = layer.__dict__.get("forward"), MethodType(_pre_norm_layer, layer)
        try:
            alike = _near([layer.forward(*call.args, **call.kwargs)], [call.output])
        except (TypeError, ValueError, IndexError, AttributeError, RuntimeError):  # it is called in another way
            alike = False
        if following is not None:
            norms[following].computed = None
        if alike:
            _mark_summed(layer, calls)
        elif before is None:
            del layer.forward
        else:
            layer.forward = before


def _mark_summed(layer: Any, calls: Sequence[Call]) -> None:
    """Note the linear modules whose outputs a fused layer adds to the stream, as they come out of its two blocks."""
    for block in (layer.self_attn, layer.mlp):
        outputs = [call.output for call in calls if call.module is block]
        result = outputs[0][0] if isinstance(outputs[0], tuple) else outputs[0]
        for call in calls:
            repeats = sum(c.module is call.module for c in calls) > 1
            if is_linear(call.module) and call.output is result and not repeats:
                call.module.__dict__[SUMMED] = True


class Norm:
    """What a fused layer knows of a norm.

    Args:
        add_norm: See ``layer_kernels``.
        module: The norm.
        offset: See ``layer_kernels.add_norm``.
        multiplied: Whether its outputs are multiplied and nothing else.

    Attributes:
        forward: The norm as it was.
        computed: An input, and the output that was computed of it already.
    """

    def __init__(self, add_norm: Callable[..., Any], module: Any, offset: float, multiplied: bool):
        self._add_norm, self._offset, self._multiplied = add_norm, offset, multiplied
        self.forward: Callable[..., torch.Tensor] = module.forward.__func__
        self.computed: tuple[torch.Tensor, torch.Tensor] | None = None

    def dtype(self, module: Any) -> torch.dtype:
        """Return the type of the norm's outputs."""
        device, dtype = module.weight.device.type, module.weight.dtype
        rounds = self._multiplied and torch.is_autocast_enabled(device)
        return torch.get_autocast_dtype(device) if rounds else dtype

    def add(self, module: Any, x: torch.Tensor, branch: torch.Tensor) -> torch.Tensor:
        """Return the sum, and know its norm."""
        sums: torch.Tensor
        sums, normed = self._add_norm(x, branch, module.weight, self._offset, epsilon(module), self.dtype(module))
        self.computed = sums, normed
        return sums


def _as_fused(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Compute a norm, unless it was computed already; in the type that its readers multiply in."""
    norm: Norm = self.__dict__[FUSED]
    computed, norm.computed = norm.computed, None
    normed: torch.Tensor = computed[1] if computed is not None and computed[0] is x else norm.forward(self, x)
    return normed.to(norm.dtype(self))


def _pre_norm_layer(self: Any, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    normed = self.input_layernorm(hidden_states)
    attended = self.self_attn(*args, hidden_states=normed, **kwargs)[0]
    between = self.post_attention_layernorm
    summed = between.__dict__[FUSED].add(between, hidden_states, attended)
    output = self.mlp(between(summed))
    following = self.__dict__[FOLLOWING]
    # In training mode layers are computed again on the way back, each alone: what one knows of the next would be lost.
    if following is None or self.training:
        if output.dim() > summed.dim():
            output = output.sum(0)
        result: torch.Tensor = summed + output
        return result
    norm: Norm = following.__dict__[FUSED]
    return norm.add(following, summed, output)


def _rotation(family_rotation: Callable[..., Any], kernels: ModuleType, layer: Any) -> Callable[..., Any]:
    """Return a layer's rotation by our kernel; by the family's own function where it is asked for something else."""

    def rotate(
        q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        is_plain = cos.dim() == 3 and cos.shape == sin.shape and cos.shape[-1] == q.shape[-1] == k.shape[-1]
        if args or kwargs or not is_plain or q.dim() != 4:
            return family_rotation(q, k, cos, sin, *args, **kwargs)
        return rotated(layer, kernels.rotate, q, k, cos, sin)

    return rotate


def _rotate_alike(family_rotation: Any, kernels: ModuleType, like: torch.Tensor) -> bool:
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
        return _near(kernels.rotate(q, k, cos, sin), family_rotation(q, k, cos, sin))
    except (TypeError, ValueError, RuntimeError, IndexError):  # it takes something else
        return False


def _with_rotation(forward: FunctionType, rotate: Callable[..., Any]) -> FunctionType:
    names = {**forward.__globals__, ROTATION: rotate}
    copied = FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
    copied.__kwdefaults__ = forward.__kwdefaults__
    return copied


def _gates_by_silu(module: nn.Module) -> bool:
    projections = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    activation = getattr(module, "act_fn", None)
    return all(isinstance(projection, nn.Module) for projection in projections) and (
        isinstance(activation, nn.SiLU) or type(activation).__name__ == "SiLUActivation"
    )


def _let_gate(module: nn.Module, kernels: ModuleType, like: torch.Tensor) -> None:
    def gated(self: Any, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.down_proj(kernels.gate(self.gate_proj(x), self.up_proj(x)))
        return output

    mlp: Any = module
    width = mlp.gate_proj.in_features
    x = torch.sin(torch.arange(2.0 * width, device=like.device)).view(1, 2, width).to(like.dtype)
    ours = MethodType(gated, module)
    if _near([ours(x)], [mlp(x)]):
        mlp.forward = ours


def _near(actual: Any, expected: Any) -> bool:
    """Return whether tensors agree but for rounding, as far as sums of numbers as large as the largest may.

    Zeros agree with nothing: they show nothing.
    """
    return all(
        a.shape == b.shape
        and bool(b.any())
        and bool((a.double() - b.double()).abs().max() <= 32 * torch.finfo(b.dtype).eps * b.abs().max())
        for a, b in zip(actual, expected, strict=True)
    )
