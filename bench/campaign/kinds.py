"""The kinds of runs that are killed: backends, algorithms, tasks, curricula, adapters, judges, and what steers them."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.core.types import Problem
from steadyrl.loop.tasks.prompts import PromptsTask

Settings = Mapping[str, Any]


class Prompts(PromptsTask):
    """A task whose problems have a difficulty and can be edited, for curricula that need one or the other."""

    def __init__(self, settings: PromptsTask.Settings, seed: int = 0) -> None:
        super().__init__(settings, seed)
        self.metric = "length" if not settings.metric else settings.metric

    def mutate(self, problem: Problem, generator: np.random.Generator) -> Problem:
        """Return another problem like a given one."""
        word = str(generator.integers(1000))
        return replace(problem, id=f"{problem.id}-{word}", prompt=f"{problem.prompt} {word}")


@dataclass(frozen=True)
class Kind:
    """One kind of run.

    Attributes:
        name: What is special about it.
        settings: Its sections, over those that every kind has.
        needs: An extra of the package that it needs; "" for none.
        judged: Whether it asks a judge's server, whose address is put in.
        acts: Whether the autopilot has to act on it, or the kind tests nothing.
    """

    name: str
    settings: Settings = field(default_factory=dict)
    needs: str = ""
    judged: bool = False
    acts: bool = False

    @property
    def share(self) -> float:
        """Return how often it is tried against the others: what takes longer is tried less often."""
        return 0.5 if self.needs else 1.0

    def config(self, folder: Path, judge: str = "", model: Path | None = None) -> dict[str, Any]:
        """Return the config of a run of this kind.

        Args:
            folder: For run directories; problem files lie beside it.
            judge: The address of the judge's server.
            model: A tiny model folder, for kinds of torch that name none.
        """
        found = copy.deepcopy(COMMON)
        for section, values in self.settings.items():
            found[section] = {**found.get(section, {}), **values}
        if self.settings.get("task", {}).get("name") is None and "task" not in self.settings:
            found["task"] = SEARCH
        if "path" in found["task"]["args"]:
            found["task"] = {**found["task"], "args": {**found["task"]["args"], "path": str(write_problems(folder))}}
        if self.judged:
            found["rewards"] = {"judge": {"base_url": judge, "model": "fair", "cache": ""}}
        if self.needs == "torch":
            found["model"] = {"path": str(model), **found.get("model", {})}
        found["run"] = {**found["run"], "folder": str(folder)}
        return found


COMMON: dict[str, Any] = {
    "rewards": {"length": 0.1},
    "backend": {"name": "toy"},
    "run": {
        "steps": 8, "checkpoint_every": 2, "rollouts_every": 3, "doctor_every": 2, "preflight": "off",
    },
    "rollout": {"prompts_per_step": 4, "samples_per_prompt": 4},
    "sampling": {"max_new_tokens": 6},
    "update": {"learning_rate": 0.05},
    "evaluate": {"problems": 4},
}  # fmt: skip
SEARCH = {"name": "search", "args": {"corpus": "generated"}}
RETRIEVAL = {"retrieval": 1.0, "length": 0.1}
PROMPTS = {"name": "bench.campaign.kinds:Prompts", "args": {"path": ""}}
BROWSE = {"name": "browse", "args": {"train_count": 4, "heldout_count": 1, "levels": [1], "max_turns": 3}}
CODE = {"name": "code", "args": {"problems": "own"}}
TORCH = {"backend": {"name": "torch", "threads": 1, "device": "cpu"}, "update": {"learning_rate": 1e-3}}
LORA = {"model": {"lora_rank": 4}}
# Many steps and a band or a rate so far off that the autopilot has to act, by taking steps back among others.
FAR_OFF = {
    "run": {"steps": 26, "checkpoint_every": 5, "doctor_every": 5, "keep_checkpoints": 4},
    "rollout": {"prompts_per_step": 16, "samples_per_prompt": 2},
}


def _kind(name: str, *parts: Settings, **more: Any) -> Kind:
    merged: dict[str, Any] = {}
    for part in parts:
        for section, values in part.items():
            merged[section] = {**merged.get(section, {}), **values}
    return Kind(name, merged, **more)


def _algorithm(name: str, **args: Any) -> Settings:
    return {"algorithm": {"name": name, "args": args}}


def _curriculum(name: str, **args: Any) -> Settings:
    return {"curriculum": {"name": name, "args": args}}


TOY = (
    _kind("toy, ppo", {"rewards": RETRIEVAL}),
    _kind("toy, grpo, learnability", {"rewards": RETRIEVAL}, _algorithm("grpo"), _curriculum("learnability")),
    _kind("toy, rloo, plr", {"rewards": RETRIEVAL}, _algorithm("rloo"), _curriculum("plr")),
    _kind("toy, reinforce, bandit", {"task": PROMPTS}, _algorithm("reinforce"), _curriculum("bandit")),
    _kind("toy, raft, accel", {"task": PROMPTS}, _algorithm("raft"), _curriculum("accel", edit_share=0.5)),
    _kind(
        "toy, rwr, accel of few problems, refill",
        {"task": PROMPTS, "rollout": {"refill": 2}},
        _algorithm("rwr"),
        _curriculum("accel", most_made=3),
    ),
    _kind("toy, sft", {"rewards": RETRIEVAL, "rollout": {"samples_per_prompt": 1}}, _algorithm("sft")),
    _kind("toy, rlaif, a judge's server", {"task": PROMPTS}, _algorithm("rlaif"), judged=True),
    _kind("toy, grpo, evaluated meanwhile, one checkpoint", {"evaluate": {"every": 2}, "run": {"keep_checkpoints": 1}},
          {"rewards": RETRIEVAL}, _algorithm("grpo")),
    _kind("toy, ppo, the best is kept, patience", {"evaluate": {"every": 1, "patience": 3}, "run": {"steps": 12}},
          {"rewards": RETRIEVAL}),
    _kind("toy, ppo, adaptive KL, schedule, preflight",
          {"rewards": RETRIEVAL, "run": {"preflight": "warn"},
           "update": {"schedule": "cosine", "warmup_steps": 3, "weight_decay": 0.1}},
          _algorithm("ppo", kl_target=0.05)),
    _kind("toy, grpo, episodes of several turns", {"task": BROWSE, "rewards": {"success": 1.0, "progress": 0.3}},
          _algorithm("grpo")),
    _kind("toy, rloo, answers run in a jail", {"task": CODE, "rewards": {"tests": 1.0, "compiles": 0.1}},
          {"run": {"steps": 4}}, _algorithm("rloo")),
    _kind("toy, ppo, autopilot, a rate too high", FAR_OFF,
          {"rewards": RETRIEVAL, "update": {"learning_rate": 10.0}, "autopilot": {"mode": "act"}}, acts=True),
    _kind("toy, grpo, autopilot, a rate too low, bandit", FAR_OFF,
          {"task": PROMPTS, "update": {"learning_rate": 1e-5}, "autopilot": {"mode": "act"}},
          _algorithm("grpo"), _curriculum("bandit"), acts=True),
    _kind("toy, ppo, autopilot, a narrow band, accel", FAR_OFF,
          {"task": PROMPTS, "autopilot": {"mode": "act", "kl_band": [1e-6, 2e-6]}},
          _curriculum("accel"), acts=True),
    _kind("toy, ppo, autopilot that advises", FAR_OFF,
          {"rewards": RETRIEVAL, "update": {"learning_rate": 1.0}, "autopilot": {"mode": "advise"}}),
)  # fmt: skip
_SHORT = {"run": {"steps": 6}}
REAL = (
    _kind("torch, ppo", TORCH, _SHORT, {"rewards": RETRIEVAL}, needs="torch"),
    _kind("torch, ppo, adapter, preflight", TORCH, _SHORT, LORA,
          {"rewards": RETRIEVAL, "run": {"preflight": "warn"}}, needs="torch"),
    _kind("torch, grpo, adapter, bandit", TORCH, _SHORT, LORA, {"task": PROMPTS}, _algorithm("grpo"),
          _curriculum("bandit"), needs="torch"),
    _kind("torch, rloo, accel", TORCH, _SHORT, {"task": PROMPTS}, _algorithm("rloo"), _curriculum("accel"),
          needs="torch"),
    _kind("torch, sft, weights in bfloat16", TORCH, _SHORT,
          {"rewards": RETRIEVAL, "rollout": {"samples_per_prompt": 1}, "backend": {"args": {"weights": "bf16"}}},
          _algorithm("sft"), needs="torch"),
    _kind("torch, rlaif, adapter, a judge's server", TORCH, _SHORT, LORA, {"task": PROMPTS}, _algorithm("rlaif"),
          needs="torch", judged=True),
    _kind("torch, the base model, grpo, episodes of several turns", TORCH, {"run": {"steps": 3, "checkpoint_every": 1}},
          {"task": BROWSE, "rewards": {"success": 1.0, "progress": 0.3}, "model": {"path": "base"}},
          _algorithm("grpo"), needs="torch"),
    _kind("torch, grpo, autopilot, a rate too high", TORCH,
          {"rewards": RETRIEVAL, "update": {"learning_rate": 1.0}, "autopilot": {"mode": "act"},
           "run": {"steps": 10, "checkpoint_every": 3, "keep_checkpoints": 4}},
          _algorithm("grpo"), needs="torch", acts=True),
)  # fmt: skip


def write_problems(folder: Path) -> Path:
    """Write problems with a difficulty beside a folder, unless they are there; return the file."""
    path = folder.with_name("problems.jsonl")
    if not path.is_file():
        lines = (json.dumps({"id": f"p{i}", "prompt": f"say {i}", "difficulty": i % 3}) + "\n" for i in range(20))
        path.write_text("".join(lines), encoding="utf-8")
    return path
