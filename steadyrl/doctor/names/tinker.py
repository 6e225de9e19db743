"""Names of the tinker cookbook; "v1" and "v2" of a KL are k1 and k2.

Source: thinking-machines-lab/tinker-cookbook, tinker_cookbook/rl/{train,metrics}.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steadyrl.doctor.names.settings import Config, number, product
from steadyrl.doctor.names.table import Table, keys, names
from steadyrl.doctor.series import RawLog


def derive(config: Config, log: RawLog, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the batch of a step."""
    groups = number(config, "dataset_builder.batch_size|groups_per_batch")
    return {"batch_size": product(groups, found.get("samples_per_prompt"))}


TABLE = Table(
    trainer="tinker",
    names=names("""
        env/all/reward/total = reward, reward
        env/all/reward/* = reward_part/*, reward
        env/all/by_group/frac_mixed = no_signal, share, , complement
        env/all/{ac|ob}_tokens_per_turn = length{|_prompt}, tokens
        optim/lr = learning_rate
        optim/entropy = entropy, nats/token, sampled
        optim/kl_sample_train_{v1|v2} = kl_sampler, nats/token, {k1|k2}
        kl_pre_post_{v1|v2} = kl_old, nats/token, {k1|k2}
        time/total = time_step, s
        time/* = time_part/*, s
    """),
    keys=keys("""
        temperature learning_rate = *
        max_new_tokens = max_tokens
        kl_coef = kl_penalty_coef
        minibatches = num_substeps
        model = model_name
        samples_per_prompt = dataset_builder.group_size|group_size
    """),
    facts={"lora": True, "kl_adaptive": False},
    derive=derive,
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
)
