"""One run, two learners: PyTorch draws and learns, and MLX takes the same updates from the same samples.

    python bench/mlx_replay.py [--steps 40] [--seed 0]

Curves of separate runs part as soon as rounding picks another token. Here both frameworks see the same tokens, so that
what is left of a difference is that of log-probs, losses, gradients and optimizers, added up over all updates. Writes
bench/results/mlx_replay.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from steadyrl.backends.torch.settings import TorchSettings
from steadyrl.core import config as configs
from steadyrl.core import plugins
from steadyrl.core.config import Config
from steadyrl.core.protocols import Algorithm
from steadyrl.core.rundir import write_text
from steadyrl.core.types import Batch, Completion, Sampling, TokenScores
from steadyrl.loop import launch

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results" / "mlx_replay.json"


class Twins:
    """PyTorch and MLX with the same weights, of which PyTorch draws."""

    def __init__(self, config: Config, algorithm: Algorithm):
        self.drawing, self.following = (
            plugins.load("backend", name).create(
                configs.resolve(configs.dump(config), [f"backend.name={name}", "backend.args={}"]), algorithm
            )
            for name in ("torch", "mlx")
        )
        self.tokenizer = self.drawing.tokenizer

    def describe(self) -> dict[str, object]:
        return self.drawing.describe()

    def generate(self, prompts: Sequence[np.ndarray], sampling: Sampling, seeds: Sequence[int]) -> list[Completion]:
        return self.drawing.generate(prompts, sampling, seeds)

    def score(self, batch: Batch, sampling: Sampling, needs: frozenset[str]) -> TokenScores:
        one, other = (backend.score(batch, sampling, needs) for backend in (self.drawing, self.following))
        mask = batch.completion_mask
        line = {"tokens": float(mask.sum()), "logprobs apart": float(np.abs(one.logprobs - other.logprobs)[mask].max())}
        for name, scores in (("PyTorch", one), ("MLX", other)):
            line[f"entropy {name}"] = float(scores.entropy[mask].mean())
        PLUGIN.seen.append(line)
        return one

    def step(self, *arguments: Any) -> dict[str, tuple[float, float]]:
        self.following.step(*arguments)
        return self.drawing.step(*arguments)

    def save(self, folder: Path) -> None:
        self.drawing.save(folder)

    def load(self, folder: Path) -> None:
        for backend in (self.drawing, self.following):
            backend.load(folder)


PLUGIN = SimpleNamespace(Settings=TorchSettings, create=Twins, seen=[])  # of what was seen a line a step


def main() -> None:
    """Train, and write what differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        launch.run(
            ROOT / "examples" / "search.toml",
            [
                "backend.name=mlx_replay:PLUGIN", "backend.threads=1",
                f"run.steps={args.steps}", f"run.seed={args.seed}", f"run.folder={folder}", "run.preflight=off",
                "rollout.prompts_per_step=16", "evaluate.problems=1",
            ],
        )  # fmt: skip
    seen = plugins.load("backend", "mlx_replay:PLUGIN").seen  # the module was loaded twice: as the program, and by name
    gaps = [line["entropy MLX"] - line["entropy PyTorch"] for line in seen]
    last = {name: float(np.mean([line[name] for line in seen[-10:]])) for name in ("entropy PyTorch", "entropy MLX")}
    found = {
        "steps": args.steps, "seed": args.seed, "entropy, last 10 steps": last,
        "largest difference of a step's entropy": float(np.abs(gaps).max()), "each score": seen,
    }  # fmt: skip
    write_text(RESULTS, json.dumps(found, indent=1) + "\n")
    print(json.dumps({name: value for name, value in found.items() if name != "each score"}, indent=1))


if __name__ == "__main__":
    main()
