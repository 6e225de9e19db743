"""Names of prime-rl: its KL is between trainer and sampler; there is no reference policy unless one asks for it.

Source: PrimeIntellect-ai/prime-rl, src/prime_rl/trainer/rl/loss.py, skills/training/monitor-run/SKILL.md.
"""

from __future__ import annotations

from typing import Any

from steadyrl.doctor.names.settings import pick
from steadyrl.doctor.names.table import Config, Name, Table
from steadyrl.doctor.series import RawLog

TOKEN = "nats/token"

NAMES = {
    "loss/mean": Name("loss"),
    "entropy/all/mean": Name("entropy", TOKEN, "exact"),
    "entropy/mean": Name("entropy", TOKEN, "exact"),
    "mismatch_kl/all/mean": Name("kl_sampler", TOKEN, "k3"),
    "mismatch_kl/mean": Name("kl_sampler", TOKEN, "k3"),
    "is_masked": Name("clip_fraction", "share"),
    "is_masked/mean": Name("clip_fraction", "share"),
    "is_masked_low": Name("clip_fraction_low", "share"),
    "is_masked_high": Name("clip_fraction_high", "share"),
    "optim/lr": Name("learning_rate"),
    "optim/grad_norm": Name("grad_norm"),
    "perf/throughput": Name("tokens_per_second", "tokens/s"),
    "off_policy/mean": Name("staleness", "updates"),
    "off_policy/max": Name("staleness_max", "updates"),
    "time/step": Name("time_step", "s"),
    "time/*": Name("time_part/*", "s"),
    "reward/mean": Name("reward", "reward"),
    "train/agg/all/*/reward/mean": Name("reward", "reward"),
    "train/agg/all/*/is_truncated/mean": Name("truncated", "share"),
    "train/agg/all/*/has_error/mean": Name("reward_unscored", "share"),
    "train/*/reward/mean": Name("reward_part/*", "reward"),
}


def settings(config: Config, log: RawLog) -> dict[str, Any]:
    """Return prime-rl's settings."""
    return pick(
        config,
        {
            "temperature": "sampling.temperature",
            "max_new_tokens": "sampling.max_tokens",
            "learning_rate": "optim.lr",
            "samples_per_prompt": "rollouts_per_example",
            "batch_size": "batch_size",
            "max_grad_norm": "optim.max_norm",
            "steps": "max_steps",
            "model": "model.name",
        },
    )


TABLE = Table(
    trainer="prime-rl",
    names=NAMES,
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
    settings=settings,
    algorithm=lambda config, log: "",
)
