"""A pytest plug-in that completes Triton's interpreter, where TRITON_INTERPRET is set, and makes it faster."""

import builtins
import dataclasses
import math
import os

import numpy as np
import pytest
import torch

from steadyrl.backends.torch.kernels import decoding_kernels, layer_kernels

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.fixture(autouse=True, scope="session")
def whole_interpreter():
    """Add what Triton's interpreter lacks: ranges under NumPy 2.4, products of bfloat16 and rounding to it."""
    if not INTERPRETED:
        yield
        return
    from triton import language as tl
    from triton.runtime import interpreter

    convert, dot = interpreter._convert_float, interpreter.InterpreterBuilder.create_dot

    def whole(bound):
        return bound if isinstance(bound, int) else int(bound.handle.data.item())

    def rounded(data, old, new, mode):
        if (old, new) != (tl.float32, tl.bfloat16):
            return convert(data, old, new, mode)
        return torch.from_numpy(data.view(np.float32).copy()).bfloat16().view(torch.int16).numpy().view(np.uint16)

    def wide(factor):  # bfloat16 is kept as the bits of whole numbers, and would be multiplied as those
        if factor.dtype.scalar != tl.bfloat16:
            return factor
        return interpreter.TensorHandle((factor.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    prepare, prepared = interpreter._patch_lang, {}

    def prepare_once(kernel):
        module = kernel.__module__
        if module not in prepared:
            prepared[module] = prepare(kernel)
            prepared[module]._changes.clear()  # the language stays prepared: its restore has nothing to undo
        return prepared[module]

    unwrap, as_they_are = tl.core._unwrap_if_constexpr, (int, tl.tensor, tl.dtype)

    def unwrap_quickly(value):
        kind = type(value)
        return value.value if kind is tl.constexpr else value if kind in as_they_are else unwrap(value)

    shape_block, shapes, names = tl.block_type.__init__, {}, {}

    def shape_once(self, element_ty, shape):
        lengths = (*map(unwrap_quickly, shape),)
        if lengths not in shapes:
            shape_block(self, element_ty, shape)
            numbers = tuple(map(tl.constexpr, lengths))
            shapes[lengths] = self.shape, self.numel, numbers, tl.constexpr(math.prod(lengths))
        self.element_ty, (self.shape, self.numel, *self.of_tensor) = element_ty, shapes[lengths]
        name = element_ty.name, lengths
        if name not in names:
            names[name] = f"<{self.shape}, {element_ty}>"
        self.name = names[name]

    def describe_tensor(self, handle, type):
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = type.of_tensor if type.is_block() else ((), tl.constexpr(1))

    semantic = interpreter.TritonSemantic
    broadcast = semantic.broadcast_impl_value

    def broadcast_where_shapes_differ(self, left, right):
        blocks = left.type.is_block(), right.type.is_block()
        alike = left.type.shape is right.type.shape if all(blocks) else not any(blocks)
        return (left, right) if alike else broadcast(self, left, right)

    numpy_types, numpy_type = {}, interpreter._get_np_dtype

    def numpy_type_once(dtype):
        if dtype.name not in numpy_types:
            numpy_types[dtype.name] = numpy_type(dtype)
        return numpy_types[dtype.name]

    with pytest.MonkeyPatch.context() as patch:
        for kernels in (decoding_kernels, layer_kernels):
            patch.setattr(kernels, "range", lambda *bounds: builtins.range(*map(whole, bounds)), raising=False)
        patch.setattr(interpreter, "_convert_float", rounded)
        patch.setattr(
            interpreter.InterpreterBuilder, "create_dot", lambda self, a, b, *rest: dot(self, wide(a), wide(b), *rest)
        )
        # The language is prepared again at each launch and at each call of a function by a kernel, and
        # whole numbers are added twice to see whether they overflow.
        patch.setattr(interpreter, "_patch_lang", prepare_once)
        # Every tensor works out the name of its type anew, and finds its NumPy type in a table built anew.
        patch.setattr(interpreter, "_get_np_dtype", numpy_type_once)
        patch.setattr(tl.core, "_unwrap_if_constexpr", unwrap_quickly)
        patch.setattr(tl.block_type, "__init__", shape_once)
        patch.setattr(tl.tensor, "__init__", describe_tensor)
        # Shapes that are one object, as they are now, are not compared number by number.
        patch.setattr(semantic, "broadcast_impl_value", broadcast_where_shapes_differ)
        # Tensors of the CPU are computed with where they are; each launch would copy all of them onto themselves.
        patch.setattr(interpreter.GridExecutor, "_restore_args_dev", lambda *_: None)
        options = dataclasses.replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
        patch.setattr(interpreter.interpreter_builder, "options", options)
        yield
