"""Names of mlx-lm-lora's GRPO; its callbacks put ``train_`` before them, and it prints them as words.

With a coefficient above 0 and ratios per token its ``kl`` is r^2 - 1 - log r, r = p/ref: no estimate of the KL, and
below 0 where r is a little below 1.

Source: Goekdeniz-Guelmez/mlx-lm-lora, mlx_lm_lora/trainer/grpo_trainer.py.
"""

from __future__ import annotations

from steadyrl.doctor.names.table import Table, keys, names

TABLE = Table(
    trainer="mlx-lm-lora",
    names=names("""
        loss = loss
        total_rewards_{mean|std} = reward{|_std}, reward
        grouped_rewards_std = reward_std_within, reward, mean
        kl = kl_ref, nats/token, biased
        {average|min|max}_generated_tokens = length{|_min|_max}, tokens
        avg_length = length, tokens
        hit_max_tokens_ratio = truncated, share
        clip_ratio_total clip_fraction = clip_fraction, share
        clip_ratio_{low|high} = clip_fraction_{low|high}, share
        learning_rate = learning_rate
        tokens_per_second tokens/sec = tokens_per_second, tokens/s
        *_{mean|std} = reward_part{|_std}/*, reward
    """),
    keys=keys("""
        temperature top_p top_k learning_rate model = *
        max_new_tokens = max_completion_length
        samples_per_prompt = group_size
        clip = epsilon_high|epsilon
        kl_coef = beta
        steps = iters
    """),
    # Its log-probs are of the raw logits.
    facts={"logprobs": "raw", "kl_place": "loss", "kl_adaptive": False},
    distinctive=(
        "total_rewards_mean",
        "grouped_rewards_mean",
        "average_generated_tokens",
        "hit_max_tokens_ratio",
        "clip_ratio_total",
    ),
    prefixes=("train/", "train_"),
    heldout=("val_", "val/"),
    algorithm=lambda config, log: "grpo",
)
