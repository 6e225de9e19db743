"""A pytest plug-in that completes Triton's interpreter, where TRITON_INTERPRET is set, and makes it faster."""

import builtins
import dataclasses
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

    launch, ready = interpreter.GridExecutor.__call__, set()

    def at_a_launch(self, *inputs, **more):
        ready.clear()
        return launch(self, *inputs, **more)

    def once_prepared(self, *inputs, **more):
        if self.fn.__module__ not in ready:
            interpreter._patch_lang(self.fn)
            ready.add(self.fn.__module__)
        return self.rewrite()(*inputs, **more)

    with pytest.MonkeyPatch.context() as patch:
        for kernels in (decoding_kernels, layer_kernels):
            patch.setattr(kernels, "range", lambda *bounds: builtins.range(*map(whole, bounds)), raising=False)
        patch.setattr(interpreter, "_convert_float", rounded)
        patch.setattr(
            interpreter.InterpreterBuilder, "create_dot", lambda self, a, b, *rest: dot(self, wide(a), wide(b), *rest)
        )
        # A third of the time: a function that a kernel calls is prepared again at each call, and whole numbers are
        # added twice to see whether they overflow.
        patch.setattr(interpreter.InterpretedFunction, "__call__", once_prepared)
        patch.setattr(interpreter.GridExecutor, "__call__", at_a_launch)
        # Tensors of the CPU are computed with where they are; each launch would copy all of them onto themselves.
        patch.setattr(interpreter.GridExecutor, "_restore_args_dev", lambda *_: None)
        options = dataclasses.replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
        patch.setattr(interpreter.interpreter_builder, "options", options)
        yield
