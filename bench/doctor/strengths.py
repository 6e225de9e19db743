"""Faults in the settings at three strengths, on the toy backend: two taught the advice, the last judges it.

A run takes some seconds. The strengths that judge, and their task and seed, were written down before any of these runs
was made. "judged" was the part that judged at first, and taught the advice afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import rate_or_penalty
import runs
import settings
from faults import BOTH, setting, times

Part = Literal["taught", "judged", "last"]
PARTS = get_args(Part)
RATE = 0.1  # of the toy backend, whose policy is a table of logits
REWARDS = {
    "taught": {"scores:early_letters": 1.0},
    "judged": {"scores:in_order": 1.0},
    "last": {"scores:in_order": 0.5, "scores:early_letters": 0.5},
}
SEEDS = {"taught": (30,), "judged": (31,), "last": (32,)}
ROOM = {"taught": 40, "judged": 40, "last": 100}  # tokens


@dataclass(frozen=True)
class Kind:
    """A fault at the strength of each part, and the algorithms that it occurs in."""

    strengths: tuple[settings.Change, ...]
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


def _each(change: Callable[..., settings.Change], *strengths: Any) -> tuple[settings.Change, ...]:
    return tuple(change(*strength) if isinstance(strength, tuple) else change(strength) for strength in strengths)


def _set(key: str, *values: float) -> tuple[settings.Change, ...]:
    return tuple(setting(**{key: value}) for value in values)


def _rate(*factors: float) -> tuple[settings.Change, ...]:
    return tuple(times("update.learning_rate", factor) for factor in factors)


PPO = ("ppo",)
KINDS: Mapping[str, Kind] = {
    "cooler": Kind(tuple(_raw(temperature=value) for value in (0.7, 0.5, 0.6))),
    "hotter": Kind(tuple(_raw(temperature=value) for value in (1.4, 1.7, 1.5))),
    "top_p": Kind(tuple(_raw(top_p=value) for value in (0.8, 0.6, 0.7))),
    "rate_high": Kind(_rate(30.0, 100.0, 50.0)),
    "rate_low": Kind(_rate(0.01, 0.03, 0.02)),
    "rate_zero": Kind(_rate(0.0, 0.0, 0.0)),
    "passes": Kind(_each(_passes, (8, 3.0), (12, 2.0), (6, 4.0))),
    "controller_slow": Kind(_each(_controller, (0.002, 1.0, 1e4), (0.005, 2.0, 3000.0), (0.003, 1.5, 6000.0)), PPO),
    "unit_clash": Kind(_each(_controller, (0.01, 0.1, 20.0), (0.02, 0.05, 40.0), (0.015, 0.08, 30.0)), PPO),
    "entropy_bonus": Kind(_set("algorithm__args__entropy_coef", 0.5, 0.2, 0.35), PPO),
    "cut_off": Kind(_set("sampling__max_new_tokens", 3, 4, 5)),
    "penalty_strong": Kind(_each(_penalty, 1.0, 0.5, 0.7)),
    "gradient_cut": Kind(_set("update__max_grad_norm", 1e-7, 1e-6, 3e-7)),
    "warm_up": Kind(_set("update__warmup_steps", 6000, 600, 1500)),
    "greedy": Kind(_set("sampling__temperature", 0.05, 0.1, 0.2)),
}


def seeds(part: Part) -> tuple[int, ...]:
    """Return the seeds that the runs of a part have."""
    return SEEDS[part]


def plans(part: Part, seed: int) -> Iterator[runs.Plan]:
    """Yield the run of every fault in every algorithm that it occurs in, at the strength of a part.

    Args:
        part: Which strengths, and whose task.
        seed: Of the runs.
    """
    for name, kind in KINDS.items():
        for algorithm in kind.algorithms:
            change = kind.strengths[PARTS.index(part)]
            data = change(settings.put(base(part, algorithm), "run.seed", seed))
            yield runs.Plan(f"{name}-{algorithm}", name, seed, "letters", algorithm, data)


def base(part: Part, algorithm: str) -> settings.Data:
    """Return the settings without a fault."""
    data = {**settings.COMMON, **settings.ALGORITHMS[algorithm], "backend": {"name": "toy"}}
    data |= {"task": rate_or_penalty.WORDS, "rewards": REWARDS[part], "sampling": {"max_new_tokens": ROOM[part]}}
    return settings.put(data, "update.learning_rate", RATE)
