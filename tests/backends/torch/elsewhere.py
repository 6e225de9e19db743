"""Tensors that say they are on a CUDA device, and compute on the CPU: what is mixed up between the two is an error.

PyTorch's own fake tensors do not do for this: on a build without CUDA indexing one of device "cuda" and its backward
pass fail, for both look for the device. These say where they are in Python alone, so that they have values as well.
"""

from contextlib import contextmanager, nullcontext

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map

DEVICE = torch.device("cuda", 0)
_aten = torch.ops.aten
# What makes the host wait until the device is done: a number, or a size that depends on numbers.
WAITS = {
    _aten._local_scalar_dense, _aten.nonzero, _aten.masked_select, _aten.is_nonzero, _aten.equal, _aten.bincount,
    _aten.unique_dim, _aten._unique2, _aten.unique_consecutive, _aten.repeat_interleave,
}  # fmt: skip
# What real tensors of both may meet in.
BOTH = {_aten.copy_, _aten._to_copy}


class MixedDevicesError(AssertionError):
    """A tensor of the CPU met one of the device."""


class Elsewhere(torch.Tensor):
    """A tensor of the device; ``held`` holds its numbers."""

    @staticmethod
    def __new__(cls, real):
        return torch.Tensor._make_wrapper_subclass(
            cls, real.shape, strides=real.stride(), storage_offset=real.storage_offset(), dtype=real.dtype,
            layout=real.layout, requires_grad=False,
        )  # fmt: skip

    def __init__(self, real):
        self.held = real

    __torch_function__ = torch._C._disabled_torch_function_impl

    @property
    def device(self):
        return DEVICE

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        _look_at(func, args, kwargs)
        found = func(*tree_map(_real, args), **tree_map(_real, kwargs))
        # A view of what was made outside of inference mode is no tensor of it either.
        outside = func.is_view and not args[0].is_inference()
        with torch.inference_mode(False) if outside else nullcontext():
            return return_and_correct_aliasing(func, args, kwargs, tree_map(_sent, found))


class Pretend(TorchFunctionMode):
    """Puts there what is asked to be on the device, and brings back what is asked for by the host.

    Attributes:
        waits: What made the host wait for the device, by name, in order.
    """

    def __init__(self):
        super().__init__()
        self.waits = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in {"cpu", "tolist", "numpy"} and isinstance(args[0], Elsewhere):
            if name == "numpy":
                raise MixedDevicesError("numpy() of a tensor of the device")
            self.waits.append(name)
            return getattr(args[0].detach().held, name)()
        places = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.device)]
        if not places:
            return func(*args, **kwargs)
        if name == "to" and isinstance(args[0], Elsewhere):
            rest = [x for x in args[1:] if not isinstance(x, torch.device)]
            kwargs.pop("device", None)
            if places[0].type == DEVICE.type:
                return args[0].to(*rest, **kwargs) if rest or kwargs else args[0]
            self.waits.append("to")
            return args[0].held.to(*rest, **kwargs)
        here = torch.device("cpu")
        args = [here if isinstance(x, torch.device) else x for x in args]
        found = func(*args, **{key: here if isinstance(x, torch.device) else x for key, x in kwargs.items()})
        return _sent(found) if places[0].type == DEVICE.type else found


@contextmanager
def pretended():
    """Let the device be there; yield the list of what made the host wait for it."""
    with Pretend() as mode:
        _waits.append(mode.waits)
        try:
            yield mode.waits
        finally:
            _waits.pop()


def move(backend):
    """Move a backend of the CPU to the device, with a new optimizer; a reference that is kept on the CPU stays."""
    frozen = None if backend.reference is None else backend.reference.model
    modules = [m for m in (backend.model, frozen, backend.value_head) if m is not None]
    staying = set(frozen.modules()) if frozen is not None and backend._own.reference == "cpu" else ()
    for module in (part for whole in modules for part in whole.modules()):
        for name, parameter in module._parameters.items():
            if parameter is not None and not isinstance(parameter, Elsewhere) and module not in staying:
                _move(module, name, parameter, modules)
        for name, buffer in module._buffers.items():
            module._buffers[name] = _sent(buffer)
    backend.device = DEVICE
    backend.begin_training(0.0)


def _move(module, name, parameter, modules):
    """Put a tensor of the device in the place of a parameter, wherever it is tied to."""
    sent = torch.nn.Parameter(Elsewhere(parameter.detach()), requires_grad=parameter.requires_grad)
    for part in (part for whole in modules for part in whole.modules()):
        for other, value in part._parameters.items():
            if value is parameter:
                part._parameters[other] = sent


_waits = []


def _look_at(func, args, kwargs):
    packet = func.overloadpacket
    tensors = [x for x in _flat((args, kwargs)) if isinstance(x, torch.Tensor)]
    plain = [x for x in tensors if not isinstance(x, Elsewhere) and x.dim()]
    if plain and packet not in BOTH:
        raise MixedDevicesError(f"{func}: a tensor of the CPU, {list(plain[0].shape)}, beside one of the device")
    by_mask = packet in {_aten.index, _aten.index_put, _aten.index_put_, _aten._index_put_impl_} and any(
        isinstance(x, torch.Tensor) and x.dtype == torch.bool for x in args[1]
    )
    if _waits and (by_mask or packet in WAITS):
        _waits[-1].append(str(func))


def _flat(tree):
    return torch.utils._pytree.tree_leaves(tree)


def _real(x):
    return x.held if isinstance(x, Elsewhere) else x


def _sent(x):
    return Elsewhere(x) if isinstance(x, torch.Tensor) and not isinstance(x, Elsewhere) else x
