"""Names of torchtune's PPO and GRPO recipes: PPO's ``kl`` is summed over a completion, GRPO's ``kl_loss`` is per token.

Source: pytorch/torchtune, recipes/ppo_full_finetune_single_device.py, recipes/dev/grpo_full_finetune_distributed.py.
"""

from __future__ import annotations

from steadyrl.doctor.names.settings import number, quotient
from steadyrl.doctor.names.table import Table, keys, names

TABLE = Table(
    trainer="torchtune",
    names=names("""
        scores rewards = reward, reward
        successes = reward_part/successes, share
        rlhf_reward = reward_with_kl, reward
        kl = kl_ref, nats/sequence, k1
        kl_loss = kl_ref, nats/token, k3
        kl_reward = reward_kl, reward/sequence
        approx_policy_kl = kl_old, nats/token, k2
        lr = learning_rate
        loss = loss
        {policy|value}_loss = loss_{policy|value}
        clipfrac = clip_fraction, share
        ratios = ratio_mean
        response_lengths = length, tokens
        tokens_per_second_per_gpu_trajectory = tokens_per_second, tokens/s/GPU
    """),
    keys=keys("""
        temperature top_k batch_size = *
        max_new_tokens = max_generated_tokens
        learning_rate = optimizer.lr
        epochs = ppo_epochs
        samples_per_prompt = grpo_samples
        clip = loss.epsilon
        kl_coef = kl_coeff|loss.kl_coeff
        steps = num_steps
    """),
    facts={"kl_adaptive": False},
    derive=lambda config, log, found: {
        "minibatches": quotient(number(config, "batch_size"), number(config, "ppo_batch_size"))
    },
    distinctive=("approx_policy_kl", "num_stop_tokens", "response_lengths", "ratios", "rlhf_reward", "kl_reward"),
    needs=2,
    algorithm=lambda config, log: "ppo" if {"value_loss", "train/value_loss"} & set(log.columns) else "grpo",
)
