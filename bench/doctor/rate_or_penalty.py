"""Does the doctor tell a rate that is too low from too strong a penalty? python bench/doctor/rate_or_penalty.py.

Twelve runs of the base model: two tasks, two algorithms, and three settings each of the learning rate and of the KL
coefficient. What holds a run back is found by experiment and not by eye: the run is made again with ten times the
rate, and again with a tenth of the coefficient, and the change that raises the reward most, beyond twice the standard
error, is the cause. Reward is the mean over the last fifth of the steps. A line of JSON for each run, and a table.

The doctor answers twice: by the whole log, and without the gradients of reward and penalty (gradient/...). With --toy
the runs are of the toy backend, three tasks and five settings: thirty runs, each with two more that find its cause.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import steadyrl
from steadyrl.core import config
from steadyrl.core.rundir import RunDir, write_lines
from steadyrl.doctor.examine import diagnose
from steadyrl.loop.train import open_session, train

STEPS, PROMPTS, SAMPLES = 60, 8, 8
LAST = 0.2  # of the steps
TASKS = {"search": {"worth": 1.0, "joint": 1.0, "parseable": 0.1}, "length": {"length": 1.0}}
ALGORITHMS = ("ppo", "grpo")
CELLS = {"slow": (3e-6, 0.02), "held": (1e-4, 1.0), "between": (1e-4, 0.05)}  # learning rate, KL coefficient
WORDS = {"name": "prompts", "args": {"path": str(Path(__file__).parent / "prompts.jsonl")}}
TOY_TASKS = {"letters": {"scores:early_letters": 1.0}, "length": {"length": 1.0}, "order": {"scores:in_order": 1.0}}
TOY_CELLS = {"slow": (3e-3, 0.02), "slower": (1e-3, 0.3), "held": (0.1, 1.0), "between": (0.1, 0.1), "mid": (0.02, 0.3)}
CHECKS = {"learning_rate_too_low": "rate", "kl_penalty_holds": "penalty", "kl_penalty_outweighs": "penalty"}


@dataclass(frozen=True)
class Cell:
    """What a run is made of."""

    task: str
    algorithm: str
    rate: float
    coefficient: float
    seed: int
    toy: bool = False

    def settings(self, folder: Path) -> dict[str, dict[str, Any]]:
        """Return the config of its run."""
        fixed = {"kl_control": "fixed"} if self.algorithm == "ppo" else {}
        return {
            "run": {
                "steps": STEPS, "seed": self.seed, "checkpoint_every": STEPS, "preflight": "off", "folder": str(folder),
            },
            "task": WORDS if self.toy else {"name": "search"},
            "rewards": (TOY_TASKS if self.toy else TASKS)[self.task],
            "sampling": {"max_new_tokens": 12 if self.toy else 24},
            "rollout": {"prompts_per_step": PROMPTS, "samples_per_prompt": SAMPLES},
            "evaluate": {"problems": 8},
            "algorithm": {"name": self.algorithm, "args": {"kl_coef": self.coefficient, **fixed}},
            "update": {"learning_rate": self.rate, "warmup_steps": 0},
            "backend": {"name": "toy"} if self.toy else {"threads": 1},
        }  # fmt: skip


def main() -> None:
    """Make the runs that were asked for."""
    args = arguments()
    lines = []
    tasks, cells = (TOY_TASKS, TOY_CELLS) if args.toy else (TASKS, CELLS)
    for task, algorithm, (rate, coefficient) in product(args.task or tasks, args.algorithm, cells.values()):
        lines.append(examined(Cell(task, algorithm, rate, coefficient, args.seed, args.toy)))
        print(json.dumps(lines[-1]), flush=True)
    print(table(lines))


def examined(cell: Cell) -> dict[str, Any]:
    """Return the cause of a cell by experiment, and what the doctor says of it."""
    with tempfile.TemporaryDirectory() as folder:
        run = steadyrl.run(cell.settings(Path(folder)))
        before, said = last(list(run.metrics())), answers(run.path)
        write_lines(run.metrics_file, [without_gradient_parts(record) for record in run.metrics()])
        said_without = answers(run.path)
        changed = {
            "rate": replace(cell, rate=10 * cell.rate), "penalty": replace(cell, coefficient=0.1 * cell.coefficient)
        }  # fmt: skip
        gains = {}
        for cause, other in changed.items():
            other_run = RunDir(Path(folder) / cause)
            train(open_session(config.resolve(other.settings(Path(folder)))), other_run)
            gains[cause] = gain(before, last(list(other_run.metrics())))
    beyond = {cause: size for cause, (size, error) in gains.items() if size > 2 * error}
    return {
        **asdict(cell),
        "reward": round(float(before.mean()), 4),
        **{f"gain by {cause}": [round(number, 4) for number in numbers] for cause, numbers in gains.items()},
        "cause": max(beyond, key=lambda cause: beyond[cause]) if beyond else "neither",
        "doctor": said,
        "without the gradients": said_without,
    }


def answers(folder: Path) -> str:
    """Return which of the two the doctor's first finding about either names; what harms comes first."""
    found = [finding for diagnosis in diagnose(folder) for finding in diagnosis.findings if finding.check in CHECKS]
    return CHECKS[min(found, key=lambda finding: not finding.harms).check] if found else "neither"


def without_gradient_parts(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line of metrics without the gradients of reward and penalty."""
    return {name: value for name, value in record.items() if not name.startswith("gradient/")}


def last(records: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Return the mean rewards of the last steps."""
    values = np.array([float(record["reward/mean"]) for record in records])
    return values[-max(2, int(LAST * len(values))) :]


def gain(before: np.ndarray, after: np.ndarray) -> tuple[float, float]:
    """Return the difference of means and its standard error."""
    error = float(np.sqrt(before.var(ddof=1) / len(before) + after.var(ddof=1) / len(after)))
    return float(after.mean() - before.mean()), error


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the runs as a table in Markdown, and how often each cause is named."""
    rows = ["| task | algorithm | rate | KL coefficient | reward | ten times the rate | a tenth of the coefficient | "
            "cause by experiment | the doctor | without the gradients |",
            "|---|---|---:|---:|---:|---:|---:|---|---|---|"]  # fmt: skip
    for line in lines:
        gains = [f"{size:+.3f} +- {error:.3f}" for size, error in (line["gain by rate"], line["gain by penalty"])]
        shown = [line["task"], line["algorithm"], f"{line['rate']:g}", f"{line['coefficient']:g}"]
        said = [line["cause"], line["doctor"], line["without the gradients"]]
        rows.append("| " + " | ".join([*shown, f"{line['reward']:.3f}", *gains, *said]) + " |")
    for key in ("doctor", "without the gradients"):
        rows += ["", *confusion(lines, key)]
    return "\n".join(rows)


def confusion(lines: Sequence[Mapping[str, Any]], key: str) -> list[str]:
    """Return how often each cause is named, and how many of the named ones raise the reward when they are followed."""
    names = ("rate", "penalty", "neither")
    rows = [f"| cause by experiment | {' | '.join(f'{key}: {name}' for name in names)} |", "|---|---:|---:|---:|"]
    for cause in names:
        counts = [sum(line["cause"] == cause and line[key] == name for line in lines) for name in names]
        rows.append(f"| {cause} | {' | '.join(map(str, counts))} |")
    gains = [line[f"gain by {line[key]}"] for line in lines if line[key] != "neither"]
    helped = sum(size > 2 * error for size, error in gains)
    return [
        *rows,
        "",
        f"Named {len(gains)} of {len(lines)}, of which {helped} raise the reward when they are followed.",
    ]


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", nargs="+", choices=[*TASKS, *TOY_TASKS], help="all of its kind if not given")
    parser.add_argument("--toy", action="store_true", help="runs of the toy backend")
    parser.add_argument("--algorithm", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
