"""Steps of steadyrl, timed: python bench/ours_step.py grpo base --steps 5; a JSON line per step.

Scoring makes the forward pass of a step's only update. It is counted to the update, as the peers count it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from workloads import (
    BACKEND_ARGS,
    DEVICE,
    EPOCHS,
    KL_COEF,
    LEARNING_RATE,
    LORA,
    PRECISION,
    PROMPTS,
    SAMPLER,
    VALUE_COEF,
    WARM_UP,
    System,
    Workload,
    arguments,
    now,
    report,
)

from steadyrl.core.config import Config, resolve
from steadyrl.loop.checkpoint import State
from steadyrl.loop.train import Session, one_step, open_session

ALGORITHMS = {"grpo": {"kl_coef": KL_COEF}, "ppo": {"kl_coef": KL_COEF, "value_coef": VALUE_COEF}}
NEVER_REACHED = 1e9  # nats: all epochs are made, as in the peers


def main() -> None:
    """Time ``one_step`` as a run calls it; where a step makes one update, its pass over the rows is in the scores."""
    args = arguments(__doc__, tuple(ALGORITHMS))
    work, steps = args.workload, WARM_UP + args.steps
    system = System(f"steadyrl-{args.what}", "steadyrl")
    session = make_session({"name": args.what, "args": ALGORITHMS[args.what]}, work, steps)
    state = State(algorithm=dict(session.algorithm.state))
    timed = {name: Timed(getattr(session.backend, name)) for name in ("generate", "step")}
    for name, method in timed.items():
        setattr(session.backend, name, method)
    for step in range(steps):
        began = now()
        groups, _ = one_step(session, state)
        whole = now() - began
        generated, updated = timed["generate"].take(), timed["step"].take()
        if step < WARM_UP:
            continue
        tokens = sum(rollout.length for group in groups for rollout in group.rollouts)
        parts = {"step": whole, "generate": generated, "score": whole - generated - updated, "update": updated}
        report(system, work, torch.get_num_threads(), tokens, parts)


class Timed:
    """Calls a function and adds up the time of its calls."""

    def __init__(self, function: Callable[..., Any]):
        self._function, self._seconds = function, 0.0

    def __call__(self, *args: Any) -> Any:
        began = now()
        found = self._function(*args)
        self._seconds += now() - began
        return found

    def take(self) -> float:
        """Return the seconds since the last time."""
        found, self._seconds = self._seconds, 0.0
        return found


def make_session(algorithm: dict[str, object], work: Workload, steps: int) -> Session:
    """Open what a run of the workload would open; ``algorithm`` is that section of the config."""
    with tempfile.TemporaryDirectory() as folder:
        files = {"path": work.prompts, "heldout": [f"{PROMPTS[0]}, once more"]}
        for name, prompts in files.items():
            lines = [json.dumps({"prompt": prompt}) + "\n" for prompt in prompts]
            (Path(folder) / name).write_text("".join(lines), encoding="utf-8")
        task = {"name": "prompts", "args": {name: str(Path(folder) / name) for name in files}}
        session = open_session(settings(algorithm, task, work, steps))
    session.backend.tokenizer.end_ids = ()  # as for the peers, see models.py
    return session


def settings(algorithm: dict[str, object], task: dict[str, object], work: Workload, steps: int) -> Config:
    """Return the config of the run."""
    return resolve(
        {
            "run": {"steps": steps},
            "model": {
                "path": str(work.own_folder),
                "chat_template": "never",
                "lora_rank": LORA,
                "lora_alpha": LORA or 1,
            },
            "backend": {
                "device": DEVICE,
                "precision": PRECISION,
                "args": BACKEND_ARGS,
            },
            "sampler": {} if SAMPLER == "own" else {"engine": "vllm", "args": {"mode": SAMPLER}},
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
