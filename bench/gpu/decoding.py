"""Our kernels beside PyTorch's on a larger model: how long a token of all rows takes, and how the trainer reads it."""

from __future__ import annotations

import gc
import time
import tomllib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import continuous
import numpy as np
from agreement import CONFIG, SIZES
from models import model_folder
from part import Place, Row, at_most

from steadyrl.backends.torch import device
from steadyrl.backends.torch.draw.graph import Captured
from steadyrl.core.config import resolve
from steadyrl.core.types import Sampling
from steadyrl.loop.checkpoint import State
from steadyrl.loop.preflight.parity import TOLERANCES
from steadyrl.loop.train import one_step, open_session

ROWS, NEW = 64, 64
MANY, LONG = 256, 512
# Model, rows at a time, prompts, longest completion.
ENTERING = {"cuda": ("0.5b", 64, 256, 512), "cpu": ("base", 4, 12, 16)}


def beside_pytorch(place: Place) -> Iterator[Row]:
    """Sample the same prompts with both, and make a step."""
    for name in ("PyTorch's", "ours"):
        tried_on = device.KERNELS_ON if name == "ours" else frozenset()
        with patch.object(device, "KERNELS_ON", tried_on):
            yield from _measured(place, name)
        gc.collect()


def entering(place: Place) -> Iterator[Row]:
    """Sample completions of very different lengths batch after batch, and with prompts that enter free rows."""
    model, rows, prompts, tokens = ENTERING[place.device]
    backend = continuous.opened(str(model_folder(model) / "own"), rows, place.device)
    ends = tuple(range(0, backend.split.head.out_features, tokens // 4))  # a fourth of the longest, on average
    completions, rates = continuous.measured(backend, prompts, rows, 2, ends, Sampling(max_new_tokens=tokens))
    equal = sum(np.array_equal(one.ids, other.ids) for one, other in zip(*completions, strict=True))
    what = f"{model}: {prompts} prompts, {rows} rows at a time"
    yield Row(f"{what}, batch after batch", rates[0], "tokens/s")
    yield Row(f"{what}, entering", rates[1], "tokens/s")
    yield Row(f"{what}, equal completions", equal, note=f"of {prompts}; rounding decides between likely tokens")


def _measured(place: Place, name: str) -> Iterator[Row]:
    overrides = [f"model.path={model_folder(SIZES[place.device]) / 'own'}", f"backend.device={place.device}"]
    session = open_session(resolve(tomllib.loads(CONFIG), [*overrides, "algorithm.name=grpo"]))
    backend: Any = session.backend
    ends, backend.tokenizer.end_ids = backend.tokenizer.end_ids, ()
    prompts = [backend.tokenizer.encode_prompt(f"put item {n} into the queue") for n in range(8)] * (ROWS // 8)
    seconds, replays, replay = [], [], Captured.__call__
    with patch.object(Captured, "__call__", lambda graph, *inputs: replays.append(graph) or replay(graph, *inputs)):
        for _ in range(3):
            began = time.perf_counter()
            backend.generate(prompts, Sampling(max_new_tokens=NEW), range(ROWS))
            seconds.append(time.perf_counter() - began)
    if name == "ours":
        many = [prompts[row % ROWS] for row in range(MANY)]
        began = time.perf_counter()
        backend.generate(many, Sampling(max_new_tokens=LONG), range(MANY))
        seconds_many = time.perf_counter() - began
        yield Row(f"{name} kernels: {MANY} rows of {LONG} tokens", MANY * LONG / seconds_many, "tokens/s")
    backend.tokenizer.end_ids = ends
    metrics = one_step(session, State(algorithm=dict(session.algorithm.state)))[1]
    yield Row(f"{name} kernels: first {NEW} tokens of {ROWS} rows", seconds[0], "s")
    # The step and the choice of every token but the first.
    share = len(replays) / (3 * (2 * NEW - 2))
    yield Row(f"{name} kernels: steps that are replayed graphs", share, "", ">= 1", share >= 1)
    yield Row(f"{name} kernels: a token of all rows", 1e3 * min(seconds[1:]) / NEW, "ms")
    gap = float(metrics["sampler_gap"] or 0.0)
    yield at_most(f"{name} kernels: gap of sampler and trainer", gap, TOLERANCES["bf16"][0], "nats")
