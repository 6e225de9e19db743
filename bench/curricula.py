"""Curricula on a pool of mostly mastered and dead problems: python bench/curricula.py [seeds].

The toy backend answers letters; a letter is a problem, solved by answering "x". Of 36, four can be learned (solved
10 % of the time at first), nine are mastered and 23 dead. Prints, by curriculum, the exact success rate on the four
after 20, 40 and 60 steps of GRPO and on the worse two of them after 60 (mean over seeds, with a 95 % bootstrap
interval), the rollouts until half of the answers to the four are right (median over seeds, with the least and the
most), the share of draws that fell on the four, and how many rollouts the run took.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from steadyrl.core import config
from steadyrl.core.types import Problem
from steadyrl.loop.checkpoint import State
from steadyrl.loop.train import Session, one_step, open_session

LEARNABLE, MASTERED, DEAD = "abcd", "efghijklm", "nopqrstuvwxyz0123456789"
LOGITS = {**dict.fromkeys(LEARNABLE, 1.6), **dict.fromkeys(MASTERED, 12.0)}
KINDS = {**dict.fromkeys(LEARNABLE, 2), **dict.fromkeys(MASTERED, 1), **dict.fromkeys(DEAD, 3)}
MEASURED_AT = (20, 40, 60)
SAMPLES, TARGET = 8, 0.5
CASES: Sequence[tuple[str, ...]] = (
    ("curriculum.name=uniform",),
    ("curriculum.name=uniform", "algorithm.args.groups=signal", "rollout.refill=3"),
    ("curriculum.name=learnability",),
    ("curriculum.name=plr",),
    ("curriculum.name=plr", "curriculum.args.score=best_minus_mean"),
    ("curriculum.name=plr", "curriculum.args.temperature=0.1"),
    ("curriculum.name=bandit",),
)


def solved(problem, rollout):
    """Return whether the answer is "x"; a dead problem never pays."""
    return float(rollout.text.strip()[:1] == "x" and problem.id not in DEAD)


def open_graded(overrides: Sequence[str], seed: int, folder: Path) -> Session:
    """Return a session whose problems are the letters."""
    prompts = folder / "prompts.jsonl"
    lines = (json.dumps({"prompt": letter, "difficulty": kind}) + "\n" for letter, kind in KINDS.items())
    prompts.write_text("".join(lines))
    settings = {
        "run": {"steps": MEASURED_AT[-1], "seed": seed, "folder": str(folder)},
        "backend": {"name": "toy"},
        "task": {"name": "prompts", "args": {"path": str(prompts)}},
        "rewards": {f"{Path(__file__).stem}:solved": 1.0},
        "sampling": {"max_new_tokens": 1},
        "rollout": {"prompts_per_step": 6, "samples_per_prompt": SAMPLES},
        "algorithm": {"name": "grpo", "args": {"kl_coef": 0.0}},
        "update": {"learning_rate": 0.1, "warmup_steps": 0, "epochs": 1, "minibatches": 1},
    }
    session = open_session(config.resolve(settings, overrides))
    ids = session.backend.tokenizer._ids
    for letter, logit in LOGITS.items():
        session.backend.parameters["logits"][ids[letter], ids["x"]] = logit
    problems = [Problem(letter, letter, {"difficulty": kind}) for letter, kind in KINDS.items()]
    return replace(session, problems=problems, heldout=[])


def success(session: Session) -> np.ndarray:
    """Return the exact success rates on the four, [4]."""
    logits, ids = session.backend.parameters["logits"], session.backend.tokenizer._ids
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.array([p[ids[letter], ids["x"]] / p[ids[letter]].sum() for letter in LEARNABLE])


def measure(overrides: Sequence[str], seed: int, folder: Path) -> list[float]:
    """Return the success rates, that of the worse two, the rollouts to the target (infinite where it was not reached),
    the share of draws on the four, and the rollouts that the run took.
    """
    session, state = open_graded(overrides, seed, folder), State()
    rates, drawn, until = [], [], math.inf
    for step in range(MEASURED_AT[-1]):
        groups, _ = one_step(session, state)
        drawn += [group.problem.id in LEARNABLE for group in groups]
        found = success(session)
        until = min(until, float(SAMPLES * len(drawn))) if found.mean() >= TARGET else until
        rates += [float(found.mean())] if step + 1 in MEASURED_AT else []
    worse = float(np.sort(found)[: len(found) // 2].mean())
    return [*rates, worse, until, float(np.mean(drawn)), float(SAMPLES * len(drawn))]


def interval(values: np.ndarray) -> str:
    """Return mean and 95 % bootstrap interval over seeds."""
    means = np.random.default_rng(0).choice(values, (2000, len(values))).mean(axis=1)
    return f"{values.mean():.2f} [{np.quantile(means, 0.025):.2f}, {np.quantile(means, 0.975):.2f}]"


def median(values: np.ndarray) -> str:
    """Return the median over seeds, the least and the most; a seed that never got there counts as infinitely many."""
    return f"{np.median(values):.0f} ({values.min():.0f} to {values.max():.0f})"


def main() -> None:
    """Measure and print all cases."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    heads = [*(f"{at} steps" for at in MEASURED_AT), "the worse two", f"rollouts to {TARGET}", "draws on the four"]
    print(f"| curriculum | {' | '.join(heads)} | rollouts |")
    print("|---" * (len(heads) + 2) + "|")
    sys.path.insert(0, str(Path(__file__).parent))
    with tempfile.TemporaryDirectory() as folder:
        for overrides in CASES:
            found = np.array([measure(overrides, seed, Path(folder)) for seed in range(seeds)])
            cells = [*(interval(column) for column in found.T[:-3]), median(found[:, -3])]
            name = ", ".join(f"`{o.removeprefix('curriculum.')}`" for o in overrides)
            print(
                f"| {name} | {' | '.join(cells)} | {found[:, -2].mean():.0%} | {found[:, -1].mean():.0f} |", flush=True
            )


if __name__ == "__main__":
    main()
