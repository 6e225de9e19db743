"""Does the doctor tell a rate that is too low from too strong a penalty? python bench/doctor/rate_or_penalty.py.

Twelve runs of the base model: two tasks, two algorithms, and three settings each of the learning rate and of the KL
coefficient. What holds a run back is found by experiment and not by eye: the run is made again with ten times the
rate, and again with a tenth of the coefficient, and the change that raises the reward most, beyond twice the standard
error, is the cause. Reward is the mean over the last fifth of the steps. A line of JSON for each run, and a table.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import steadyrl
from steadyrl.core import config
from steadyrl.core.rundir import RunDir
from steadyrl.doctor.examine import diagnose
from steadyrl.loop.train import open_session, train

STEPS, PROMPTS, SAMPLES = 60, 8, 8
LAST = 0.2  # of the steps
TASKS = {"search": {"worth": 1.0, "joint": 1.0, "parseable": 0.1}, "length": {"length": 1.0}}
ALGORITHMS = ("ppo", "grpo")
CELLS = {"slow": (3e-6, 0.02), "held": (1e-4, 1.0), "between": (1e-4, 0.05)}  # learning rate, KL coefficient
CHECKS = {"learning_rate_too_low": "rate", "kl_penalty_holds": "penalty", "kl_penalty_outweighs": "penalty"}


def main() -> None:
    """Make the runs that were asked for."""
    args = arguments()
    lines = []
    for task in args.task:
        for algorithm in args.algorithm:
            for name in CELLS:
                lines.append(examined(task, algorithm, name, args.seed))
                print(json.dumps(lines[-1]), flush=True)
    print(table(lines))


def examined(task: str, algorithm: str, name: str, seed: int) -> dict[str, Any]:
    """Return the cause of a cell by experiment, and what the doctor says of it."""
    rate, coefficient = CELLS[name]
    with tempfile.TemporaryDirectory() as folder:
        run = steadyrl.run(settings(Path(folder), task, algorithm, rate, coefficient, seed))
        before, said = last(list(run.metrics())), answers(run.path)
        gains = {}
        for cause, by_rate, by_coefficient in (("rate", 10, 1), ("penalty", 1, 0.1)):
            changed = settings(Path(folder), task, algorithm, rate * by_rate, coefficient * by_coefficient, seed)
            other = RunDir(Path(folder) / cause)
            train(open_session(config.resolve(changed)), other)
            gains[cause] = gain(before, last(list(other.metrics())))
    beyond = {cause: size for cause, (size, error) in gains.items() if size > 2 * error}
    return {
        "task": task, "algorithm": algorithm, "rate": rate, "coefficient": coefficient,
        "reward": round(float(before.mean()), 4),
        **{f"gain by {cause}": [round(number, 4) for number in numbers] for cause, numbers in gains.items()},
        "cause": max(beyond, key=lambda cause: beyond[cause]) if beyond else "neither", "doctor": said,
    }  # fmt: skip


def settings(
    folder: Path, task: str, algorithm: str, rate: float, coefficient: float, seed: int
) -> dict[str, dict[str, Any]]:
    """Return the config of a run."""
    fixed = {"kl_control": "fixed"} if algorithm == "ppo" else {}
    return {
        "run": {"steps": STEPS, "seed": seed, "checkpoint_every": STEPS, "preflight": "off", "folder": str(folder)},
        "task": {"name": "search"},
        "rewards": TASKS[task],
        "sampling": {"max_new_tokens": 24},
        "rollout": {"prompts_per_step": PROMPTS, "samples_per_prompt": SAMPLES},
        "evaluate": {"problems": 8},
        "algorithm": {"name": algorithm, "args": {"kl_coef": coefficient, **fixed}},
        "update": {"learning_rate": rate, "warmup_steps": 0},
        "backend": {"threads": 1},
    }


def answers(folder: Path) -> str:
    """Return which of the two the doctor's first finding about either names."""
    for diagnosis in diagnose(folder):
        for finding in diagnosis.findings:
            if finding.check in CHECKS and finding.harms:
                return CHECKS[finding.check]
    return "neither"


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
            "cause by experiment | the doctor |", "|---|---|---:|---:|---:|---:|---:|---|---|"]  # fmt: skip
    for line in lines:
        gains = [f"{size:+.3f} +- {error:.3f}" for size, error in (line["gain by rate"], line["gain by penalty"])]
        shown = [line["task"], line["algorithm"], f"{line['rate']:g}", f"{line['coefficient']:g}"]
        rows.append("| " + " | ".join([*shown, f"{line['reward']:.3f}", *gains, line["cause"], line["doctor"]]) + " |")
    names = ("rate", "penalty", "neither")
    rows += ["", f"| cause by experiment | {' | '.join(f'doctor: {name}' for name in names)} |", "|---|---:|---:|---:|"]
    for cause in names:
        counts = [sum(line["cause"] == cause and line["doctor"] == name for line in lines) for name in names]
        rows.append(f"| {cause} | {' | '.join(map(str, counts))} |")
    return "\n".join(rows)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--algorithm", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
