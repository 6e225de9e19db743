"""What this machine can do, and so the least time a step can take: python bench/limits.py base 30m; prints JSON.

Measured: the rate of matrix products (square ones, and the thin ones of decoding), and how fast memory is read at
several working sets, since small models stay in a cache. Counted: the operations and bytes that a step cannot do
without, as listed at ``needs``. The floor of a part is the larger of operations / rate and bytes / bandwidth.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch.nn.functional import linear
from workloads import DEVICE, EPOCHS, LORA, Workload, now, workload

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SQUARE = (512, 1024, 2048)
THIN_ROWS, THIN_WIDTHS = 16, (128, 512, 896)
WORKING_SETS_MIB = (4, 16, 64, 256, 512)
MEASURE_S = float(os.environ.get("MEASURE_S", "0.5"))  # per number; the best block counts, a limit is not a mean
BLOCK_S = 2e-3  # at least; the processor's clock may stand still for shorter
ADAM_BYTES = 28  # per parameter: read weight, gradient and two moments, write weight and moments, all float32


@dataclass(frozen=True)
class Shape:
    """A Llama-shaped model, as far as its arithmetic goes.

    Attributes:
        body: Weights in the matrix products of all layers.
        head: Weights of the output layer; where it is tied, the embedding is the same memory.
        layers: How many.
        queries: Width of all query heads together.
        cached: Numbers kept of one token in one layer, keys and values.
    """

    body: int
    head: int
    layers: int
    queries: int
    cached: int


@dataclass(frozen=True)
class Need:
    """Operations and bytes of one piece of work, and the bytes that it reads again and again."""

    flops: float
    bytes: float
    working_set: float


def main() -> None:
    """Measure, count, and print."""
    torch.set_default_device(DEVICE)
    works = [workload(name) for name in sys.argv[1:]]
    rates = {name: {str(n): gemm_rate(n, n, n, dtype) for n in SQUARE} for name, dtype in DTYPES.items()}
    thin = {name: {str(n): gemm_rate(THIN_ROWS, n, n, dtype) for n in THIN_WIDTHS} for name, dtype in DTYPES.items()}
    bandwidths = {mib: read_bandwidth(mib) for mib in WORKING_SETS_MIB}
    best = {name: max(found.values()) for name, found in rates.items()}
    floors = {
        work.name: {
            kind: {name: floor(work, kind, best[name], bandwidths, dtype.itemsize) for name, dtype in DTYPES.items()}
            for kind in (*EPOCHS, "generate")
        }
        for work in works
    }
    found = {
        "gpu": torch.cuda.get_device_name() if DEVICE == "cuda" else None,
        "threads": torch.get_num_threads(),
        "gemm_gflops": rates,
        "gemm_16_rows_gflops": thin,
        "read_gb_per_s_by_mib": bandwidths,
        "floor_s": floors,
    }
    print(json.dumps(found, indent=1))


def gemm_rate(rows: int, width: int, columns: int, dtype: torch.dtype) -> float:
    """Return GFLOP/s of [rows, width] x [width, columns]."""
    x, w = torch.randn(rows, width).to(dtype), torch.randn(columns, width).to(dtype)
    with torch.inference_mode():
        return 2 * rows * width * columns / best_seconds(lambda: linear(x, w)) / 1e9


def read_bandwidth(mib: int) -> float:
    """Return GB/s of reading a working set over and over."""
    data = torch.ones(mib * 2**20 // 4)
    return data.nbytes / best_seconds(data.sum) / 1e9


def best_seconds(action: Callable[[], object]) -> float:
    """Return the seconds of an action in the shortest of many blocks of it."""
    wait = torch.cuda.synchronize if DEVICE == "cuda" else lambda: None

    def block(calls: int) -> float:
        began = now()
        for _ in range(calls):
            action()
        wait()
        return now() - began

    calls = 1
    while block(calls) < BLOCK_S:
        calls *= 2
    end = now() + MEASURE_S
    best = block(calls)
    while now() < end:
        best = min(best, block(calls))
    return best / calls


def floor(work: Workload, kind: str, gflops: float, bandwidths: dict[int, float], weight: int) -> dict[str, float]:
    """Return the least seconds of every part of a step, and of the step.

    Args:
        work: What is done.
        kind: An algorithm, or "generate".
        gflops: Best rate of matrix products.
        bandwidths: GB/s by working set in MiB.
        weight: Bytes of one weight; the optimizer's state stays float32.
    """
    seconds: dict[str, float] = {}
    for part, need in needs(work, kind, weight):
        fitting = [mib for mib in bandwidths if mib * 2**20 >= need.working_set]
        bandwidth = bandwidths[min(fitting, default=max(bandwidths))]
        seconds[part] = seconds.get(part, 0.0) + max(need.flops / gflops, need.bytes / bandwidth) / 1e9
    return {**seconds, "step": sum(seconds.values())}


def needs(work: Workload, kind: str, weight: int) -> list[tuple[str, Need]]:
    """Return (part, need) of everything that a step cannot do without.

    - generate: every prompt once per group, then the rows token by token; all weights are read at every token, and
      the keys and values of what stands before.
    - score: one pass of the reference over the rows, every prompt once per group. Log-probs and values of the policy
      come with the sampling.
    - update: per epoch a pass forward and two backward, and the optimizer's pass over its state. With an adapter one
      pass backward, for the weights have no gradient; the adapter itself is not counted.

    The output layer counts for completion tokens only. Activations are not counted: they may stay in a cache.
    """
    shape = read_shape(work)
    prompts = prompt_lengths(work)
    read = (shape.body + shape.head) * weight
    prefill = sum(forward_flops(shape, 0, length, logits=1) for length in prompts)
    decode = work.group * sum(forward_flops(shape, p, work.new_tokens - 1, work.new_tokens - 1) for p in prompts)
    cached = [work.group * shape.layers * shape.cached * weight * positions(p, work.new_tokens - 1) for p in prompts]
    found = [
        ("generate", Need(prefill, read, read)),
        ("generate", Need(decode, (work.new_tokens - 1) * read + sum(cached), read)),
    ]
    if kind == "generate":
        return found
    forward = sum(forward_flops(shape, 0, length, logits=0) for length in prompts)
    forward += work.group * sum(forward_flops(shape, p, work.new_tokens - 1, work.new_tokens) for p in prompts)
    state = 0 if LORA else (shape.body + shape.head) * ADAM_BYTES
    passes = 2 if LORA else 3
    found.append(("score", Need(forward, read, read)))
    for _ in range(EPOCHS[kind]):
        found += [("update", Need(passes * forward, passes * read, read)), ("update", Need(0, state, state))]
    return found


def forward_flops(shape: Shape, before: int, tokens: int, logits: int) -> float:
    """Return the operations of a row's ``tokens`` tokens after ``before`` others, with logits for some of them."""
    attention = 4 * shape.layers * shape.queries * positions(before, tokens)
    return 2 * (shape.body * tokens + shape.head * logits) + attention


def positions(before: int, tokens: int) -> int:
    """Return how many positions the tokens see together, themselves included."""
    return tokens * before + tokens * (tokens + 1) // 2


def read_shape(work: Workload) -> Shape:
    """Count the weights of a workload's model from its config."""
    config = json.loads((work.folder / "config.json").read_text(encoding="utf-8"))
    hidden, width = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    layer = 2 * hidden * queries + 2 * hidden * keys + 3 * hidden * config["intermediate_size"]
    layers = config["num_hidden_layers"]
    return Shape(layers * layer, hidden * config["vocab_size"], layers, queries, 2 * keys)


def prompt_lengths(work: Workload) -> list[int]:
    """Return the tokens of every prompt."""
    tokenizer = Tokenizer.from_file(str(work.folder / "tokenizer.json"))
    return [len(tokenizer.encode(prompt).ids) for prompt in work.prompts]


if __name__ == "__main__":
    main()
