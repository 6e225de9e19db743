"""Names of mlx-lm-lora's GRPO; its callbacks put ``train_`` before them.

With a coefficient above 0 and ratios per token its ``kl`` is r^2 - 1 - log r, r = p/ref: no estimate of the KL, and
below 0 where r is a little below 1.

Source: Goekdeniz-Guelmez/mlx-lm-lora, mlx_lm_lora/trainer/grpo_trainer.py.
"""

from __future__ import annotations

from typing import Any

from steadyrl.doctor.names.settings import pick
from steadyrl.doctor.names.table import Config, Name, Table
from steadyrl.doctor.series import RawLog

NAMES = {
    "loss": Name("loss"),
    "total_rewards_mean": Name("reward", "reward"),
    "total_rewards_std": Name("reward_std", "reward"),
    "grouped_rewards_std": Name("reward_std_within", "reward", "mean"),
    "kl": Name("kl_ref", "nats/token", "biased"),
    "average_generated_tokens": Name("length", "tokens"),
    "min_generated_tokens": Name("length_min", "tokens"),
    "max_generated_tokens": Name("length_max", "tokens"),
    "hit_max_tokens_ratio": Name("truncated", "share"),
    "clip_ratio_total": Name("clip_fraction", "share"),
    "clip_ratio_low": Name("clip_fraction_low", "share"),
    "clip_ratio_high": Name("clip_fraction_high", "share"),
    "learning_rate": Name("learning_rate"),
    "tokens_per_second": Name("tokens_per_second", "tokens/s"),
    "*_mean": Name("reward_part/*", "reward"),
    "*_std": Name("reward_part_std/*", "reward"),
}


def settings(config: Config, log: RawLog) -> dict[str, Any]:
    """Return mlx-lm-lora's settings; its log-probs are of the raw logits, its KL stands in the loss."""
    found = pick(
        config,
        {
            **{key: key for key in ("temperature", "top_p", "top_k", "learning_rate")},
            "max_new_tokens": "max_completion_length",
            "samples_per_prompt": "group_size",
            "clip": "epsilon_high|epsilon",
            "kl_coef": "beta",
            "steps": "iters",
            "model": "model",
        },
    )
    return {"logprobs": "raw", "kl_place": "loss", "kl_adaptive": False, **found}


TABLE = Table(
    trainer="mlx-lm-lora",
    names=NAMES,
    distinctive=(
        "total_rewards_mean",
        "grouped_rewards_mean",
        "average_generated_tokens",
        "hit_max_tokens_ratio",
        "clip_ratio_total",
    ),
    prefixes=("train/", "train_"),
    heldout=("val_", "val/"),
    settings=settings,
    algorithm=lambda config, log: "grpo",
)
