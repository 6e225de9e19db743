"""The settings that runs are made with: tasks, two algorithms, variants; and what each task's runs are used for."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Data = dict[str, Any]
Change = Callable[[Data], Data]
Split = Literal["tune", "checked", "heldout", "fresh", "last"]

STEPS = 60
PROMPTS = Path(__file__).parent / "prompts.jsonl"

TASKS: Mapping[str, Data] = {
    "stdlib": {
        "task": {"name": "search", "args": {"corpus": "stdlib"}},
        "rewards": {"retrieval": 1.0, "bits": 1.0, "structure": 0.3, "parseable": 0.1},
        "sampling": {"max_new_tokens": 20, "temperature": 0.7},
    },
    "format": {
        "task": {"name": "prompts", "args": {"path": str(PROMPTS)}},
        "rewards": {"boolean_format": 1.0, "scores:target_words": 0.3},
        "sampling": {"max_new_tokens": 24},
    },
    "generated": {
        "task": {"name": "search", "args": {"corpus": "generated"}},
        "rewards": {"retrieval": 1.0, "bits": 1.0, "structure": 0.3, "parseable": 0.1},
        "sampling": {"max_new_tokens": 20, "temperature": 0.8},
    },
    "words": {
        "task": {"name": "prompts", "args": {"path": str(PROMPTS)}},
        "rewards": {"scores:target_words": 1.0, "scores:distinct_words": 0.5},
        "sampling": {"max_new_tokens": 24},
    },
    "operators": {
        "task": {"name": "prompts", "args": {"path": str(PROMPTS)}},
        "rewards": {"scores:operators": 1.0, "scores:ten_words": 0.3},
        "sampling": {"max_new_tokens": 20, "temperature": 0.9},
    },
    "retrieval": {
        "task": {"name": "search", "args": {"corpus": "stdlib"}},
        "rewards": {"retrieval": 1.0, "structure": 0.1, "parseable": 0.1},
        "sampling": {"max_new_tokens": 16, "temperature": 1.0},
    },
    "letters": {
        "task": {"name": "prompts", "args": {"path": str(PROMPTS)}},
        "rewards": {"scores:early_letters": 1.0, "scores:distinct_words": 0.2},
        "sampling": {"max_new_tokens": 18, "temperature": 1.0},
    },
    "bits": {
        "task": {"name": "search", "args": {"corpus": "generated"}},
        "rewards": {"bits": 1.0, "parseable": 0.2},
        "sampling": {"max_new_tokens": 14, "temperature": 0.9},
    },
}
# What is set otherwise in a task, whatever the algorithm; its batches are half as large, too.
VARIED: Mapping[str, Mapping[str, Any]] = {
    "letters": {"update.learning_rate": 1.5e-4, "update.schedule": "linear"},
    "bits": {"update.learning_rate": 3e-4, "update.warmup_steps": 5, "update.schedule": "cosine"},
}
# Whole tasks, not runs: a threshold that fits one task has to hold on another. "checked" was held out at first: it was
# examined once, showed what was wrong, and taught the doctor then. "heldout" was made after the last change of
# that time; "fresh" after those that published logs taught it. EXAMINED are the runs of it that were examined, and
# whose false alarms, at their end or in passing, taught the doctor then; those made afterwards are called "last".
SPLIT: Mapping[str, Split] = {
    "stdlib": "tune",
    "format": "tune",
    "generated": "checked",
    "words": "checked",
    "operators": "heldout",
    "retrieval": "heldout",
    "letters": "fresh",
    "bits": "fresh",
}

EXAMINED = (
    "pad_leak-20", "policy_dropout-20", "reference_other-20", "kl_coef_zero-20", "lr_x100-20", "epochs_8-20",
    "controller_slow-20", "unit_clash-20", "entropy_bonus-20", "cut_off-20", "healthy-letters-ppo-plain-10",
    "healthy-letters-grpo-plain-11", "healthy-letters-grpo-top-p-13", "healthy-bits-ppo-adaptive-14",
    "healthy-bits-ppo-heldout-12", "healthy-bits-ppo-plain-10", "healthy-bits-ppo-plain-11",
    "healthy-letters-ppo-adaptive-14", "length_exploited-20", "overflow_gradient-20", "reward_offset-20",
    "warped_top_p-20",
)  # fmt: skip

ALGORITHMS: Mapping[str, Data] = {
    "ppo": {
        "algorithm": {"name": "ppo", "args": {"kl_coef": 0.01, "value_coef": 1.0}},
        "rollout": {"prompts_per_step": 48, "samples_per_prompt": 1},
        "update": {"epochs": 2, "minibatches": 2, "learning_rate": 2e-4, "warmup_steps": 3},
    },
    "grpo": {
        "algorithm": {"name": "grpo", "args": {"kl_coef": 0.02}},
        "rollout": {"prompts_per_step": 8, "samples_per_prompt": 6},
        "update": {"epochs": 2, "minibatches": 1, "learning_rate": 2e-4, "warmup_steps": 3},
    },
}
COMMON: Data = {"run": {"steps": STEPS}, "backend": {"device": "cpu", "threads": 1}}


@dataclass(frozen=True)
class Healthy:
    """A healthy run: a task, an algorithm, and what is set otherwise."""

    algorithm: str
    variant: str
    seed: int
    changes: tuple[tuple[str, Any], ...] = ()


# The seeds are none of the faulty runs'.
HEALTHY = (
    Healthy("ppo", "plain", 10),
    Healthy("ppo", "plain", 11),
    Healthy("grpo", "plain", 10),
    Healthy("grpo", "plain", 11),
    Healthy("ppo", "heldout", 12, (("evaluate.every", 10), ("evaluate.problems", 16))),
    Healthy("grpo", "linear", 12, (("update.schedule", "linear"), ("update.warmup_steps", 6))),
    Healthy("ppo", "one-epoch", 13, (("update.epochs", 1), ("update.learning_rate", 3e-4))),
    Healthy("grpo", "top-p", 13, (("sampling.top_p", 0.95),)),
    Healthy(
        "ppo",
        "adaptive",
        14,
        (
            ("algorithm.args.kl_control", "adaptive"),
            ("algorithm.args.kl_target", 3.0),
            ("algorithm.args.kl_horizon", 6.0),
        ),
    ),
)


def base(task: str, algorithm: str) -> Data:
    """Return the settings of a task and an algorithm, to be changed freely."""
    data = copy.deepcopy({**COMMON, **TASKS[task], **ALGORITHMS[algorithm]})
    for key, value in VARIED.get(task, {}).items():
        data = put(data, key, value)
    return scaled(data, "rollout.prompts_per_step", 0.5) if SPLIT[task] == "fresh" else data


def put(data: Data, key: str, value: Any) -> Data:
    """Return settings with "section.key" set; sections on the way are made."""
    changed = copy.deepcopy(data)
    *path, name = key.split(".")
    section = changed
    for part in path:
        section = section.setdefault(part, {})
    section[name] = value
    return changed


def scaled(data: Data, key: str, factor: float) -> Data:
    """Return settings with the number at "section.key" multiplied."""
    section: Any = data
    for part in key.split("."):
        section = section[part]
    return put(data, key, type(section)(section * factor))
