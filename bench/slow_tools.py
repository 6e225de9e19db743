"""How long the sampler waits for slow tools: python bench/slow_tools.py [EPISODES [TURNS [MODEL [WORKERS]]]].

Every turn of every episode calls a tool that sleeps 0.1 to 2 s. Both values of ``rollout.turns`` play the same
episodes with the same model. Shown are the wall time, the share of it in which the sampler worked, its calls, and
whether the rollouts are equal. WORKERS tools run at a time, and as many episodes are open. MODEL is a model folder,
"base", or "sleep": a sampler that takes 10 ms a token whatever the size of its batch, as a GPU nearly does, and that no
other process slows down.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np

from steadyrl.backends.toy import ToyBackend
from steadyrl.core import config as configs
from steadyrl.core import plugins
from steadyrl.core.protocols import Backend, Turn
from steadyrl.core.types import Completion, Group, Problem, Sampling
from steadyrl.loop.rollout.collect import collect
from steadyrl.loop.rollout.episode import Environment

SLEEP_S = (0.1, 2.0)
NEW_TOKENS = 32
TOKEN_S = 0.01


class Tool:
    """An episode whose every turn waits for a tool; how long depends on problem and turn alone."""

    def __init__(self, number: int, turns: int):
        self._sleeps = np.random.default_rng(number).uniform(*SLEEP_S, turns)
        self._done = 0

    def open(self) -> str:
        """Show nothing: the problem says it all."""
        return ""

    def step(self, text: str) -> Turn:
        """Sleep, and answer."""
        time.sleep(self._sleeps[self._done])
        self._done += 1
        return Turn(f"result {self._done}", self._done == len(self._sleeps))

    def close(self) -> dict[str, int]:
        """Say how many turns there were."""
        return {"turns": self._done}


class Tools:
    """The task of them."""

    name = "tools"

    def __init__(self, turns: int, workers: int):
        self.max_turns, self.workers, self.max_open = turns, workers, workers

    def episode(self, problem: Problem, seed: int) -> Tool:
        """Return an episode whose sleeps are those of its problem."""
        return Tool(int(problem.id), self.max_turns)


class Sleeper(ToyBackend):
    """A sampler that takes a fixed time for each token of a batch."""

    def generate(self, prompts: Sequence[np.ndarray], sampling: Sampling, seeds: Sequence[int]) -> list[Completion]:
        """See Backend."""
        completions = super().generate(prompts, sampling, seeds)
        time.sleep(TOKEN_S * max(len(completion.ids) for completion in completions))
        return completions


def opened(model: str) -> Backend:
    """Return a backend of one thread."""
    if model == "sleep":
        return Sleeper()
    settings = configs.resolve({"model": {"path": model}, "backend": {"threads": 1}, "rewards": {"length": 1.0}})
    algorithm = plugins.make("algorithm", settings.algorithm.name, settings.algorithm.args)
    return plugins.make("backend", settings.backend.name, settings, algorithm)


class Timed:
    """A backend whose time in ``generate`` is counted."""

    def __init__(self, backend: Backend):
        self._backend, self.tokenizer = backend, backend.tokenizer
        self.prefix_cache = getattr(backend, "prefix_cache", lambda together: nullcontext())
        self.busy_s, self.calls, self.rows = 0.0, 0, 0

    def generate(self, prompts: Sequence[np.ndarray], sampling: Sampling, seeds: Sequence[int]) -> list[Completion]:
        """See Backend."""
        began = time.perf_counter()
        completions = self._backend.generate(prompts, sampling, seeds)
        self.busy_s += time.perf_counter() - began
        self.calls, self.rows = self.calls + 1, self.rows + len(prompts)
        return completions


def played(backend: Backend, episodes: int, turns: int, workers: int, together: bool) -> list[Group]:
    """Play all episodes once, print a line, and return them."""
    timed = Timed(backend)
    problems = [Problem(f"{number}", "find docs about files") for number in range(episodes)]
    sampling = Sampling(NEW_TOKENS)
    environment = Environment(Tools(turns, workers), NEW_TOKENS, together=together)
    began = time.perf_counter()
    groups = collect(timed, problems, 1, sampling, (0, 0), environment=environment)
    wall = time.perf_counter() - began
    tokens = sum(rollout.length for group in groups for rollout in group.rollouts)
    name = "together" if together else "ready"
    print(
        f"rollout.turns = {name:<9} {wall:6.1f} s  sampler at work {timed.busy_s:5.1f} s = {timed.busy_s / wall:4.0%}  "
        f"{timed.calls} calls of {timed.rows / timed.calls:.1f} rows  {tokens} tokens, {tokens / wall:.0f} a second"
    )
    return groups


def main() -> None:
    """Play in both ways, twice each in turns."""
    episodes, turns, model, workers = (*sys.argv[1:], *("64", "4", "base", "64")[len(sys.argv) - 1 :])
    backend = opened(model)
    collect(backend, [Problem("warm", "up")], 2, Sampling(4), (0, 0))
    runs = [played(backend, int(episodes), int(turns), int(workers), together) for together in (True, False) * 2]
    ids = [[r.completion_ids.tolist() for group in groups for r in group.rollouts] for groups in runs]
    for other, name in ((1, "together and ready"), (3, "ready and ready again")):
        first = ids[0] if other == 1 else ids[1]
        equal = sum(a == b for a, b in zip(first, ids[other], strict=True))
        gaps = [
            np.abs(a.sampling_logprobs - b.sampling_logprobs).max()
            for x, y in zip(runs[0] if other == 1 else runs[1], runs[other], strict=True)
            for a, b in zip(x.rollouts, y.rollouts, strict=True)
            if a.completion_ids.tolist() == b.completion_ids.tolist() and len(a.completion_ids)
        ]
        print(f"{name}: {equal} of {len(first)} rollouts equal; log-probs of these apart by up to {max(gaps):.1e}")


if __name__ == "__main__":
    main()
