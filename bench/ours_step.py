"""Steps of steadyrl, timed: python bench/ours_step.py grpo base --steps 5; a JSON line per step."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from workloads import (
    EPOCHS,
    KL_COEF,
    LEARNING_RATE,
    PRECISION,
    PROMPTS,
    VALUE_COEF,
    WARM_UP,
    System,
    Workload,
    arguments,
    report,
)

from steadyrl.checkpoint import State
from steadyrl.config import Config, resolve
from steadyrl.train import Session, one_step, open_session

ALGORITHMS = {"grpo": {"kl_coef": KL_COEF}, "ppo": {"kl_coef": KL_COEF, "value_coef": VALUE_COEF}}
NEVER_REACHED = 1e9  # nats: all epochs are made, as in the peers


def main() -> None:
    """Time ``one_step`` as the loop of a run calls it."""
    args = arguments(__doc__, tuple(ALGORITHMS))
    work, steps = args.workload, WARM_UP + args.steps
    system = System(f"steadyrl-{args.what}", "steadyrl")
    session = make_session({"name": args.what, "args": ALGORITHMS[args.what]}, work, steps)
    state = State(algorithm=dict(session.algorithm.state))
    for step in range(steps):
        groups, found = one_step(session, state)
        if step < WARM_UP:
            continue
        tokens = sum(len(rollout.completion_ids) for group in groups for rollout in group.rollouts)
        seconds = {
            "step": found["time/step"],
            "generate": found["time/rollout"],
            "score": found["time/reward"] + found["time/score"],
            "update": found["time/update"],
        }
        report(system, work, torch.get_num_threads(), tokens, seconds)


def make_session(algorithm: dict[str, object], work: Workload, steps: int) -> Session:
    """Open what a run of the workload would open; ``algorithm`` is that section of the config."""
    with tempfile.TemporaryDirectory() as folder:
        files = {"path": work.prompts, "heldout": [f"{PROMPTS[0]}, once more"]}
        for name, prompts in files.items():
            lines = [json.dumps({"prompt": prompt}) + "\n" for prompt in prompts]
            (Path(folder) / name).write_text("".join(lines), encoding="utf-8")
        task = {"name": "prompts", "args": {name: str(Path(folder) / name) for name in files}}
        return open_session(settings(algorithm, task, work, steps))


def settings(algorithm: dict[str, object], task: dict[str, object], work: Workload, steps: int) -> Config:
    """Return the config of the run."""
    return resolve(
        {
            "run": {"steps": steps},
            "model": {"path": str(work.folder)},
            "backend": {"device": "cpu", "precision": PRECISION},
            "task": task,
            "rewards": {"workloads:distinct_words": 1.0},
            "sampling": {"max_new_tokens": work.new_tokens, "temperature": 1.0},
            "rollout": {"prompts_per_step": len(work.prompts), "samples_per_prompt": work.group},
            "algorithm": algorithm,
            "update": {
                "epochs": EPOCHS[str(algorithm["name"])],
                "minibatches": 1,
                "learning_rate": LEARNING_RATE,
                "warmup_steps": 0,
                "kl_old_limit": NEVER_REACHED,
            },
        }
    )


if __name__ == "__main__":
    main()
