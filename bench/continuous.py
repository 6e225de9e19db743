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
ROWS = (8, 16)


def main() -> None:
    """Print a line for each number of rows."""
    model, new, rounds = (*sys.argv[1:], *("base", "128", "3")[len(sys.argv) - 1 :])
    print("rows | one length: batches, entering, times | very different lengths: batches, entering, times | equal")
    for rows in ROWS:
        backend = opened(model, rows)
        every_token = tuple(range(0, backend.parts.head.out_features, ENDS_EVERY))
        one_length, rates = measured(backend, rows, int(rounds), (), Sampling(int(new) // 8))
        cells = [rates]
        completions, rates = measured(backend, rows, int(rounds), every_token, Sampling(int(new)))
        cells.append(rates)
        figures = " | ".join(f"{old:.0f}, {now:.0f}, {now / old:.2f}" for old, now in cells)
        pairs = [pair for ways in (one_length, completions) for pair in zip(*ways, strict=True)]
        equal = sum(np.array_equal(one.ids, other.ids) for one, other in pairs)
        lengths = [len(completion.ids) for completion in completions[0]]
        print(f"{rows} | {figures} | {equal} of {len(pairs)}; lengths {min(lengths)} to {max(lengths)}", flush=True)


def opened(model: str, rows: int) -> TorchBackend:
    """Return a backend that decodes so many rows at a time."""
    settings = config.resolve(
        {
            "model": {"path": model},
            "backend": {"device": "cpu", "threads": 1, "args": {"generate_rows": rows}},
            "algorithm": {"name": "grpo", "args": {"kl_coef": 0.0}},
            "rewards": {"length": 1.0},
        }
    )
    return TorchBackend(settings, plugins.make("algorithm", settings.algorithm.name, settings.algorithm.args))


def measured(
    backend: TorchBackend, rows: int, rounds: int, ends: tuple[int, ...], sampling: Sampling
) -> tuple[list[list[Completion]], tuple[float, float]]:
    """Return the completions in both ways, and tokens per second of processor time."""
    backend.tokenizer.end_ids = ends
    texts = [f"find docs about {'many ' * (number % 5)}files {number}" for number in range(PROMPTS)]
    prompts = sorted((backend.tokenizer.encode_prompt(text) for text in texts), key=len)
    best = [np.inf, np.inf]
    completions: list[list[Completion]] = [[], []]
    for _ in range(rounds):
        for way, size in enumerate((rows, PROMPTS)):
            began = time.process_time()
            completions[way] = [
                completion
                for at in range(0, PROMPTS, size)
                for completion in backend.generate(
                    prompts[at : at + size], sampling, range(at, min(at + size, PROMPTS))
                )
            ]
            best[way] = min(best[way], time.process_time() - began)
    tokens = sum(len(completion.ids) for completion in completions[0])
    return completions, (tokens / best[0], tokens / best[1])


if __name__ == "__main__":
    main()
