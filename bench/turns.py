"""What reading each turn once spares: python bench/turns.py [CONFIG] [SETTING ...].

The rollouts of two steps of a task of several turns (examples/browse.toml if none is given), on one thread, in two ways
that take turns: with what the turn before has read (steadyrl/backends/torch/draw/prefixes.py), and with every turn read
from the beginning of its episode. Settings are those of `steadyrl train`, such as model.path=FOLDER.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from steadyrl.backends.torch.backend import TorchBackend
from steadyrl.backends.torch.draw.decoder import Decoder
from steadyrl.backends.torch.draw.prefixes import Prefixes
from steadyrl.core import config
from steadyrl.core.types import Rollout
from steadyrl.loop.rollout.collect import collect
from steadyrl.loop.rollout.episode import context_of, environment_of
from steadyrl.loop.train import open_session

BROWSE = Path(__file__).parent.parent / "examples" / "browse.toml"
ROUNDS = 2


def main() -> None:
    """Print a line per way, and how far what was drawn is apart."""
    given = sys.argv[1:]
    file = given.pop(0) if given and given[0].endswith(".toml") else BROWSE
    session = open_session(config.load(file, [*given, "backend.threads=1", "backend.device=cpu"]))
    own = session.config.rollout
    environment = environment_of(session.task, session.sampling, own, context_of(session.backend))
    chosen = np.random.default_rng(0).permutation(len(session.problems))[: own.prompts_per_step]
    problems = [session.problems[i] for i in chosen]

    def draw(seed: int) -> list[Any]:
        return collect(
            session.backend, problems, own.samples_per_prompt, session.sampling, (seed,), environment=environment
        )

    spent: dict[str, list[tuple[float, int, int]]] = {"each turn once": [], "from the beginning": []}
    drawn: dict[str, list[Rollout]] = {way: [] for way in spent}
    for seed in range(ROUNDS):
        for way in spent:
            again = patch.object(TorchBackend, "prefix_cache", lambda self, together: nullcontext())
            with nullcontext() if way == "each turn once" else again:
                seconds, tokens, kept, groups = measured(lambda seed=seed: draw(seed))
            spent[way].append((seconds, tokens, kept))
            drawn[way] += [rollout for group in groups for rollout in group.rollouts]
    print(f"{len(problems)} x {own.samples_per_prompt} episodes, {torch.get_num_threads()} thread")
    print("way | processor seconds of each round | prompt tokens read | most MiB kept")
    for way, rounds in spent.items():
        seconds, tokens, kept = zip(*rounds, strict=True)
        print(f"{way} | {', '.join(f'{s:.2f}' for s in seconds)} | {sum(tokens)} | {max(kept) / 2**20:.0f}")
    apart = [difference(one, other) for one, other in zip(*drawn.values(), strict=True)]
    same, furthest = sum(equal for equal, _ in apart), max(nats for _, nats in apart)
    print(f"{same} of {len(apart)} episodes are equal token by token; log-probs are {furthest:.1e} nats apart at most")


def difference(one: Rollout, other: Rollout) -> tuple[bool, float]:
    """Return whether two rollouts have equal tokens, and how far log-probs are apart before the first that differs."""
    shorter = min(len(one.completion_ids), len(other.completion_ids))
    differ = one.completion_ids[:shorter] != other.completion_ids[:shorter]
    equal = int(differ.argmax()) if differ.any() else shorter
    gaps = np.abs(one.sampling_logprobs[:equal] - other.sampling_logprobs[:equal])
    return equal == len(one.completion_ids) == len(other.completion_ids), float(gaps.max(initial=0.0))


def measured(work: Callable[[], Any]) -> tuple[float, int, int, Any]:
    """Return (processor seconds, tokens that prefill read, bytes kept at most, result)."""
    tokens, kept = [0], [0]
    prefill, hand_over = Decoder.prefill, Prefixes.hand_over

    def counting(self: Decoder, ids: Any, visible: Any, *more: Any, **named: Any) -> Any:
        tokens[0] += int(visible.sum())
        return prefill(self, ids, visible, *more, **named)

    def weighing(self: Prefixes, prompts: Any) -> Any:
        layers = [x for one in self._cached.values() for of in (one.keys, one.values) for x in of.values()]
        kept[0] = max(kept[0], sum(x.nbytes for x in layers))
        return hand_over(self, prompts)

    began = time.process_time()
    with patch.object(Decoder, "prefill", counting), patch.object(Prefixes, "hand_over", weighing):
        result = work()
    return time.process_time() - began, tokens[0], kept[0], result


if __name__ == "__main__":
    main()
