"""Faults in the settings at two strengths, on the toy backend: the first teaches the advice, the second judges it.

A run takes some seconds. The strengths that judge, and their task and seeds, were written down before any of these runs
was made; nothing may be changed by a look at them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import rate_or_penalty
import runs
import settings
from faults import BOTH, setting, times

Part = Literal["taught", "judged"]
RATE = 0.1  # of the toy backend, whose policy is a table of logits
REWARDS = {"taught": {"scores:early_letters": 1.0}, "judged": {"scores:in_order": 1.0}}
SEEDS = {"taught": 30, "judged": 31}


@dataclass(frozen=True)
class Kind:
    """A fault, at the strength that teaches and at that which judges, and the algorithms that it occurs in."""

    taught: settings.Change
    judged: settings.Change
    algorithms: tuple[str, ...] = BOTH


def _raw(**values: float) -> settings.Change:
    return setting(sampling__logprobs="raw", **{f"sampling__{name}": value for name, value in values.items()})


def _passes(epochs: int, factor: float) -> settings.Change:
    faster = times("update.learning_rate", factor)
    return lambda data: faster(setting(update__epochs=epochs, update__kl_old_limit=1000.0)(data))


def _controller(coefficient: float, target: float, horizon: float) -> settings.Change:
    names = {"kl_control": "adaptive", "kl_coef": coefficient, "kl_target": target, "kl_horizon": horizon}
    return setting(**{f"algorithm__args__{name}": value for name, value in names.items()})


def _penalty(coefficient: float) -> settings.Change:
    def change(data: settings.Data) -> settings.Data:
        fixed = {"algorithm__args__kl_control": "fixed"} if data["algorithm"]["name"] == "ppo" else {}
        return setting(algorithm__args__kl_coef=coefficient, **fixed)(data)

    return change


PPO = ("ppo",)
KINDS: Mapping[str, Kind] = {
    "cooler": Kind(_raw(temperature=0.7), _raw(temperature=0.5)),
    "hotter": Kind(_raw(temperature=1.4), _raw(temperature=1.7)),
    "top_p": Kind(_raw(top_p=0.8), _raw(top_p=0.6)),
    "rate_high": Kind(times("update.learning_rate", 30.0), times("update.learning_rate", 100.0)),
    "rate_low": Kind(times("update.learning_rate", 0.01), times("update.learning_rate", 0.03)),
    "rate_zero": Kind(times("update.learning_rate", 0.0), times("update.learning_rate", 0.0)),
    "passes": Kind(_passes(8, 3.0), _passes(12, 2.0)),
    "controller_slow": Kind(_controller(0.002, 1.0, 10_000.0), _controller(0.005, 2.0, 3000.0), PPO),
    "unit_clash": Kind(_controller(0.01, 0.1, 20.0), _controller(0.02, 0.05, 40.0), PPO),
    "entropy_bonus": Kind(setting(algorithm__args__entropy_coef=0.5), setting(algorithm__args__entropy_coef=0.2), PPO),
    "cut_off": Kind(setting(sampling__max_new_tokens=3), setting(sampling__max_new_tokens=4)),
    "penalty_strong": Kind(_penalty(1.0), _penalty(0.5)),
    "gradient_cut": Kind(setting(update__max_grad_norm=1e-7), setting(update__max_grad_norm=1e-6)),
    "warm_up": Kind(setting(update__warmup_steps=6000), setting(update__warmup_steps=600)),
    "greedy": Kind(setting(sampling__temperature=0.05), setting(sampling__temperature=0.1)),
}


def plans(part: Part) -> Iterator[runs.Plan]:
    """Yield the run of every fault in every algorithm that it occurs in, at the strength of a part."""
    for name, kind in KINDS.items():
        for algorithm in kind.algorithms:
            change = kind.taught if part == "taught" else kind.judged
            data = change(settings.put(base(part, algorithm), "run.seed", SEEDS[part]))
            yield runs.Plan(f"{name}-{algorithm}", name, SEEDS[part], "letters", algorithm, data)


def base(part: Part, algorithm: str) -> settings.Data:
    """Return the settings without a fault."""
    data = {**settings.COMMON, **settings.ALGORITHMS[algorithm], "backend": {"name": "toy"}}
    data |= {"task": rate_or_penalty.WORDS, "rewards": REWARDS[part], "sampling": {"max_new_tokens": 40}}
    return settings.put(data, "update.learning_rate", RATE)
