"""A CUDA device that is not there: tensors that say they are on it and compute on the CPU, in the arithmetic of a GPU.

``pretended()`` lets ``device = "cuda"`` and "auto" find it, so that a backend is built on it as a user's is. It shows
what a CPU hides:

- what is mixed up between the two devices is an error, a fused optimizer's count of steps among it;
- products of float32 are rounded as TF32 is where the switches of the process allow it and there are several rows:
  which kernel multiplies depends on the shapes, so that one row comes out otherwise beside others;
- torch.autocast casts what it casts on CUDA, by the lists in the installed PyTorch's own header;
- what adds by atomics on a GPU adds in another order on every call, unless deterministic algorithms are asked for;
- a captured graph replays what was captured: numbers that Python knew then stay as they were, and memory that it did
  not take itself must still belong to somebody;
- whatever makes the host wait for the device is noted, with the line of ours that did it.

PyTorch's own fake tensors do not do for this: on a build without CUDA indexing one of device "cuda" and its backward
pass fail, for both look for the device. These say where they are in Python alone, so that they have values as well.
"""

import functools
import re
import sys
import weakref
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import return_and_correct_aliasing

from steadyrl.backends.torch import arithmetic, device

DEVICE = torch.device("cuda", 0)
PACKAGE = f"{Path(__file__).parents[3] / 'steadyrl'}/"
_aten = torch.ops.aten
# What makes the host wait until the device is done: a number, or a size that depends on numbers.
WAITS = {
    _aten._local_scalar_dense, _aten.nonzero, _aten.masked_select, _aten.is_nonzero, _aten.equal, _aten.bincount,
    _aten.unique_dim, _aten._unique2, _aten.unique_consecutive, _aten.repeat_interleave,
    _aten.isin,  # of more than a few elements, which it sorts
}  # fmt: skip
# What real tensors of both may meet in.
BOTH = {_aten.copy_, _aten._to_copy}
# What takes no number of the CPU either, though it is none of a tensor with dimensions.
FUSED = {_aten._fused_adamw_, _aten._fused_adam_, _aten._fused_sgd_}
# Which arguments of a product of matrices are multiplied; what else there is, is added in float32.
PRODUCTS = dict.fromkeys((_aten.mm, _aten.bmm, _aten.mv), slice(2)) | dict.fromkeys(
    (_aten.addmm, _aten.addmm_, _aten.baddbmm, _aten.baddbmm_, _aten.addmv), slice(1, 3)
)
# What writes to chosen places, what reads them too, and what adds to them in any order.
PUT = {_aten.index_put, _aten.index_put_, _aten._index_put_impl_}
INDEXED = {_aten.index, _aten.index_put, _aten.index_put_}
ATOMIC = PUT | {
    _aten.index_add, _aten.index_add_, _aten.scatter_add, _aten.scatter_add_, _aten.embedding_dense_backward,
}  # fmt: skip
CONVOLUTIONS = {_aten.convolution: slice(2), _aten.convolution_backward: slice(3)}
TO_HOST = {"cpu", "tolist", "numpy", "item", "__int__", "__float__", "__bool__", "__index__"}
FEW_ROWS = 4  # fewer are multiplied exactly
TF32_REST = 13  # bits of float32's mantissa that TF32 lacks


class Kind(NamedTuple):
    """What the stand-in has to know of an operation, looked up once: PyTorch computes their hashes in Python."""

    packet: Any
    product: slice | None
    convolution: slice | None
    atomic: bool
    puts: bool
    indexes: bool
    meets: bool
    waits: bool
    fused: bool
    aliases: bool


@functools.cache
def kind_of(func):
    """Return the kind of an operation."""
    packet, schema = func.overloadpacket, func._schema
    return Kind(
        packet,
        PRODUCTS.get(packet),
        CONVOLUTIONS.get(packet),
        packet in ATOMIC,
        packet in PUT,
        packet in INDEXED,
        packet in BOTH,
        # Of a number that the host knows nothing is counted.
        packet in WAITS and func is not _aten.repeat_interleave.self_int,
        packet in FUSED,
        any(x.alias_info is not None for x in (*schema.arguments, *schema.returns)),
    )


class MixedDevicesError(AssertionError):
    """A tensor of the CPU met one of the device."""


@dataclass(frozen=True)
class Wait:
    """The host waited for the device.

    Attributes:
        operation: What it waited in.
        place: Module and function of ours that called it.
    """

    operation: str
    place: str


@dataclass
class Standin:
    """A device while it is pretended.

    Attributes:
        tf32: Whether it has TF32.
        autocast: Whether it casts as CUDA does; else nothing is cast.
        any_order: Whether atomics add in any order.
        waits: What made the host wait, in order.
        replays: How many waits there were before each replay of a graph.
        rounded: How many products were rounded as TF32 is.
        casts: How many operations autocast changed the arguments of.
        present: The card that was made the present one; None before.
        capture_modes: What each capture asked of other threads.
    """

    tf32: bool
    autocast: bool
    any_order: bool

    def __post_init__(self):
        self.waits, self.replays, self.rounded, self.casts, self.captured = [], [], 0, 0, None
        self.present, self.capture_modes = None, []
        self._order = torch.Generator().manual_seed(5)

    def wait(self, operation):
        assert self.captured is None, f"{operation} waits for the device while a graph is captured"
        self.waits.append(Wait(operation, _place()))

    def compute(self, func, args, kwargs):
        """Return what an operation gives for tensors of the CPU, in the arithmetic of the device."""
        kind = kind_of(func)
        if self.tf32 and (factors := _in_tf32(kind, args)):
            self.rounded += 1
            args = (*args[: factors.start or 0], *map(as_tf32, args[factors]), *args[factors.stop :])
        if kind.packet is _aten.histc and not args[0].is_floating_point():  # a CPU counts no whole numbers
            return func(args[0].float(), *args[1:], **kwargs).to(args[0].dtype)
        if kind.atomic and self.any_order and not torch.are_deterministic_algorithms_enabled():
            args = self._shuffled(kind, args)
        return func(*args, **kwargs)

    @staticmethod
    def bytes():
        """Return how much memory of the device is in use."""
        storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in list(_alive.values())}
        return sum(storages.values())

    def _shuffled(self, kind, args):
        packet = kind.packet
        if packet in {_aten.index_add, _aten.index_add_}:
            start, dim, index, source = args
            order = self._permutation(len(index))
            return start, dim, index[order], source.index_select(dim, order)
        if packet in {_aten.scatter_add, _aten.scatter_add_}:
            start, dim, index, source = args
            order = self._permutation(index.shape[dim])
            source = source.narrow(dim, 0, index.shape[dim])
            return start, dim, index.index_select(dim, order), source.index_select(dim, order)
        if kind.puts and (args[3:4] == (True,)):
            start, indices, values, *rest = args
            if all(i is None or i.shape == indices[0].shape for i in indices) and indices[0].dim() == 1:
                order = self._permutation(len(indices[0]))
                values = values[order] if values.dim() and len(values) == len(order) else values
                return start, [i if i is None else i[order] for i in indices], values, *rest
        if packet is _aten.embedding_dense_backward:
            gradient, ids, *rest = args
            order = self._permutation(ids.numel())
            return gradient.flatten(0, -2)[order], ids.flatten()[order], *rest
        return args

    def _permutation(self, count):
        return torch.randperm(count, generator=self._order)


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
        _alive[id(self)] = self

    __torch_function__ = torch._C._disabled_torch_function_impl

    @property
    def device(self):
        return DEVICE

    is_cuda, is_cpu = True, False

    def data_ptr(self):
        return self.held.data_ptr()

    def untyped_storage(self):
        return self.held.untyped_storage()

    def __deepcopy__(self, memo):
        copied = Elsewhere(self.held.clone())
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, requires_grad=self.requires_grad)
        return memo.setdefault(id(self), copied)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = given = kwargs or {}
        standin = _here[-1] if _here else Standin(tf32=False, autocast=False, any_order=False)
        kind = kind_of(func)
        if not kwargs and FLAT.issuperset(map(type, args)):  # most operations: nothing to look through
            real_args = tuple([x.held if type(x) is Elsewhere else x for x in args])
            if kind.waits:
                standin.wait(str(func))
        else:
            _look_at(standin, func, kind, args, kwargs)
            real_args, kwargs = tree_map(_real, args), tree_map(_real, kwargs)
        found = standin.compute(func, real_args, kwargs)
        if standin.captured is not None:
            standin.captured.append((functools.partial(standin.compute, func, real_args, kwargs), found))
        # A view of what was made outside of inference mode is no tensor of it either.
        outside = func.is_view and not args[0].is_inference()
        with torch.inference_mode(False) if outside else nullcontext():
            sent = tree_map(_sent, found)
            return return_and_correct_aliasing(func, args, given, sent) if kind.aliases else sent


# Types of what an operation is given that hold no tensor of the CPU.
FLAT = {Elsewhere, int, float, bool, type(None), torch.dtype, torch.memory_format}


class Pretend(TorchFunctionMode):
    """Puts there what is asked to be on the device, and brings back what is asked for by the host."""

    def __init__(self, standin):
        super().__init__()
        self._standin = standin

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name == "__get__" or func is torch.device:  # most calls ask for a shape or a type
            return func(*args, **(kwargs or {}))
        standin, kwargs = self._standin, dict(kwargs or {})
        there = bool(args) and isinstance(args[0], Elsewhere)
        if name in TO_HOST and there:
            if name == "numpy":
                raise MixedDevicesError("numpy() of a tensor of the device")
            standin.wait(name)
            return getattr(args[0].detach().held, name)()
        if name == "cuda":
            name, func, args = "to", torch.Tensor.to, (args[0], DEVICE)
        given, target = (args, dict(kwargs)), None
        if name in _FACTORIES or any(isinstance(x, torch.device) for x in (*args, *kwargs.values())):
            args, target = _without_device(args, kwargs)
        if target is None:
            if standin.autocast and torch.is_autocast_enabled("cuda") and "out" not in kwargs:
                args, kwargs = _cast(standin, _NAMES.get(name, name), args, kwargs)
            return func(*args, **kwargs)
        if name == "to" and there:
            # To PyTorch's own code in C++, which names the place of its groups of gradients, these lie on the CPU.
            if target.type == DEVICE.type or _clips():
                return func(*args, **kwargs) if len(args) > 1 or kwargs else args[0]
            standin.wait("to")
            return args[0].held.to(*args[1:], **kwargs)
        if target.type != DEVICE.type:
            return func(*given[0], **given[1])
        if name == "to":
            assert standin.captured is None, "a copy from the host is no part of a graph"
            return _sent(func(*args, **kwargs) if len(args) > 1 or kwargs else args[0].clone())
        made = functools.partial(func, *args, **kwargs, device=torch.device("cpu"))
        found = made()
        if standin.captured is not None:
            assert name not in {"tensor", "as_tensor"}, "a copy from the host is no part of a graph"
            standin.captured.append((made, found))
        return _sent(found)


class Graph:
    """A captured graph: the operations on the device, with the memory that they read and write.

    What is captured is not computed there, but it makes no difference to who replays it.
    """

    def capture_begin(self, pool=None, capture_error_mode="global"):
        """Begin to note operations."""
        _here[-1].captured = []
        _here[-1].capture_modes.append(capture_error_mode)

    def capture_end(self):
        """End it."""
        self.operations, _here[-1].captured = _here[-1].captured, None
        taken, self.borrowed = set(), set()
        for again, found in self.operations:
            self.borrowed |= _memories((again.args, again.keywords)) - taken
            taken |= _memories(found) - self.borrowed

    def pool(self):
        """Return the number of its memory."""
        return (0, 1)

    def replay(self):
        """Do them again, into the same memory."""
        standin = _here[-1]
        standin.replays.append(len(standin.waits))
        assert self.borrowed <= _memories([tensor.held for tensor in _alive.values()]), (
            "a graph is replayed over memory that was given back since"
        )
        for again, before in self.operations:
            for old, new in zip(tree_leaves(before), tree_leaves(again()), strict=True):
                if isinstance(old, torch.Tensor) and _memory(old) != _memory(new):
                    old.copy_(new)


@contextmanager
def capturing(graph):
    """See torch.cuda.graph."""
    graph.capture_begin()
    yield
    graph.capture_end()


@contextmanager
def pretended(tf32=True, autocast=True, any_order=True):
    """Let the device be there; yield its ``Standin``."""
    standin = Standin(tf32, autocast, any_order)
    put, run, mode = torch.nn.Module.to, torch.autograd._engine_run_backward, Pretend(standin)
    empty = torch.empty

    def run_backward(*args, **kwargs):  # which computes again what checkpoints did not keep
        with mode:
            return run(*args, **kwargs)

    def moved(module, *args, **kwargs):
        rest, target = _without_device(args, kwargs)
        module = put(module, *rest, **kwargs) if rest or kwargs else module
        if target is None:
            return module
        return send(module) if target.type == DEVICE.type else put(module, target)

    there = {
        "is_available": lambda: True, "is_bf16_supported": lambda *_, **__: True, "device_count": lambda: 1,
        "set_device": lambda card: setattr(standin, "present", card),
        "current_device": lambda: 0, "empty_cache": lambda: None, "synchronize": lambda *_: None,
        "get_sync_debug_mode": lambda: 0, "set_sync_debug_mode": lambda mode: None,
        "max_memory_allocated": lambda *_: 0, "get_device_capability": lambda *_: (9, 0),
        "get_device_properties": lambda _: SimpleNamespace(total_memory=80 * 2**30), "Stream": lambda *_: None,
        "stream": lambda _: nullcontext(), "CUDAGraph": Graph, "graph": capturing,
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch, mode:
        for name, value in there.items():
            patch.setattr(torch.cuda, name, value)
        patch.setattr(torch.nn.Module, "to", moved)
        patch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
        patch.setattr(torch, "empty", lambda *sizes, pin_memory=False, **kwargs: empty(*sizes, **kwargs))
        patch.setattr(device, "KERNELS_ON", frozenset())  # they would read the memory of a GPU
        patch.setattr(arithmetic, "_widens", lambda device: False)  # a CPU does not
        patch.setattr(torch.autograd, "_engine_run_backward", run_backward)
        _here.append(standin)
        try:
            yield standin
        finally:
            _here.pop()


def send(whole):
    """Put the tensors of a module on the device; those that several of its parts share stay shared."""
    sent = {}
    for module in whole.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and not isinstance(parameter, Elsewhere):
                if parameter not in sent:
                    numbers = Elsewhere(parameter.detach().clone())
                    sent[parameter] = torch.nn.Parameter(numbers, requires_grad=parameter.requires_grad)
                module._parameters[name] = sent[parameter]
        for name, buffer in module._buffers.items():
            module._buffers[name] = _sent(buffer)
    return whole


def as_tf32(x):
    """Return a tensor of float32 rounded to TF32's 10 bits of mantissa, half away from zero; others as they are."""
    if not isinstance(x, torch.Tensor) or x.dtype != torch.float32:
        return x
    bits = x.contiguous().view(torch.int32)
    rounded = ((bits + (1 << TF32_REST - 1)) & -(1 << TF32_REST)).view(torch.float32)
    return torch.where(x.isfinite(), rounded, x)


_here = []
_alive = weakref.WeakValueDictionary()  # all tensors of the device, by number
# Names of methods whose operation has another.
_NAMES = {"__matmul__": "matmul", "__rmatmul__": "matmul", "__pow__": "pow", "__rpow__": "pow"}
_FACTORIES = {
    "zeros", "ones", "empty", "full", "arange", "tensor", "as_tensor", "zeros_like", "ones_like", "empty_like",
    "full_like", "rand", "randn", "randint", "eye", "linspace", "new_zeros", "new_ones", "new_empty", "new_full",
    "new_tensor", "randperm", "empty_strided", "to", "scalar_tensor",
}  # fmt: skip


def _without_device(args, kwargs):
    """Return arguments less the device among them, which is taken out of ``kwargs``, and the device or None."""
    names = [x for x in (*args, kwargs.pop("device", None)) if isinstance(x, (torch.device, str))]
    return tuple(x for x in args if not isinstance(x, (torch.device, str))), torch.device(names[0]) if names else None


def _frames():
    """Yield (file, function) of what is at work, from the inside out, but for PyTorch's own and this file's."""
    frame, torches = sys._getframe(1), str(Path(torch.__file__).parent)
    while frame is not None:
        name = frame.f_code.co_filename
        if name != __file__ and not name.startswith(torches):
            yield name, frame.f_code.co_name
        frame = frame.f_back


def _place():
    """Return module and function of ours that is at work."""
    ours = (each for each in _frames() if each[0].startswith(PACKAGE))
    name, function = next(ours, ("", ""))
    return f"{name.removeprefix(PACKAGE).removesuffix('.py').replace('/', '.')}.{function}"


def _clips():
    """Return whether PyTorch clips gradients."""
    frame = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.endswith("clip_grad.py"):
        frame = frame.f_back
    return frame is not None


def _indexes_by_the_host(kind):
    """Return whether a tensor is indexed by one of the CPU, which PyTorch copies; ours are to be there already."""
    return kind.indexes and "transformers" in next(_frames())[0]


def _in_tf32(kind, args):
    """Return which arguments of an operation are rounded, or None."""
    if kind.convolution and torch.backends.cudnn.conv.fp32_precision == "tf32":
        return kind.convolution
    left = args[kind.product][0] if kind.product else None
    if left is None or left.dtype != torch.float32 or left.shape[-2] < FEW_ROWS:
        return None
    return kind.product if torch.backends.cuda.matmul.fp32_precision == "tf32" else None


@functools.cache
def policies():
    """Return {operation: policy} as the installed PyTorch has them for CUDA."""
    text = (Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h").read_text()
    lists = {"lower": "LOWER_PRECISION_FP", "fp32": "FP32", "fp32_set": "FP32_SET_OPT_DTYPE", "promote": "PROMOTE"}
    found = {"norm": "fp32"}
    for policy, name in lists.items():
        block = re.search(rf"#define AT_FORALL_{name}\(_\)(.*?)\n\n|#else", text, re.DOTALL).group(1)
        found |= dict.fromkeys(re.findall(r"_\((\w+)", block), policy.removesuffix("_set"))
    return found


def _cast(standin, name, args, kwargs):
    """Return arguments as torch.autocast("cuda") makes them; float64 is left alone."""
    policy = policies().get(name)
    if policy is None:
        return args, kwargs
    low = torch.get_autocast_dtype("cuda")
    eligible = {torch.float32, torch.float16, torch.bfloat16}
    dtypes = {x.dtype for x in _tensors((args, kwargs)) if isinstance(x, Elsewhere) and x.dtype in eligible}
    to = low if policy == "lower" else torch.float32
    if not dtypes or (policy == "promote" and dtypes == {low}):
        return args, kwargs

    def cast(x):
        mine = isinstance(x, Elsewhere) and x.dtype in eligible and x.dtype != to
        standin.casts += mine
        return x.to(to) if mine else x

    return tree_map(cast, args), {key: tree_map(cast, value) for key, value in kwargs.items()}


def _look_at(standin, func, kind, args, kwargs):
    plain = [x for x in _tensors((args, kwargs)) if not isinstance(x, Elsewhere) and (x.dim() or kind.fused)]
    if plain and not kind.meets and not _indexes_by_the_host(kind):
        raise MixedDevicesError(f"{func}: a tensor of the CPU, {list(plain[0].shape)}, beside one of the device")
    if plain and standin.captured is not None:
        raise MixedDevicesError(f"{func}: a copy from the host is no part of a graph")
    by_mask = (kind.indexes or kind.puts) and any(
        isinstance(x, torch.Tensor) and x.dtype == torch.bool for x in args[1]
    )
    to_host = kind.meets and args and not isinstance(args[0], Elsewhere)
    if by_mask or to_host or kind.waits:
        standin.wait(str(func))


def tree_map(change, tree):
    """Return nested tuples, lists and dictionaries with changed leaves; torch's own knows more types and is slow."""
    if isinstance(tree, (tuple, list)):
        return type(tree)([tree_map(change, branch) for branch in tree])
    if isinstance(tree, dict):
        return {name: tree_map(change, branch) for name, branch in tree.items()}
    return change(tree)


def tree_leaves(tree):
    """Return the leaves of nested tuples, lists and dictionaries."""
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (tuple, list)):
        return [tree]
    return [leaf for branch in tree for leaf in tree_leaves(branch)]


def _memory(real):
    return real.untyped_storage().data_ptr()


def _memories(tree):
    return {_memory(leaf) for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor) and leaf.numel()}


def _tensors(tree):
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]


def _real(x):
    return x.held if isinstance(x, Elsewhere) else x


def _sent(x):
    return Elsewhere(x) if isinstance(x, torch.Tensor) and not isinstance(x, Elsewhere) else x
