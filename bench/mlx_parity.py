"""How near MLX and PyTorch are to float64 on a real model: python bench/mlx_parity.py FOLDER [--rows 2 --tokens 96].

Both backends compute in float32 on the CPU. The truth is the model of transformers in float64. Rows are pieces of the
README; the first third of each is the prompt.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.algorithms import grpo
from steadyrl.backends.mlx import plugin as in_mlx
from steadyrl.backends.torch import plugin as in_torch
from steadyrl.core import config
from steadyrl.core.protocols import Update
from steadyrl.core.types import Batch, Group, Problem, Rollout, Sampling, TokenScores
from steadyrl.maths.batch import make_batch

ROOT = Path(__file__).parent.parent
PLAIN = Sampling(1)


@dataclass(frozen=True)
class Measured:
    """What a program makes of the batch: log-probs [N] two ways, the loss (mean of -log p) and its gradients."""

    scored: np.ndarray
    loss: float
    gradients: dict[str, np.ndarray]


def main() -> None:
    """Print the distances of both backends from float64, and of each from the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=96)
    args = parser.parse_args()
    batch = batch_of(args.model, args.rows, args.tokens)
    truth = in_float64(args.model, batch)
    found = {name: in_backend(args.model, batch, name, plugin) for name, plugin in backends()}
    print(f"mean log-prob in float64: {-truth.loss:.9f} over {len(truth.scored)} tokens")
    pairs = [(name, one, truth) for name, one in found.items()] + [("mlx - torch", found["mlx"], found["torch"])]
    for name, one, other in pairs:
        far = one.scored - other.scored
        print(
            f"{name:12} log-probs: max {np.abs(far).max():.1e}, mean {far.mean():+.1e}; "
            f"loss: {one.loss - other.loss:+.1e}; "
            f"worst gradient: {max(distances(one.gradients, other.gradients)):.1e} of its largest entry"
        )


def backends() -> Iterator[tuple[str, Any]]:
    """Yield the backends by name."""
    yield from {"torch": in_torch, "mlx": in_mlx}.items()


def batch_of(model: Path, rows: int, tokens: int) -> Batch:
    """Return rows of a text that nobody sampled."""
    import transformers

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    ids = np.array(transformers.AutoTokenizer.from_pretrained(model)(text)["input_ids"][: rows * tokens], np.int32)
    groups = []
    for number, row in enumerate(ids.reshape(rows, tokens)):
        prompt, rest = np.split(row, [tokens // 3])
        free, unknown = np.ones(len(rest), bool), np.zeros(len(rest), np.float32)
        rollout = Rollout(str(number), prompt, rest, free, unknown, "", "length", reward=0.0)
        groups.append(Group(Problem(str(number), ""), (rollout,)))
    return make_batch(groups, 0)


def in_float64(model: Path, batch: Batch) -> Measured:
    """Measure with transformers in float64."""
    import torch
    import transformers

    net = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64).eval()
    tokens = torch.from_numpy(batch.tokens.astype(np.int64))
    logp = net(tokens[:, :-1]).logits.log_softmax(-1).gather(2, tokens[:, 1:, None])[..., 0]
    chosen = logp[torch.from_numpy(batch.completion_mask[:, 1:])]
    loss = -chosen.mean()
    loss.backward()
    gradients = {name: p.grad.numpy() for name, p in net.named_parameters()}
    return Measured(chosen.detach().numpy(), loss.item(), gradients)


def in_backend(model: Path, batch: Batch, name: str, plugin: Any) -> Measured:
    """Measure with a backend, the way training does."""
    settings = {"model": {"path": str(model)}, "backend": {"name": name, "device": "cpu"}, "rewards": {"length": 1.0}}
    backend = plugin.create(config.resolve(settings), grpo.build(grpo.Settings()))
    scores = backend.score(batch, PLAIN, frozenset())
    named, stats = backend.gradients(replace(batch, old=scores), Update(surprise, PLAIN, frozenset(), 0.0, 1.0))
    gradients = {key: np.array(gradient.tolist(), np.float32) for key, gradient in named.items()}
    del named, backend
    gc.collect()
    return Measured(scores.logprobs[batch.completion_mask], stats["loss/total"][0], gradients)


def surprise(xp: Any, new: TokenScores, arrays: dict[str, Any], count: float) -> tuple[Any, dict[str, Any]]:
    """Return the mean of -log p, as a loss."""
    return -(new.logprobs * arrays["mask"]).sum() / count, {}


def distances(ones: dict[str, np.ndarray], others: dict[str, np.ndarray]) -> list[float]:
    """Return how far each gradient is from the other, relative to its largest entry."""
    assert ones.keys() == others.keys(), "both have the same parameters"
    return [float(np.abs(one - others[name]).max() / np.abs(others[name]).max()) for name, one in ones.items()]


if __name__ == "__main__":
    main()
