"""How many rollouts a curriculum needs with a real policy: python bench/curricula_policy.py CONFIG --name N --target P.

Trains the same config with each curriculum and seed, and measures success on one fixed set every few steps: the
same held-out problems for all, drawn uniformly, several answers each. Reported: rollouts until the mean success first
reaches --target (median over seeds, where one that never did counts as more than the run had), the mean at the end,
and CVaR, the mean over the worst half of that set (their order from one half of the answers, their success from the
other). One line of bench/results/curricula_<name>.jsonl per finished run: stopped, it goes on where it was.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.core import config
from steadyrl.core.rundir import append_line, read_lines
from steadyrl.core.types import Problem
from steadyrl.loop.checkpoint import State
from steadyrl.loop.rewards.combine import score_groups
from steadyrl.loop.rollout.collect import collect
from steadyrl.loop.train import Session, one_step, open_session

RESULTS = Path(__file__).parent / "results"
CURRICULA = ("uniform", "learnability", "plr")
WORST = 0.5  # of the problems; where most of a pool is dead, the worst few are 0 whatever is done
_KEY = 2**31 + 5  # draws of this measurement


def levels(problems: Sequence[Problem], count: int) -> list[Problem]:
    """Return the fixed set: as many levels, spread over all, the same for every run."""
    order = np.random.default_rng(1).permutation(len(problems))[:count]
    return [problems[i] for i in sorted(order.tolist())]


def success(session: Session, problems: Sequence[Problem], draws: int, metric: str) -> np.ndarray:
    """Return [levels, draws]: the metric of every draw; NaN where it could not be had."""
    groups = collect(session.backend, problems, draws, session.sampling, (0, _KEY), environment=session.environment)
    scored = score_groups(groups, session.terms)
    return np.array([[r.parts.get(metric, math.nan) for r in group.rollouts] for group in scored])


def cvar(found: np.ndarray) -> float:
    """Return the mean over the worst levels; ranked on one half of the draws and measured on the other."""
    half = found.shape[1] // 2
    worst = np.argsort(np.nanmean(found[:, :half], axis=1), kind="stable")[: max(1, round(WORST * len(found)))]
    return float(np.nanmean(found[worst, half:]))


def measure(args: argparse.Namespace, curriculum: str, seed: int) -> dict[str, Any]:
    """Train once and return its line."""
    overrides = [*args.overrides, f"curriculum.name={curriculum}", f"run.seed={seed}"]
    overrides += ["run.epochs=0", f"run.steps={args.steps}"]
    session, state = open_session(config.load(args.config, overrides)), State()
    metric = args.metric or session.task.metric
    fixed, began, rollouts, curve = levels(session.heldout, args.levels), time.process_time(), 0, []
    for step in range(args.steps + 1):
        if step % args.every == 0:
            found = success(session, fixed, args.draws, metric)
            curve.append({"step": step, "rollouts": rollouts, "mean": float(np.nanmean(found)), "cvar": cvar(found)})
            if step == 0:
                start = np.nanmean(found, axis=1)
        if step < args.steps:
            groups, _ = one_step(session, state)
            rollouts += sum(len(group.rollouts) for group in groups)
    return {
        "curriculum": curriculum,
        "seed": seed,
        "levels": len(fixed),
        "mastered_at_start": float(np.mean(start > 0.9)),
        "dead_at_start": float(np.mean(start == 0)),
        "cpu_s": time.process_time() - began,
        "curve": curve,
    }


def until(line: dict[str, Any], target: float) -> float:
    """Return the rollouts after which the mean success reached the target, between measurements by a straight line."""
    curve = line["curve"]
    for before, after in itertools.pairwise(curve):
        if after["mean"] >= target:
            share = (target - before["mean"]) / max(1e-9, after["mean"] - before["mean"])
            return float(before["rollouts"] + max(0.0, share) * (after["rollouts"] - before["rollouts"]))
    return math.inf


def interval(values: Sequence[float]) -> str:
    """Return the mean and its 95 % bootstrap interval over seeds."""
    means = np.random.default_rng(0).choice(values, (4000, len(values))).mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return f"{np.mean(values):.3f} [{low:.3f}, {high:.3f}]"


def reached(lines: Sequence[dict[str, Any]], target: float) -> str:
    """Return the rollouts to the target: median, least and most over seeds, and how many seeds reached it.

    A mean of those who did would leave the slowest out. The least and the most of n seeds lie on both sides of the true
    median with a chance of 1 - 2 / 2^n: 94 % for five.
    """
    most = max(line["curve"][-1]["rollouts"] for line in lines)
    found = sorted(until(line, target) for line in lines)
    low, middle, high = (
        f"{value:.0f}" if math.isfinite(value) else f"> {most}" for value in (found[0], np.median(found), found[-1])
    )
    return f"{middle} [{low}, {high}], {sum(map(math.isfinite, found))} of {len(found)}"


def table(lines: Sequence[dict[str, Any]], target: float) -> str:
    """Return the results as Markdown."""
    rows = [f"| curriculum | seeds | rollouts to {target:g} | success at the end | CVaR of the worst {WORST:.0%} |"]
    rows.append("|---|---:|---:|---:|---:|")
    for name in CURRICULA:
        own = [line for line in lines if line["curriculum"] == name]
        if own:
            ends = [line["curve"][-1] for line in own]
            rows.append(
                f"| {name} | {len(own)} | {reached(own, target)} | "
                f"{interval([e['mean'] for e in ends])} | {interval([e['cvar'] for e in ends])} |"
            )
    first = lines[0]
    mastered, dead = first["mastered_at_start"], first["dead_at_start"]
    return "\n".join(
        [
            *rows,
            "",
            f"{first['levels']} held-out problems, the same for all; before training {mastered:.0%} of them were "
            f"mastered (above 0.9), {dead:.0%} dead (never solved in the draws). Means over seeds with 95 % bootstrap "
            "intervals; of the rollouts the median, with the least and the most of all seeds.",
        ]
    )


def main() -> None:
    """Make what is lacking, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--name", required=True, help="of the file of results")
    parser.add_argument("--curricula", nargs="+", default=CURRICULA)
    parser.add_argument("--seeds", type=int, nargs="+", default=range(5))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--levels", type=int, default=60)
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--metric", default="")
    parser.add_argument("--target", type=float, required=True)
    args = parser.parse_intermixed_args()
    path = RESULTS / f"curricula_{args.name}.jsonl"
    lines = list(read_lines(path)) if path.is_file() else []
    for seed in args.seeds:
        for curriculum in args.curricula:
            if not any(line["curriculum"] == curriculum and line["seed"] == seed for line in lines):
                lines.append(measure(args, curriculum, seed))
                append_line(path, lines[-1])
                print(
                    json.dumps({k: v for k, v in lines[-1].items() if k != "curve"}), lines[-1]["curve"][-1], flush=True
                )
    print(table(lines, args.target))


if __name__ == "__main__":
    main()
