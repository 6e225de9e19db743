"""Where the time of a step goes on a GPU, by kernel: python3 bench/gpu/steps.py 0.5b [--steps 5].

Prints the seconds of each step and of its phases, then the kernels of one more step. The environment says what
``bench/workloads.py`` reads: DEVICE=cuda PRECISION=bf16.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from ours_step import ALGORITHMS, make_session
from torch.profiler import ProfilerActivity, profile
from workloads import workload

from steadyrl.loop.checkpoint import State
from steadyrl.loop.train import one_step

PHASES = ("generate", "score", "step")
SHOWN = 40  # kernels of a phase


def main() -> None:
    """Make some steps, then one under the profiler."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", help="such as 0.5b, 1.5b or base:16x8x24")
    parser.add_argument("--steps", type=int, default=5, help="before the one that is profiled")
    args = parser.parse_args()
    session = make_session({"name": "grpo", "args": ALGORITHMS["grpo"]}, workload(args.workload), args.steps + 1)
    state = State(algorithm=dict(session.algorithm.state))
    watched = {phase: Watched(getattr(session.backend, phase)) for phase in PHASES}
    for phase, method in watched.items():
        setattr(session.backend, phase, method)
    for _ in range(args.steps):
        began = time.perf_counter()
        one_step(session, state)
        whole = time.perf_counter() - began
        print(f"step {whole:.3f} s:", ", ".join(f"{name} {each.seconds:.3f}" for name, each in watched.items()))
    print(f"peak memory {torch.cuda.max_memory_allocated() / 1e9:.1f} GB")
    for each in watched.values():
        each.profiled = True
    one_step(session, state)
    for phase, each in watched.items():
        print(
            f"\n{phase}: {sum(row[0] for row in each.kernels):.1f} ms, {sum(row[1] for row in each.kernels)} launches"
        )
        for milliseconds, count, name in each.kernels[:SHOWN]:
            print(f"{milliseconds:9.2f} {count:7d} {name[:100]}")


class Watched:
    """A method whose calls are timed, and profiled where that is asked for.

    Attributes:
        profiled: Whether the next call is.
        seconds: Of the last call.
        kernels: (milliseconds, launches, name) of the last call that was profiled, longest first.
    """

    def __init__(self, method: Callable[..., Any]):
        self._method = method
        self.profiled, self.seconds = False, 0.0
        self.kernels: list[tuple[float, int, str]] = []

    def __call__(self, *args: Any) -> Any:
        torch.cuda.synchronize()
        began = time.perf_counter()
        if self.profiled:
            with profile(activities=[ProfilerActivity.CUDA]) as measured:
                result = self._method(*args)
                torch.cuda.synchronize()
            rows = [(e.self_device_time_total / 1e3, e.count, e.key) for e in measured.key_averages()]
            self.kernels = sorted((row for row in rows if row[0] > 0), reverse=True)
        else:
            result = self._method(*args)
            torch.cuda.synchronize()
        self.seconds = time.perf_counter() - began
        return result


if __name__ == "__main__":
    main()
