"""Names of AReaL, whose ratios are two: of the trained to the proximal policy, and of the proximal one to the sampler.

Source: inclusionAI/AReaL, areal/trainer/ppo/actor.py.
"""

from __future__ import annotations

from typing import Any

from steadyrl.doctor.names.settings import pick
from steadyrl.doctor.names.table import Config, Name, Table
from steadyrl.doctor.series import RawLog

TOKEN = "nats/token"

NAMES = {
    "ppo_actor/task_reward/avg": Name("reward", "reward"),
    "ppo_actor/task_reward/min": Name("reward_min", "reward"),
    "ppo_actor/task_reward/max": Name("reward_max", "reward"),
    "rollout/reward": Name("reward", "reward"),
    "ppo_actor/no_eos_ratios/avg": Name("truncated", "share"),
    "ppo_actor/prompt_len/avg": Name("length_prompt", "tokens"),
    "ppo_actor/update/importance_weight/avg": Name("ratio_mean"),
    "ppo_actor/update/importance_weight/min": Name("ratio_min"),
    "ppo_actor/update/importance_weight/max": Name("ratio_max"),
    "ppo_actor/update/behave_imp_weight/avg": Name("importance"),
    "ppo_actor/update/behave_imp_weight/min": Name("importance_min"),
    "ppo_actor/update/behave_imp_weight/max": Name("importance_max"),
    "ppo_actor/update/entropy/avg": Name("entropy", TOKEN, "exact"),
    "ppo_actor/update/clip_ratio/avg": Name("clip_fraction", "share"),
    "ppo_actor/update/grad_norm": Name("grad_norm"),
    "ppo_actor/update/lr": Name("learning_rate"),
    "timeperf/*": Name("time_part/*", "s"),
}


def settings(config: Config, log: RawLog) -> dict[str, Any]:
    """Return AReaL's settings."""
    return pick(
        config,
        {
            "temperature": "gconfig.temperature",
            "top_p": "gconfig.top_p",
            "top_k": "gconfig.top_k",
            "max_new_tokens": "gconfig.max_new_tokens",
            "learning_rate": "actor.optimizer.lr",
            "samples_per_prompt": "gconfig.n_samples",
            "minibatches": "actor.ppo_n_minibatches",
            "clip": "actor.eps_clip_higher|actor.eps_clip",
            "kl_coef": "actor.kl_ctl",
            "max_grad_norm": "actor.optimizer.gradient_clipping",
            "model": "actor.path",
        },
    )


TABLE = Table(
    trainer="areal",
    names=NAMES,
    distinctive=(
        "ppo_actor/*",
        "ppo_actor/task_reward/avg",
        "ppo_actor/no_eos_ratios/avg",
        "ppo_actor/update/importance_weight/avg",
        "ppo_actor/update/behave_imp_weight/avg",
        "timeperf/*",
    ),
    prefixes=(),
    heldout=("eval-rollout/", "eval/"),
    settings=settings,
    algorithm=lambda config, log: "",
)
