"""Prompts that enter free rows beside batch after batch: python bench/continuous.py [MODEL [NEW [ROUNDS]]].

64 prompts whose answers have very different lengths: every 48th token of the vocabulary ends one, NEW tokens are the
limit (128). Both ways decode the same number of rows at a time, in turns, on one thread; the best of ROUNDS (3), in
tokens for each second of processor time. MODEL is "base" or a model folder.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from steadyrl.backends.torch.backend import TorchBackend
from steadyrl.core import config, plugins
from steadyrl.core.types import Completion, Sampling

PROMPTS, ENDS_EVERY = 64, 48
TEXT = "find docs about {}files {}"
ROWS = (8, 16)


def main() -> None:
    """Print a line for each number of rows."""
    model, new, rounds = (*sys.argv[1:], *("base", "128", "3")[len(sys.argv) - 1 :])
    print("rows | one length: batches, entering, times | very different lengths: batches, entering, times | equal")
    for rows in ROWS:
        backend = opened(model, rows)
        every_token = tuple(range(0, backend.split.head.out_features, ENDS_EVERY))
        one_length, rates = measured(backend, PROMPTS, rows, int(rounds), (), Sampling(int(new) // 8))
        cells = [rates]
        completions, rates = measured(backend, PROMPTS, rows, int(rounds), every_token, Sampling(int(new)))
        cells.append(rates)
        figures = " | ".join(f"{old:.0f}, {now:.0f}, {now / old:.2f}" for old, now in cells)
        pairs = [pair for ways in (one_length, completions) for pair in zip(*ways, strict=True)]
        equal = sum(np.array_equal(one.ids, other.ids) for one, other in pairs)
        lengths = [len(completion.ids) for completion in completions[0]]
        print(f"{rows} | {figures} | {equal} of {len(pairs)}; lengths {min(lengths)} to {max(lengths)}", flush=True)


def opened(model: str, rows: int, device: str = "cpu") -> TorchBackend:
    """Return a backend that decodes so many rows at a time."""
    settings = config.resolve(
        {
            "model": {"path": model},
            "backend": {"device": device, "threads": 1, "args": {"generate_rows": rows}},
            "algorithm": {"name": "grpo", "args": {"kl_coef": 0.0}},
            "rewards": {"length": 1.0},
        }
    )
    return TorchBackend(settings, plugins.make("algorithm", settings.algorithm.name, settings.algorithm.args))


def measured(
    backend: TorchBackend, count: int, rows: int, rounds: int, ends: tuple[int, ...], sampling: Sampling
) -> tuple[list[list[Completion]], tuple[float, float]]:
    """Return the completions in both ways, and tokens per second: of processor time, on another device of the clock.

    Args:
        backend: Decodes so many rows at a time.
        count: How many prompts there are.
        rows: Of a batch, where batches are decoded one after another.
        rounds: How often each way is tried; the best counts.
        ends: Tokens that end a completion.
        sampling: How to draw.
    """
    clock = time.process_time if backend.device.type == "cpu" else time.perf_counter
    backend.tokenizer.end_ids = ends
    texts = [TEXT.format("many " * (number % 5), number) for number in range(count)]
    prompts = sorted((backend.tokenizer.encode_prompt(text) for text in texts), key=len)
    best = [np.inf, np.inf]
    completions: list[list[Completion]] = [[], []]
    for _ in range(rounds):
        for way, size in enumerate((rows, count)):
            began = clock()
            completions[way] = [
                completion
                for at in range(0, count, size)
                for completion in backend.generate(prompts[at : at + size], sampling, range(at, min(at + size, count)))
            ]
            best[way] = min(best[way], clock() - began)
    tokens = sum(len(completion.ids) for completion in completions[0])
    return completions, (tokens / best[0], tokens / best[1])


if __name__ == "__main__":
    main()
