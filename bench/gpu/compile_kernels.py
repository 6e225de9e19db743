"""Compiles every Triton kernel for GPUs that need not be there: python3 bench/gpu/compile_kernels.py [--cards 80 90].

The functions that launch kernels are called as sampling and training call them, with tensors that have shapes, types
and strides of models and no numbers. What they would launch is compiled to machine code by Triton's own assembler. So
block sizes, warps and stages are those of a run. The table has a line for each kernel and card: the most registers of
a thread, the most bytes that a thread spills to memory, and the most shared memory of a block. Exit code 1 if a kernel
does not compile, or asks for more shared memory than a block may have.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import torch
from part import Place, Row, at_most, skipped

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # what Triton does; from 3.9 on it warns where nobody said so

# KiB of shared memory that a block may have, by compute capability: NVIDIA's CUDA C++ programming guide, "technical
# specifications per compute capability".
CARDS = {75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
USUAL = (90,)  # H100
MOST_SPILLED = 64  # bytes a thread
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp16": torch.float16}


@dataclass(frozen=True)
class Shape:
    """Sizes of a model.

    Attributes:
        heads, kv_heads, width: Of attention, and of one head.
        hidden, inner: Of the stream, and of the feed-forward.
        vocabulary: Rows of the head.
    """

    heads: int
    kv_heads: int
    width: int
    hidden: int
    inner: int
    vocabulary: int


SHAPES = {
    "base": Shape(4, 4, 32, 128, 384, 7168),
    "SmolLM2-135M": Shape(9, 3, 64, 576, 1536, 49152),
    "Qwen2.5-0.5B": Shape(14, 2, 64, 896, 4864, 151936),
    "Qwen2.5-1.5B": Shape(12, 2, 128, 1536, 8960, 151936),
    "Qwen2.5-7B": Shape(28, 4, 128, 3584, 18944, 152064),
    "Gemma-3-4B": Shape(8, 4, 256, 2560, 10240, 262208),
    "odd": Shape(34, 1, 80, 1001, 333, 301),
}
FEW = ("Qwen2.5-0.5B",)  # of the check without a GPU, for the usual cards
ROWS, COLUMNS, LONG, TOKENS = 64, 300, 8192, 4096  # that are decoded, columns of their caches, tokens of an update


@dataclass
class Compiled:
    """A kernel for one card.

    Attributes:
        kernel: Its name.
        capability: Of the card: ten times the compute capability.
        variants: How many forms of it were compiled: of types, sizes and alignments.
        registers: Of a thread, the most of any form.
        spilled: Bytes of a thread.
        shared: Bytes of a block.
        errors: Of forms that do not compile.
    """

    kernel: str
    capability: int
    variants: int = 0
    registers: int = 0
    spilled: int = 0
    shared: int = 0
    errors: list[str] = field(default_factory=list)

    @property
    def fits(self) -> bool:
        """Whether all forms compile, into the memory of a block."""
        return not self.errors and self.shared <= CARDS[self.capability] * 1024

    def add(self, binary: Any) -> None:
        """Count one form."""
        registers, spilled = resources(binary.asm["cubin"])
        self.variants += 1
        self.registers, self.spilled = max(self.registers, registers), max(self.spilled, spilled)
        self.shared = max(self.shared, binary.metadata.shared)


class AbsentCard:
    """What Triton asks of a driver before it compiles."""

    def __init__(self, capability: int):
        from triton.backends.compiler import GPUTarget

        self.capability, self.target = capability, GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> Any:
        """Return what is compiled for."""
        return self.target

    def get_current_device(self) -> int:
        """Return a number of its own for each card: by it Triton keeps what it has compiled."""
        return self.capability

    def get_current_stream(self, device: int) -> int:
        """Return the stream that nothing is launched on."""
        return 0


def compiled(launch: Callable[[], None], capability: int) -> list[Compiled]:
    """Return the kernels that a function launches, compiled for a card instead."""
    from triton.runtime import driver, jit

    kernels, counted, run = dict[str, Compiled](), set[int](), jit.JITFunction.run

    def compile_only(self: Any, *args: Any, **options: Any) -> None:
        kernel = kernels.setdefault(self.__name__, Compiled(self.__name__, capability))
        try:
            binary = run(self, *args, **options | {"warmup": True})
        except Exception as error:  # of whatever type: Triton's passes, LLVM and the assembler have their own
            kernel.errors.append(f"{type(error).__name__}: {str(error).strip()[-300:]}")
            return
        if id(binary) not in counted:
            counted.add(id(binary))
            kernel.add(binary)

    from steadyrl.backends.torch.kernels import launch as launches

    overlaps = patch.object(launches, "is_since", lambda first, _: capability >= 10 * first)
    here = patch.object(driver, "_active", AbsentCard(capability))
    with here, overlaps, patch.object(jit.JITFunction, "run", compile_only):
        launch()
    return list(kernels.values())


def resources(cubin: bytes) -> tuple[int, int]:
    """Return the registers of a thread, and the bytes of its stack: only what is spilled goes there."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        words = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    usage = dict(word.split(":")[:2] for word in words if word.startswith(("REG:", "STACK:")))
    return int(usage["REG"]), int(usage["STACK"])


def launches(shape: Shape, dtype: torch.dtype) -> None:
    """Launch what a model launches whose products are of a type: a decoding step, a score and an update."""
    decoding_step(shape, dtype)
    rows_of_logits(shape, dtype)
    for stream in {torch.float32, dtype}:
        layers(shape, dtype, stream)


def decoding_step(shape: Shape, dtype: torch.dtype) -> None:
    """Attend from queries as a rotation leaves them, of short and of long caches, and draw."""
    from steadyrl.backends.torch.kernels import decoding_kernels

    for rows, columns in ((ROWS, COLUMNS), (1, LONG)):
        keys = meta(rows, shape.kv_heads, columns, shape.width, dtype=dtype)
        seen, column = meta(rows, columns, dtype=torch.bool), meta(1, dtype=torch.long)
        v = meta(rows, 1, shape.kv_heads, shape.width, dtype=dtype)[:, 0]
        for of_norms in {torch.float32, dtype}:  # norms of queries and keys give the type of their weights
            q, k = (meta(rows, 1, n, shape.width, dtype=of_norms)[:, 0] for n in (shape.heads, shape.kv_heads))
            for angles in (None, (meta(rows, shape.width, dtype=of_norms),) * 2):
                decoding_kernels.attend(q, k, v, keys, keys, seen, column, shape.width**-0.5, None, angles)
    decoding_kernels.draw(meta(ROWS, shape.vocabulary), meta(ROWS))
    for length in (shape.heads * shape.width, shape.inner):
        weight, bias = meta(shape.hidden, length, dtype=dtype), meta(shape.hidden, dtype=dtype)
        if decoding_kernels.in_parts(weight, ROWS):
            for of in (None, bias):
                decoding_kernels.product_parts(meta(ROWS, 1, length, dtype=dtype), weight, of)


def rows_of_logits(shape: Shape, dtype: torch.dtype) -> None:
    """Measure log-probs, entropies and KL of rows of logits, whole and cut; and go back."""
    from steadyrl.backends.torch.kernels import rows

    chosen, norms = meta(ROWS, dtype=torch.long), meta(ROWS)
    for kept_mask in (None, meta(ROWS, shape.vocabulary, dtype=torch.bool)):
        logits = meta(ROWS, shape.vocabulary)
        rows.row_comparison(logits, logits, chosen, 1.0, kept_mask)
        for of_entropy in (None, (norms, norms)):
            rows.row_stats(logits, chosen, 1.0, kept_mask, of_entropy is not None)
            rows.row_slopes(logits, chosen, 1.0, kept_mask, norms, norms, of_entropy, dtype)


def layers(shape: Shape, dtype: torch.dtype, stream: torch.dtype) -> None:
    """Rotate, gate, and add with a norm, for products of a type and a stream of another; and go back."""
    from steadyrl.backends.torch.kernels import layer_kernels

    q, k = (meta(1, TOKENS, n, shape.width, dtype=dtype).transpose(1, 2) for n in (shape.heads, shape.kv_heads))
    angles = meta(1, TOKENS, shape.width, dtype=stream)
    back(partial(layer_kernels.rotate, cos=angles, sin=angles), q, k)
    both = meta(1, TOKENS, 2 * shape.inner, dtype=dtype)
    back(layer_kernels.gate, both[..., : shape.inner], both[..., shape.inner :])
    back(layer_kernels.gate, *(meta(1, TOKENS, shape.inner, dtype=dtype) for _ in range(2)))
    x, more = meta(1, TOKENS, shape.hidden, dtype=stream), meta(1, TOKENS, shape.hidden, dtype=dtype)
    add_norm = partial(layer_kernels.add_norm, offset=1.0, epsilon=1e-6, dtype=dtype)
    back(add_norm, x, more, meta(shape.hidden, dtype=stream))
    add_norm(x[0, :ROWS, None], meta(4, ROWS, 1, shape.hidden), meta(shape.hidden, dtype=stream))
    places = meta(TOKENS, dtype=torch.long)
    back(lambda *tensors: layer_kernels.moved(tensors, places, places), *(x.transpose(1, 2)[0] for x in (q, k, k)))
    layer_kernels.products([(meta(shape.hidden, shape.inner), meta(shape.hidden, shape.inner))])


def meta(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a tensor that has no numbers."""
    return torch.empty(*sizes, dtype=dtype, device="meta")


def back(function: Callable[..., Any], *inputs: torch.Tensor) -> None:
    """Call a function of tensors, and go back through it."""
    leaves = [x.requires_grad_() if x.is_leaf else x.detach().requires_grad_() for x in inputs]
    outputs = function(*leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    torch.autograd.backward(outputs, [torch.empty_like(x) for x in outputs])


def every_kernel(names: Sequence[str], dtypes: Sequence[str], capability: int) -> list[Compiled]:
    """Return all kernels for a card, by models and types of products."""

    def launch() -> None:
        for name in names:
            for dtype in dtypes:
                launches(SHAPES[name], DTYPES[dtype])

    return compiled(launch, capability)


def for_cards(place: Place) -> Iterator[Row]:
    """Compile all kernels for the usual cards, where there is no GPU to run them."""
    if not place.small:
        yield skipped("kernels for other cards", "they run on this one")
        return
    if find_spec("triton") is None:
        yield skipped("kernels for a GPU", "Triton is not installed")
        return
    for capability in USUAL:
        kernels = every_kernel(FEW, ["bf16"], capability)
        what = f"sm_{capability}"
        failed = [kernel.kernel for kernel in kernels if kernel.errors]
        yield at_most(f"{what}: kernels that do not compile", len(failed), 0, f"of {len(kernels)}", ", ".join(failed))
        largest = max(kernels, key=lambda kernel: kernel.shared)
        yield at_most(f"{what}: shared memory", largest.shared / 1024, CARDS[capability], "KiB", largest.kernel)
        most = max(kernels, key=lambda kernel: kernel.spilled)
        yield at_most(f"{what}: spilled by a thread", most.spilled, MOST_SPILLED, "bytes", most.kernel)


def table(kernels: Sequence[Compiled]) -> str:
    """Return a line for each kernel and card, as Markdown."""
    lines = ["| kernel | card | forms | registers | spilled, bytes | shared, KiB | |", "|---|---|--:|--:|--:|--:|---|"]
    for k in sorted(kernels, key=lambda k: (k.kernel, k.capability)):
        end = "ok" if k.fits else f"**{k.errors[0] if k.errors else f'more than {CARDS[k.capability]} KiB'}**"
        numbers = f"{k.variants} | {k.registers} | {k.spilled} | {k.shared / 1024:.1f}"
        lines.append(f"| `{k.kernel}` | sm_{k.capability} | {numbers} | {' '.join(end.replace('|', '/').split())} |")
    return "\n".join(lines)


def main() -> int:
    """Compile, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cards", nargs="+", type=int, choices=list(CARDS), default=list(CARDS))
    parser.add_argument("--models", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--types", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    args = parser.parse_args()
    if find_spec("triton") is None:
        parser.error("Triton is not installed: pip install triton")
    kernels = [kernel for card in args.cards for kernel in every_kernel(args.models, args.types, card)]
    print(table(kernels))
    return 0 if all(kernel.fits for kernel in kernels) else 1


if __name__ == "__main__":
    sys.exit(main())
