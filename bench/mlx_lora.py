"""GRPO in MLX beside mlx-lm-lora and PyTorch: the loss of the same batch, and processor time, in one process.

    pip install --no-deps "mlx-lm-lora==5.10.2"        (into an environment that has steadyrl[torch,mlx])
    python bench/mlx_lora.py

All read the base model, answer the same requests of the search task, and take the gradient of the same completions
with the same advantages, on one thread. Figures of a Linux CPU say nothing about a Mac.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.algorithms import grpo
from steadyrl.backends.mlx import plugin as in_mlx
from steadyrl.backends.torch import plugin as torch_plugin
from steadyrl.core import config
from steadyrl.core.protocols import Update
from steadyrl.core.types import Batch, Sampling
from steadyrl.environments.search.task import SearchTask
from steadyrl.loop.rollout.collect import collect
from steadyrl.maths.batch import make_batch

ROOT = Path(__file__).parent.parent
PROMPTS, SAMPLES, LENGTH, BETA, ROUNDS = 16, 4, 24, 0.1, 3
ALGORITHM = grpo.build(grpo.Settings(kl_coef=BETA))


def main() -> None:
    """Measure, print and write bench/results/mlx_lora.json."""
    ours, in_torch = opened("mlx", in_mlx), opened("torch", torch_plugin)
    import mlx.core as mx
    import mlx.nn as nn
    from mlx_lm.utils import load
    from mlx_lm_lora import __version__
    from mlx_lm_lora.trainer.grpo_trainer import generate_grpo, grpo_loss

    problems = SearchTask(SearchTask.Settings()).problems("train")[:PROMPTS]
    result: dict[str, Any] = {"date": date.today().isoformat(), "system": platform.system(), "peer": __version__}
    result |= {"rollouts": PROMPTS * SAMPLES, "losses": {}}
    move(ours, problems)
    folder = ROOT / "build" / "mlx-lora" / "policy"
    ours.save(folder.parent)
    in_torch.load(folder.parent)
    policy, tokenizer = load(str(folder))
    reference, _ = load(str(ours._loaded.source))
    prompts = [ours.tokenizer.encode_prompt(problem.prompt).tolist() for problem in problems]
    for temperature in (1.0, 0.8):
        sampling = Sampling(LENGTH, temperature=temperature)
        batch = scored(ours, problems, sampling)
        rows = [batch.tokens[row, : batch.lengths[row]] for row in range(len(batch.lengths))]
        starts = batch.completion_mask.argmax(axis=1)
        arguments = {
            "batch": [[row[:start].tolist() for row, start in zip(rows, starts, strict=True)]],
            "completions": [mx.array(row[start:]) for row, start in zip(rows, starts, strict=True)],
            "batch_indices": list(range(len(rows))),
            "advantages": mx.array(batch.advantages.max(axis=1) + batch.advantages.min(axis=1), mx.float32),
            "beta": BETA, "epsilon": 0.2, "max_tokens": LENGTH, "grpo_loss_type": "bnpo",
        }  # fmt: skip
        theirs = nn.value_and_grad(policy, lambda arguments=arguments: grpo_loss(policy, reference, **arguments)[0])

        def gradient(theirs: Callable[[], Any] = theirs) -> float:
            loss, gradients = theirs()
            mx.eval(loss, gradients)
            return loss.item()

        def our_gradient(backend: Any = ours, batch: Batch = batch, sampling: Sampling = sampling) -> float:
            update = Update(ALGORITHM.loss, sampling, ALGORITHM.needs, 0.0, 1.0)
            return backend.gradients(batch, update)[1]["loss/total"][0]

        found = {"MLX": our_gradient(), "PyTorch": our_gradient(in_torch), "mlx-lm-lora": gradient()}
        result["losses"][f"temperature {temperature}"] = found
        print(f"temperature {temperature}: loss {found}")

    def drawn() -> Any:
        return generate_grpo(policy, tokenizer, prompts, LENGTH, SAMPLES, PROMPTS, "", 0.8, 0.0, 0, 0.0)

    ids = [np.array(prompt, np.int32) for prompt in prompts for _ in range(SAMPLES)]

    def ours_of(backend: Any) -> dict[str, Callable[[], Any]]:
        return {
            "sampling": lambda: backend.generate(ids, sampling, range(len(ids))),
            "reference and gradient": lambda: (
                backend.score(batch, sampling, ALGORITHM.needs), our_gradient(backend)
            ),
        }  # fmt: skip

    works = {
        "MLX": ours_of(ours),
        "PyTorch": ours_of(in_torch),
        "mlx-lm-lora": {"sampling": drawn, "reference and gradient": gradient},
    }
    result["processor_s"] = {who: {what: seconds(work) for what, work in some.items()} for who, some in works.items()}
    print(json.dumps(result["processor_s"], indent=1))
    file = ROOT / "bench" / "results" / "mlx_lora.json"
    file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def opened(name: str, plugin: Any) -> Any:
    """Return a backend with the base model."""
    settings = {"rewards": {"length": 1.0}, "backend": {"name": name, "device": "cpu", "threads": 1}}
    return plugin.create(config.resolve(settings), ALGORITHM)


def scored(backend: Any, problems: list[Any], sampling: Sampling) -> Batch:
    """Return a prepared batch of the backend's own completions, with rewards from a seed."""
    generator = np.random.default_rng(0)
    groups = [
        replace(group, rollouts=tuple(replace(r, reward=float(generator.normal())) for r in group.rollouts))
        for group in collect(backend, problems, SAMPLES, sampling, (0, 0))
    ]
    batch = make_batch(groups, backend.tokenizer.pad_id)
    return ALGORITHM.prepare(replace(batch, old=backend.score(batch, sampling, ALGORITHM.needs)), ALGORITHM.state)


def move(backend: Any, problems: list[Any]) -> None:
    """Take a step, so that the policy is not its reference."""
    sampling = Sampling(LENGTH)
    backend.step(scored(backend, problems, sampling), Update(ALGORITHM.loss, sampling, ALGORITHM.needs, 1e-3, 1.0))


def seconds(work: Callable[[], Any]) -> float:
    """Return the processor's time of a piece of work, the least of some rounds."""
    times = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return round(min(times), 3)


if __name__ == "__main__":
    main()
