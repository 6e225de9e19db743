"""Names of OpenRLHF, old and new; trackers see them under ``train/``.

``kl`` is to the reference, ``ppo_kl`` to the policy before the update, ``vllm_kl`` between sampler and trainer. The
controller, where it adapts, compares the mean per token and counts samples.

Source: OpenRLHF/OpenRLHF, openrlhf/trainer/ppo_trainer.py, openrlhf/trainer/ray/ppo_actor.py, openrlhf/models/loss.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steadyrl.doctor.names.settings import Config, first, number, product, quotient, tempered
from steadyrl.doctor.names.table import Choice, Table, estimators, keys, names, words
from steadyrl.doctor.series import RawLog

ALGORITHMS = {"gae": "ppo", "reinforce": "reinforce++", "group_norm": "grpo", "dr_grpo": "grpo"}


def derive(config: Config, log: RawLog, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the batch, the adapter, and where the KL is paid."""
    rows = product(number(config, "rollout_batch_size"), number(config, "n_samples_per_prompt"))
    rank, in_loss = number(config, "lora_rank"), first(config, "use_kl_loss")
    return {
        "batch_size": rows,
        "minibatches": quotient(rows, number(config, "train_batch_size")),
        "lora": None if rank is None else rank > 0,
        "kl_place": None if in_loss is None else ("loss" if in_loss else "reward"),
        "kl_adaptive": "kl_target" in found if "kl_target" in config else None,
        **tempered(found),
    }


def algorithm(config: Config, log: RawLog) -> str:
    """Return the algorithm of the advantage estimator; without a config, "ppo" where a critic is trained."""
    estimator = first(config, "advantage_estimator")
    if estimator is not None:
        return ALGORITHMS.get(str(estimator), str(estimator))
    return "ppo" if any(name.endswith("critic_loss") for name in log.columns) else ""


TABLE = Table(
    trainer="openrlhf",
    logs_critic=True,
    # entropy_loss is logged as the mean entropy, not as what it adds to the loss.
    names=names("""
        {policy|critic}_loss = loss_{policy|value}
        entropy_loss = entropy, nats/token, exact
        {|ppo_|vllm_}kl = kl_{ref|old|sampler}, nats/token, k1
        ppo_clip_ratio = clip_fraction, share
        reward rollout/reward_mean = reward, reward
        rollout/reward_std = reward_std, reward
        group_reward_std = reward_std_within, reward, mean
        score = reward_part/score, reward
        return = return_mean, reward
        values = value_mean, reward
        response_length rollout/response_length_mean = length, tokens
        truncated response_clip_ratio rollout/truncated_rate = truncated, share
        {actor|critic}_grad_norm = grad_norm{|_value}
        {actor|critic}_lr = learning_rate{|_value}
        timing/step_total = time_step, s
        timing/* = time_part/*, s
    """),
    keys=keys("""
        temperature top_p kl_target kl_horizon = *
        max_new_tokens = generate_max_len|max_new_tokens
        learning_rate = actor_learning_rate
        epochs = max_epochs
        samples_per_prompt = n_samples_per_prompt
        clip = eps_clip
        kl_coef = init_kl_coef
        entropy_coef = entropy_loss_coef
        max_grad_norm = max_norm
        model = pretrain
        task = prompt_data
    """),
    facts={"kl_target_unit": "nats/token", "kl_horizon_unit": "samples"},
    derive=derive,
    distinctive=words("""
        actor_lr actor_grad_norm critic_lr critic_grad_norm ppo_clip_ratio vllm_kl group_reward_std
        response_clip_ratio ptx_loss num_actions total_length rollout/response_length_mean
        timing/make_experience dynamic_filtering_pass_rate
    """),
    choices={"kl": Choice(("kl_estimator",), estimators("nats/token", {"k1": "k1", "k2": "k2", "k3": "k3"}))},
    algorithm=algorithm,
)
