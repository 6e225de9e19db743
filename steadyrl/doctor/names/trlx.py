"""Names of trlX; its KLs are logged as square roots and stay so: nats would have to be made of them by squaring.

Source: CarperAI/trlx, trlx/trainer/accelerate_ppo_trainer.py, trlx/models/modeling_ppo.py.
"""

from __future__ import annotations

from typing import Any

from steadyrl.doctor.names.settings import pick
from steadyrl.doctor.names.table import Config, Name, Table
from steadyrl.doctor.series import RawLog

NAMES = {
    "policy/sqrt_kl": Name("kl_ref", "sqrt nats/sequence", "k3"),
    "policy/kl_per_token": Name("kl_ref", "sqrt nats/token", "k3"),
    "kl_ctl_value": Name("kl_coef"),
    "policy/approx_kl": Name("kl_old", "nats/token", "k3"),
    "policy/clipfrac": Name("clip_fraction", "share"),
    "ratio": Name("ratio_mean"),
    "losses/total_loss": Name("loss"),
    "losses/policy_loss": Name("loss_policy"),
    "losses/value_loss": Name("loss_value"),
    "values/mean": Name("value_mean", "reward"),
    "values/std": Name("value_std", "reward"),
    "values/min": Name("value_min", "reward"),
    "values/max": Name("value_max", "reward"),
    "values/values_error": Name("value_error", "reward^2"),
    "values/clipfrac": Name("clip_fraction_value", "share"),
    "returns/mean": Name("return_mean", "reward"),
    "returns/std": Name("return_std", "reward"),
    "returns/min": Name("return_min", "reward"),
    "returns/max": Name("return_max", "reward"),
    "rollout_scores/mean": Name("reward", "reward"),
    "rollout_scores/std": Name("reward_std", "reward"),
    "time/rollout_generate": Name("time_part/rollout", "s"),
    "time/rollout_score": Name("time_part/reward", "s"),
}


def settings(config: Config, log: RawLog) -> dict[str, Any]:
    """Return trlX's settings.

    Facts: log-probs are of the raw logits; advantages are whitened; the KL is taken from the reward. The controller,
    where there is a target, compares the sum over a completion and counts samples.
    """
    found = pick(
        config,
        {
            "temperature": "method.gen_kwargs.temperature",
            "top_p": "method.gen_kwargs.top_p",
            "top_k": "method.gen_kwargs.top_k",
            "max_new_tokens": "method.gen_kwargs.max_new_tokens",
            "learning_rate": "optimizer.kwargs.lr",
            "epochs": "method.ppo_epochs",
            "batch_size": "method.num_rollouts",
            "clip": "method.cliprange",
            "kl_coef": "method.init_kl_coef",
            "kl_target": "method.target",
            "kl_horizon": "method.horizon",
            "steps": "train.total_steps",
            "model": "model.model_path",
        },
    )
    facts = {
        "logprobs": "raw",
        "whitened": True,
        "kl_place": "reward",
        "kl_target_unit": "nats/sequence",
        "kl_horizon_unit": "samples",
    }
    adaptive = {"kl_adaptive": "kl_target" in found} if "method.target" in config else {}
    return {**facts, **found, **adaptive}


TABLE = Table(
    trainer="trlx",
    names=NAMES,
    distinctive=(
        "policy/sqrt_kl",
        "policy/kl_per_token",
        "kl_ctl_value",
        "losses/total_loss",
        "values/values_error",
        "old_values/*",
        "padding_percentage",
        "rollout_scores/*",
    ),
    prefixes=(),
    heldout=("reward/", "metrics/"),  # trlX logs both in its evaluation only
    settings=settings,
    algorithm=lambda config, log: "ppo",
)
