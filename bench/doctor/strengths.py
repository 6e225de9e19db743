"""Faults in the settings at four strengths, on the toy backend: three judged the advice, and taught it.

A run takes some seconds. Strengths, task and seeds of "judged", "last" and "later" were written down before any of
these runs was made, and each part taught the advice after it had judged it. "taught" never judged. "later" has kinds of
faults that no other part has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import rate_or_penalty
import runs
import settings
from faults import BOTH, setting, times

Part = Literal["taught", "judged", "last", "later"]
PARTS = get_args(Part)
RATE = 0.1  # of the toy backend, whose policy is a table of logits
REWARDS = {
    "taught": {"scores:early_letters": 1.0},
    "judged": {"scores:in_order": 1.0},
    "last": {"scores:in_order": 0.5, "scores:early_letters": 0.5},
    "later": {"scores:early_letters": 0.6, "scores:target_words": 0.4},
}
SEEDS = {"taught": (30,), "judged": (31,), "last": (32, 33, 34), "later": (51, 52, 53)}
ROOM = {"taught": 40, "judged": 40, "last": 100, "later": 60}  # tokens


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


def _batch(prompts: int, samples: int) -> settings.Change:
    return setting(rollout__prompts_per_step=prompts, rollout__samples_per_prompt=samples, update__minibatches=1)


def _weights(factor: float) -> settings.Change:
    return lambda data: {**data, "rewards": {name: factor * weight for name, weight in data["rewards"].items()}}


def _args(**values: float) -> settings.Change:
    return setting(**{f"algorithm__args__{name}": value for name, value in values.items()})


GRPO = ("grpo",)
LATER: Mapping[str, Kind] = {
    "cooler": Kind((_raw(temperature=0.4),), GRPO),
    "hotter": Kind((_raw(temperature=2.0),), PPO),
    "top_p": Kind((_raw(top_p=0.5),), PPO),
    "rate_high": Kind(_rate(70.0)),
    "rate_low": Kind(_rate(0.005)),
    "rate_zero": Kind(_rate(0.0), GRPO),
    "passes": Kind((_passes(10, 5.0),), PPO),
    "controller_slow": Kind((_controller(0.004, 1.2, 4000.0),), PPO),
    "unit_clash": Kind((_controller(0.012, 0.06, 25.0),), PPO),
    "entropy_bonus": Kind((_args(entropy_coef=0.25),), PPO),
    "entropy_bonus_strong": Kind((_args(entropy_coef=0.7),), PPO),
    "cut_off": Kind(_set("sampling__max_new_tokens", 6), GRPO),
    "penalty_strong": Kind((_penalty(0.4),)),
    "gradient_cut": Kind(_set("update__max_grad_norm", 5e-8), GRPO),
    "warm_up": Kind(_set("update__warmup_steps", 60)),  # as long as the run
    "greedy": Kind(_set("sampling__temperature", 0.3), PPO),
    # Kinds that no other part has.
    "batch_of_two_ppo": Kind((_batch(2, 1),), PPO),
    "batch_of_two_grpo": Kind((_batch(1, 2),), GRPO),
    "pairs": Kind((_batch(24, 2),), GRPO),
    "value_weight": Kind((_args(value_coef=30.0),), PPO),
    "value_untrained": Kind((_args(value_coef=0.0),), PPO),
    "head_first": Kind((_args(value_warmup_steps=60),), PPO),
    "clip_narrow": Kind((_args(clip_low=0.01, clip_high=0.01),)),
    "rewards_large": Kind((_weights(100.0),), PPO),
    "rewards_small": Kind((_weights(0.01),), PPO),
    "discount": Kind((_args(gamma=0.5),), PPO),
    "lambda_zero": Kind((_args(lam=0.0),), PPO),
    "schedule_short": Kind((setting(update__schedule="linear", update__schedule_steps=8),), PPO),
    "step_limit": Kind(_set("update__kl_old_limit", 1e-6), PPO),
    "reward_limit": Kind(_set("update__reward_limit", 1e-3), GRPO),
    "target_near": Kind((_controller(0.05, 0.05, 5.0),), PPO),
    "narrow": Kind(_set("sampling__top_k", 2), GRPO),
}


def kinds(part: Part) -> Mapping[str, Kind]:
    """Return the faults of a part."""
    return LATER if part == "later" else KINDS


def seeds(part: Part) -> tuple[int, ...]:
    """Return the seeds that the runs of a part have."""
    return SEEDS[part]


def plans(part: Part, seed: int) -> Iterator[runs.Plan]:
    """Yield the run of every fault in every algorithm that it occurs in, at the strength of a part.

    Args:
        part: Which strengths, and whose task.
        seed: Of the runs.
    """
    for name, kind in kinds(part).items():
        for algorithm in kind.algorithms:
            change = kind.strengths[0 if part == "later" else PARTS.index(part)]
            data = change(settings.put(base(part, algorithm), "run.seed", seed))
            yield runs.Plan(f"{name}-{algorithm}", name, seed, "letters", algorithm, data)


def base(part: Part, algorithm: str) -> settings.Data:
    """Return the settings without a fault."""
    data = {**settings.COMMON, **settings.ALGORITHMS[algorithm], "backend": {"name": "toy"}}
    data |= {"task": rate_or_penalty.WORDS, "rewards": REWARDS[part], "sampling": {"max_new_tokens": ROOM[part]}}
    return settings.put(data, "update.learning_rate", RATE)
