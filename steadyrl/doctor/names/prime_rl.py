"""Names of prime-rl: its KL is between trainer and sampler; there is no reference policy unless one asks for it.

Source: PrimeIntellect-ai/prime-rl, src/prime_rl/trainer/rl/loss.py, skills/training/monitor-run/SKILL.md.
"""

from __future__ import annotations

from steadyrl.doctor.names.table import Table, keys, names

TABLE = Table(
    trainer="prime-rl",
    names=names("""
        loss/mean = loss
        entropy/all/mean entropy/mean = entropy, nats/token, exact
        mismatch_kl/all/mean mismatch_kl/mean = kl_sampler, nats/token, k3
        is_masked is_masked/mean = clip_fraction, share
        is_masked_{low|high} = clip_fraction_{low|high}, share
        optim/lr = learning_rate
        optim/grad_norm = grad_norm
        perf/throughput = tokens_per_second, tokens/s
        off_policy/{mean|max} = staleness{|_max}, updates
        time/step = time_step, s
        time/* = time_part/*, s
        reward/mean train/agg/all/*/reward/mean = reward, reward
        train/agg/all/*/is_truncated/mean = truncated, share
        train/agg/all/*/has_error/mean = reward_unscored, share
        train/*/reward/mean = reward_part/*, reward
    """),
    keys=keys("""
        temperature = sampling.temperature
        max_new_tokens = sampling.max_tokens
        learning_rate = optim.lr
        max_grad_norm = optim.max_norm
        samples_per_prompt = rollouts_per_example
        batch_size = batch_size
        steps = max_steps
        model = model.name
    """),
    distinctive=(
        "mismatch_kl/all/mean",
        "mismatch_kl/mean",
        "entropy/all/mean",
        "masked_mismatch_kl",
        "unmasked_mismatch_kl",
        "is_masked_low",
        "kl_ent_ratio/mean",
        "off_policy/dropped",
        "time/wait_for_policy",
        "time/wait_for_batch",
        "time/broadcast_weights",
        "dispatcher/*",
    ),
    prefixes=(),
)
