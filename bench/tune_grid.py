"""Does `steadyrl tune` find the rate of a full grid for a tenth of its samples? python bench/tune_grid.py TASK ...

The tasks are toy, adapter, smollm2, length and retrieval. The grids of the first three are made here: the toy's in a
minute, that of a LoRA adapter on the base model in three, and that of one on SmolLM2-135M (models/smollm2, see `make
smollm2`) in a quarter of an hour on one core. An adapter's has every rate with the first seed, and the best three of
these rates with the others. They are kept in bench/results/tune_grid.jsonl, one line per run, and a grid that was cut
goes on where it was. Those of all weights of the base model are the runs without an autopilot of bench/any_rate.py, as
they stand in bench/results/any_rate.jsonl. The search starts from a config whose rate is three decades below the grid's
best, and may take a tenth of the samples of the whole grid, every rate with every seed. Prints one row of a table for
each task.
"""

from __future__ import annotations

import argparse
import string
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.core import config
from steadyrl.core.config import Config
from steadyrl.core.errors import DivergedError
from steadyrl.core.rundir import append_line, read_lines, write_lines
from steadyrl.lab.jobs import Follow
from steadyrl.lab.measure import heldout_mean
from steadyrl.lab.tune.rate_range import RATE
from steadyrl.lab.tune.tune import Options, tune
from steadyrl.loop import launch

HERE = Path(__file__).parent
GRIDS = HERE / "results" / "tune_grid.jsonl"
sys.path.insert(0, str(HERE))  # the reward below, and any_rate

import any_rate  # noqa: E402 (it is found only after the line above)

TOY_RATES = tuple(float(10.0**exponent) for exponent in np.arange(-4.0, 1.01, 0.25))
TOY_SEEDS = (0, 1, 2, 3, 4)
ADAPTERS = {"adapter": ("base", 30), "smollm2": ("models/smollm2", 12)}  # model and steps
REAL_RATES = tuple(float(10.0**exponent) for exponent in np.arange(-5.0, -0.99, 0.5))
REAL_SEEDS = (0, 1, 2)
SHARE, OFF = 0.1, 1e-3  # of the grid's samples; the start, as a share of the grid's best rate
HELDOUT = 64
BEST = 3  # rates of the real grid that have all seeds

Grid = Mapping[float, list[float]]  # held-out scores of the seeds, by rate


def share_of_a(problem: Any, rollout: Any) -> float:
    """Return the share of the letter a in a completion."""
    return rollout.text.count("a") / max(1, len(rollout.text.strip()))


def toy(folder: Path) -> Config:
    """Return the settings of the toy task, with GRPO."""
    prompts = folder / "prompts.jsonl"
    write_lines(prompts, [{"prompt": 3 * letter} for letter in string.ascii_lowercase])
    return config.resolve(
        {
            "run": {"steps": 24, "doctor_every": 0, "preflight": "off", "folder": str(folder / "runs")},
            "backend": {"name": "toy"},
            "task": {"name": "prompts", "args": {"path": str(prompts)}},
            "rewards": {"tune_grid:share_of_a": 1.0},
            "sampling": {"max_new_tokens": 4},
            "rollout": {"prompts_per_step": 8, "samples_per_prompt": 4},
            "algorithm": {"name": "grpo"},
            "update": {"warmup_steps": 0},
        }
    )


def adapter(folder: Path, model: str, steps: int) -> Config:
    """Return the settings of a LoRA adapter that learns how long answers are to be, with GRPO."""
    return config.resolve(
        {
            "run": {"steps": steps, "doctor_every": 0, "preflight": "off", "folder": str(folder / "runs")},
            "model": {"path": model, "chat_template": "never", "lora_rank": 8, "lora_alpha": 16},
            "backend": {"precision": "fp32"},
            **any_rate.REWARDS["length"],  # an answer without words, which any high rate finds, is not the best one
            "rollout": {"prompts_per_step": 4, "samples_per_prompt": 4},
            "algorithm": {"name": "grpo", "args": {"kl_coef": 0.0}},
            "update": {"epochs": 1, "minibatches": 1, "warmup_steps": 0},
            "evaluate": {"problems": 32},
        }
    )


def made_grid(name: str, settings: Config, rates: Sequence[float], seeds: Sequence[int]) -> Grid:
    """Run what is missing of a grid; a run that diverged scored nothing."""
    known = {(line["task"], line["rate"], line["seed"]): line["score"] for line in read_lines(GRIDS)}
    for seed in seeds:
        for rate in rates:
            if (name, rate, seed) not in known:
                known[name, rate, seed] = _score(settings, rate, seed)
                line = {"task": name, "rate": rate, "seed": seed, "score": known[name, rate, seed]}
                append_line(GRIDS, line)
    return {rate: [known[name, rate, seed] for seed in seeds] for rate in rates}


def _score(settings: Config, rate: float, seed: int) -> float:
    try:
        run = launch.run(config.resolve(config.dump(settings), [f"{RATE}={rate}", f"run.seed={seed}"]))
    except DivergedError:
        return 0.0
    found = heldout_mean(run, "after", "metric")
    assert found is not None, "every run is measured"
    return found


def recorded_grid(reward: str) -> Grid:
    """Return the recorded grid of a task of the base model; a run that diverged scored nothing."""
    found: dict[float, dict[int, float]] = {}
    for line in read_lines(any_rate.RESULTS):
        if line["reward"] == reward and line["arm"] in ("off", "tuned") and line["steps"] == any_rate.STEPS:
            found.setdefault(line["rate"], {})[line["seed"]] = line["after"] or 0.0
    return {rate: list(scores.values()) for rate, scores in sorted(found.items())}


def row(name: str, folder: Path) -> str:
    """Measure one task and return its row."""
    if name == "toy":
        settings = toy(folder)
        grid = made_grid(name, settings, TOY_RATES, TOY_SEEDS)
    elif name in ADAPTERS:
        settings = adapter(folder, *ADAPTERS[name])
        # Of the other rates, which one seed has shown to be worse, nobody asks how much worse.
        first = made_grid(name, settings, REAL_RATES, REAL_SEEDS[:1])
        best_first = sorted(first, key=lambda rate: -first[rate][0])
        grid = first | made_grid(name, settings, best_first[:BEST], REAL_SEEDS)
    else:
        grid = recorded_grid(name)
        plan = any_rate.Plan(name, "off", next(iter(grid)), 0)
        settings = config.resolve(
            config.dump(any_rate.settings(plan, str(folder / "runs"))), [f"evaluate.problems={HELDOUT}"]
        )
    made, most = sum(map(len, grid.values())), max(map(len, grid.values()))
    best = max((rate for rate in grid if len(grid[rate]) == most), key=lambda rate: float(np.mean(grid[rate])))
    per_run = settings.run.steps * settings.rollout.rollouts
    runs = len(grid) * most
    budget = int(SHARE * runs * per_run)
    start = config.resolve(config.dump(settings), [f"{RATE}={OFF * best}"])
    found = tune(start, folder / "tune", Options(budget, seeds=1), Follow(note=print))
    assert found is not None, "nobody stops it"
    rate = found["settings"][RATE]
    cells = (
        name,
        settings.algorithm.name,
        f"{made} runs, in whole {runs} with {runs * per_run:,} samples",
        f"{best:.1e}",
        f"{OFF * best:.0e}",
        f"{found['range']['centre']:.1e}",
        f"{rate:.1e}",
        f"{max(rate / best, best / rate):.1f}",
        f"{found['samples']:,}",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="+", choices=("toy", *ADAPTERS, *any_rate.REWARDS))
    for name in parser.parse_args().tasks:
        with tempfile.TemporaryDirectory() as folder:
            print(row(name, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
