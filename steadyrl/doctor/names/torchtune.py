"""Names of torchtune's PPO and GRPO recipes: PPO's ``kl`` is summed over a completion, GRPO's ``kl_loss`` is per token.

Source: pytorch/torchtune, recipes/ppo_full_finetune_single_device.py, recipes/dev/grpo_full_finetune_distributed.py.
"""

from __future__ import annotations

from typing import Any

from steadyrl.doctor.names.settings import known, number, pick, quotient
from steadyrl.doctor.names.table import Config, Name, Table
from steadyrl.doctor.series import RawLog

NAMES = {
    "scores": Name("reward", "reward"),
    "rewards": Name("reward", "reward"),
    "successes": Name("reward_part/successes", "share"),
    "rlhf_reward": Name("reward_with_kl", "reward"),
    "kl": Name("kl_ref", "nats/sequence", "k1"),
    "kl_loss": Name("kl_ref", "nats/token", "k3"),
    "kl_reward": Name("reward_kl", "reward/sequence"),
    "approx_policy_kl": Name("kl_old", "nats/token", "k2"),
    "lr": Name("learning_rate"),
    "loss": Name("loss"),
    "policy_loss": Name("loss_policy"),
    "value_loss": Name("loss_value"),
    "clipfrac": Name("clip_fraction", "share"),
    "ratios": Name("ratio_mean"),
    "response_lengths": Name("length", "tokens"),
    "tokens_per_second_per_gpu_trajectory": Name("tokens_per_second", "tokens/s/GPU"),
}


def settings(config: Config, log: RawLog) -> dict[str, Any]:
    """Return the recipes' settings."""
    found = pick(
        config,
        {
            "temperature": "temperature",
            "top_k": "top_k",
            "max_new_tokens": "max_generated_tokens",
            "learning_rate": "optimizer.lr",
            "epochs": "ppo_epochs",
            "batch_size": "batch_size",
            "samples_per_prompt": "grpo_samples",
            "clip": "loss.epsilon",
            "kl_coef": "kl_coeff|loss.kl_coeff",
            "steps": "num_steps",
        },
    )
    minibatches = quotient(number(config, "batch_size"), number(config, "ppo_batch_size"))
    return {**found, **known({"minibatches": minibatches}), "kl_adaptive": False}


TABLE = Table(
    trainer="torchtune",
    names=NAMES,
    distinctive=("approx_policy_kl", "num_stop_tokens", "response_lengths", "ratios", "rlhf_reward", "kl_reward"),
    needs=2,
    settings=settings,
    algorithm=lambda config, log: "ppo" if {"value_loss", "train/value_loss"} & set(log.columns) else "grpo",
)
