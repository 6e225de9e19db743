"""Names of the tinker cookbook; "v1" and "v2" of a KL are k1 and k2.

Source: thinking-machines-lab/tinker-cookbook, tinker_cookbook/rl/{train,metrics}.py.
"""

from __future__ import annotations

from typing import Any

from steadyrl.doctor.names.settings import known, number, pick, product
from steadyrl.doctor.names.table import Config, Name, Table
from steadyrl.doctor.series import RawLog

TOKEN = "nats/token"

NAMES = {
    "env/all/reward/total": Name("reward", "reward"),
    "env/all/reward/*": Name("reward_part/*", "reward"),
    "env/all/by_group/frac_mixed": Name("no_signal", "share", transform="complement"),
    "env/all/ac_tokens_per_turn": Name("length", "tokens"),
    "env/all/ob_tokens_per_turn": Name("length_prompt", "tokens"),
    "optim/lr": Name("learning_rate"),
    "optim/entropy": Name("entropy", TOKEN, "sampled"),
    "optim/kl_sample_train_v1": Name("kl_sampler", TOKEN, "k1"),
    "optim/kl_sample_train_v2": Name("kl_sampler", TOKEN, "k2"),
    "kl_pre_post_v1": Name("kl_old", TOKEN, "k1"),
    "kl_pre_post_v2": Name("kl_old", TOKEN, "k2"),
    "time/total": Name("time_step", "s"),
    "time/*": Name("time_part/*", "s"),
}


def settings(config: Config, log: RawLog) -> dict[str, Any]:
    """Return the cookbook's settings."""
    found = pick(
        config,
        {
            "temperature": "temperature",
            "max_new_tokens": "max_tokens",
            "learning_rate": "learning_rate",
            "kl_coef": "kl_penalty_coef",
            "minibatches": "num_substeps",
            "model": "model_name",
            "samples_per_prompt": "dataset_builder.group_size|group_size",
        },
    )
    groups = number(config, "dataset_builder.batch_size|groups_per_batch")
    rows = product(groups, number(config, "dataset_builder.group_size|group_size"))
    return {**found, **known({"batch_size": rows}), "lora": True, "kl_adaptive": False}


TABLE = Table(
    trainer="tinker",
    names=NAMES,
    distinctive=(
        "optim/kl_sample_train_v1",
        "optim/kl_sample_train_v2",
        "kl_pre_post_v1",
        "kl_pre_post_v2",
        "env/all/reward/total",
        "env/all/by_group/frac_mixed",
        "env/all/by_group/frac_all_good",
        "env/all/by_group/frac_all_bad",
    ),
    prefixes=(),
    heldout=("test/",),
    settings=settings,
    algorithm=lambda config, log: "",
)
