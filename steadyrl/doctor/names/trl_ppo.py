"""Names of TRL's two PPO trainers: the one until v0.11, and its successor (PPOv2), gone since September 2026.

Both log ``objective/kl`` as a sum over a completion. The successor fills padding with a log-prob of +1: sums of -log p
lose 1 per padded token, and plain means take the padding in. Its old RLOO trainer logs the same names, without a value
loss.

Source: huggingface/trl v0.11.0, trl/trainer/ppo_trainer.py and ppo_config.py; trl/experimental/ppo/ppo_trainer.py.
"""

from __future__ import annotations

from typing import Any

from steadyrl.doctor.names.settings import first, known, number, pick, quotient
from steadyrl.doctor.names.table import Choice, Config, Name, Table
from steadyrl.doctor.names.trl_grpo import hugging_face, sampling
from steadyrl.doctor.series import RawLog

TOKEN, SEQUENCE = "nats/token", "nats/sequence"

OLD_NAMES = {
    "objective/kl": Name("kl_ref", SEQUENCE, "k1"),
    "objective/kl_coef": Name("kl_coef"),
    "objective/entropy": Name("entropy", SEQUENCE, "sampled"),
    "ppo/policy/entropy": Name("entropy", TOKEN, "exact"),
    "ppo/policy/approxkl": Name("kl_old", TOKEN, "k2"),
    "ppo/policy/policykl": Name("kl_old", TOKEN, "k1"),
    "ppo/policy/clipfrac": Name("clip_fraction", "share"),
    "ppo/policy/ratio": Name("ratio_mean"),
    "ppo/policy/advantages_mean": Name("advantage_mean", "reward", "whitened"),
    "ppo/mean_scores": Name("reward", "reward"),
    "env/reward_mean": Name("reward", "reward"),
    "ppo/std_scores": Name("reward_std", "reward"),
    "env/reward_std": Name("reward_std", "reward"),
    "ppo/mean_non_score_reward": Name("reward_kl", "reward/token"),
    "ppo/learning_rate": Name("learning_rate"),
    "ppo/loss/policy": Name("loss_policy"),
    "ppo/loss/value": Name("loss_value"),
    "ppo/loss/total": Name("loss"),
    "ppo/returns/mean": Name("return_mean", "reward"),
    "ppo/returns/var": Name("return_std", "reward", transform="sqrt"),
    "ppo/val/mean": Name("value_mean", "reward"),
    "ppo/val/var": Name("value_std", "reward", transform="sqrt"),
    "ppo/val/error": Name("value_error", "reward^2"),
    "ppo/val/clipfrac": Name("clip_fraction_value", "share"),
    "ppo/val/var_explained": Name("explained_variance", "", "uncentred"),
    "tokens/responses_len_mean": Name("length", "tokens"),
    "tokens/queries_len_mean": Name("length_prompt", "tokens"),
    "time/ppo/total": Name("time_step", "s"),
    "time/ppo/*": Name("time_part/*", "s"),
}
NEW_NAMES = {
    "objective/kl": Name("kl_ref", SEQUENCE, "k1"),
    "objective/entropy": Name("entropy", SEQUENCE, "sampled and padding"),
    "policy/entropy_avg": Name("entropy", TOKEN, "exact and padding"),
    "policy/approxkl_avg": Name("kl_old", TOKEN, "k2 and padding"),
    "policy/clipfrac_avg": Name("clip_fraction", "share"),
    "val/clipfrac_avg": Name("clip_fraction_value", "share"),
    "val/ratio": Name("ratio_mean", "", "all and padding"),
    "val/ratio_var": Name("ratio_var", "", "of step means"),
    "objective/scores": Name("reward", "reward"),
    "objective/rlhf_reward": Name("reward_with_kl", "reward"),
    "objective/non_score_reward": Name("reward_kl", "reward/sequence"),
    "loss/policy_avg": Name("loss_policy"),
    "loss/value_avg": Name("loss_value"),
    "lr": Name("learning_rate"),
    "learning_rate": Name("learning_rate"),
    "epoch": Name("data_epoch"),
}
PENALTIES = {
    "kl": Name("kl_ref", SEQUENCE, "k1"),
    "abs": Name("kl_ref", SEQUENCE, "abs"),
    "mse": Name("kl_ref", SEQUENCE, "k2"),
    "full": Name("kl_ref", SEQUENCE, "exact"),
}
WRAPPER = "trl_ppo_trainer_config."  # what the trainer's config is wrapped in, except for TensorBoard


def old_settings(config: Config, log: RawLog) -> dict[str, Any]:
    """Return the settings of PPOConfig until v0.11.

    Facts of that trainer: log-probs are of the raw logits, whatever the sampler did; advantages are whitened; the
    controller compares the sum over a completion, with its horizon in samples.
    """
    config = {key.removeprefix(WRAPPER): value for key, value in config.items()}
    found = pick(
        config,
        {
            "learning_rate": "learning_rate",
            "epochs": "ppo_epochs",
            "batch_size": "batch_size",
            "clip": "cliprange",
            "kl_coef": "init_kl_coef",
            "kl_adaptive": "adap_kl_ctrl",
            "kl_target": "target",
            "kl_horizon": "horizon",
            "max_grad_norm": "max_grad_norm",
            "model": "model_name",
        },
    )
    small, accumulated = number(config, "mini_batch_size"), number(config, "gradient_accumulation_steps")
    update = small * (accumulated or 1) if small else None
    facts = {
        "logprobs": "raw",
        "whitened": True,
        "kl_place": "reward",
        "kl_target_unit": SEQUENCE,
        "kl_horizon_unit": "samples",
    }
    return {**facts, **found, **known({"minibatches": quotient(number(config, "batch_size"), update)})}


def new_settings(config: Config, log: RawLog) -> dict[str, Any]:
    """Return the settings of PPOv2's PPOConfig.

    Facts of that trainer: logits are divided by the temperature and nothing is truncated; the coefficient is fixed;
    PPO's advantages are whitened.
    """
    found = pick(
        config,
        {
            "epochs": "num_ppo_epochs",
            "minibatches": "num_mini_batches",
            "batch_size": "batch_size",
            "clip": "cliprange",
            "kl_coef": "kl_coef",
            "samples_per_prompt": "rloo_k",
            "steps": "num_total_batches",
            "whitened": "normalize_advantage",
        },
    )
    facts = {
        "logprobs": "sampled",
        "top_p": 1.0,
        "top_k": 0,
        "kl_place": "reward",
        "kl_adaptive": False,
        **({"whitened": True} if new_algorithm(config, log) == "ppo" else {}),
    }
    return {**hugging_face(config), **sampling(config), **facts, **found}


def new_algorithm(config: Config, log: RawLog) -> str:
    """Return "rloo" where no value loss is logged."""
    if first(config, "rloo_k") is not None:
        return "rloo"
    return "ppo" if any(name.endswith("loss/value_avg") for name in log.columns) else "rloo"


OLD = Table(
    trainer="trl-ppo-old",
    names=OLD_NAMES,
    distinctive=(
        "objective/kl_coef",
        "objective/kl_dist",
        "ppo/mean_non_score_reward",
        "ppo/mean_scores",
        "ppo/std_scores",
        "ppo/loss/*",
        "ppo/policy/*",
        "ppo/returns/*",
        "ppo/val/*",
        "tokens/queries_len_mean",
        "tokens/responses_len_mean",
        "time/ppo/*",
        "env/reward_mean",
    ),
    choices={"objective/kl": Choice((f"{WRAPPER}kl_penalty", "kl_penalty"), PENALTIES)},
    settings=old_settings,
    algorithm=lambda config, log: "ppo",
)
NEW = Table(
    trainer="trl-ppo",
    names=NEW_NAMES,
    distinctive=(
        "policy/approxkl_avg",
        "policy/clipfrac_avg",
        "policy/entropy_avg",
        "loss/policy_avg",
        "loss/value_avg",
        "val/clipfrac_avg",
        "val/ratio",
        "val/ratio_var",
        "val/num_eos_tokens",
    ),
    choices={"objective/kl": Choice(("kl_estimator",), {"k3": Name("kl_ref", SEQUENCE, "k3")})},
    settings=new_settings,
    algorithm=new_algorithm,
    caveats={
        "objective/entropy": "objective/entropy of TRL's PPO counts every padded token as -1 nat.",
        "policy/entropy_avg": "policy/entropy_avg of TRL's PPO is a mean over padding too.",
        "policy/approxkl_avg": "policy/approxkl_avg of TRL's PPO is a mean over padding too, so it reads low.",
        "val/ratio": "val/ratio of TRL's PPO is a mean over padding too, so it reads nearer to 1.",
    },
)
