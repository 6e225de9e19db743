"""Names of AReno.

Source: inclusionAI/AReno v0.0.8, its metrics as docs and dashboard name them.
"""

from __future__ import annotations

from steadyrl.doctor.names.table import Table, names

TABLE = Table(
    trainer="areno",
    # The mean log-prob of sampled tokens is minus the sampled entropy.
    names=names("""
        train/{loss|policy_loss|ratio_mean|grad_norm|lr} = {loss|loss_policy|ratio_mean|grad_norm|learning_rate}
        train/logp_abs_diff_mean = sampler_gap, nats/token, abs
        rollout/rewards_{mean|std|max|min} = reward{|_std|_max|_min}, reward
        rollout/accuracy = reward_part/accuracy, reward
        rollout/advantages_{mean|std} = advantage_{mean|std}, reward
        rollout/logprobs_mean = entropy, nats/token, sampled, negate
        rollout/{response|prompt}_len_mean = length{|_prompt}, tokens
        time/* = time_part/*, s
    """),
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
)
