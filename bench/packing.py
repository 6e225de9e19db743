"""Time and memory of packing long rows that share a prompt: python bench/packing.py [--rows 14 --length 4608].

Processor seconds and the most memory of numpy's arrays, of one call; what is packed is what every pass over rows reads.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc

import numpy as np
import torch

from steadyrl.backends.torch.read.packed import pack
from steadyrl.core.types import Batch


def main() -> None:
    """Pack once to warm up, and once under a stopwatch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=14)
    parser.add_argument("--length", type=int, default=4608, help="tokens of a row, its prompt included")
    parser.add_argument("--prompt", type=int, default=256, help="tokens of the prompt that all rows share")
    args = parser.parse_args()
    batch, device = rows(args.rows, args.length, args.prompt), torch.device("cpu")
    pack(batch, device)
    began = time.process_time()
    pack(batch, device)
    seconds = time.process_time() - began
    tracemalloc.start()
    pack(batch, device)
    _, peak = tracemalloc.get_traced_memory()
    print(f"{args.rows} rows of {args.length} tokens: {seconds:.3f} s, {peak / 2**20:.1f} MiB")


def rows(count: int, length: int, prompt: int) -> Batch:
    """Return rows of random completions after one prompt."""
    tokens = np.random.default_rng(0).integers(0, 1000, (count, length)).astype(np.int32)
    tokens[:, :prompt] = tokens[0, :prompt]
    mask = np.broadcast_to(np.arange(length) >= prompt, tokens.shape)
    lengths, groups = np.full(count, length, np.int32), np.zeros(count, np.int32)
    return Batch(tokens, lengths, mask, np.zeros(tokens.shape, np.float32), np.zeros(count), groups)


if __name__ == "__main__":
    main()
