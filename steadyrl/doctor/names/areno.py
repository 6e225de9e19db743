"""Names of AReno.

Source: inclusionAI/AReno v0.0.8, its metrics as docs and dashboard name them.
"""

from __future__ import annotations

from steadyrl.doctor.names.table import Name, Table

NAMES = {
    "train/loss": Name("loss"),
    "train/policy_loss": Name("loss_policy"),
    "train/ratio_mean": Name("ratio_mean"),
    "train/grad_norm": Name("grad_norm"),
    "train/lr": Name("learning_rate"),
    "train/logp_abs_diff_mean": Name("sampler_gap", "nats/token", "abs"),
    "rollout/rewards_mean": Name("reward", "reward"),
    "rollout/rewards_std": Name("reward_std", "reward"),
    "rollout/rewards_max": Name("reward_max", "reward"),
    "rollout/rewards_min": Name("reward_min", "reward"),
    "rollout/accuracy": Name("reward_part/accuracy", "reward"),
    "rollout/advantages_mean": Name("advantage_mean", "reward"),
    "rollout/advantages_std": Name("advantage_std", "reward"),
    # The mean log-prob of sampled tokens is minus the sampled entropy.
    "rollout/logprobs_mean": Name("entropy", "nats/token", "sampled", "negate"),
    "rollout/response_len_mean": Name("length", "tokens"),
    "rollout/prompt_len_mean": Name("length_prompt", "tokens"),
    "time/*": Name("time_part/*", "s"),
}

TABLE = Table(
    trainer="areno",
    names=NAMES,
    distinctive=(
        "train/logp_abs_diff_mean",
        "train/logp_diff_mean",
        "train/rollout_logprobs_mean",
        "train/train_logprobs_mean",
        "train/grad_zero_ratio",
        "rollout/rewards_mean",
        "rollout/response_len_mean",
        "rollout/skipped_long",
    ),
    prefixes=(),
    algorithm=lambda config, log: "",
)
