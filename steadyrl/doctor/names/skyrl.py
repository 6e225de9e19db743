"""Names of SkyRL; its KLs are means per token. The controller of the KL in the reward compares those, counting samples.

Source: NovaSky-AI/SkyRL, skyrl/train/trainer.py and skyrl/backends/skyrl_train/utils/ppo_utils.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steadyrl.doctor.names.settings import Config, first, number, product, quotient, tempered
from steadyrl.doctor.names.table import Choice, Table, estimators, keys, names, words
from steadyrl.doctor.series import RawLog

ALGORITHM = "trainer.algorithm"


def derive(config: Config, log: RawLog, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the batch, and where the KL is paid."""
    kind = first(config, f"{ALGORITHM}.kl_ctrl.type")
    in_reward, in_loss = first(config, f"{ALGORITHM}.use_kl_in_reward"), first(config, f"{ALGORITHM}.use_kl_loss")
    prompts = number(config, "trainer.train_batch_size")
    return {
        "batch_size": product(prompts, number(config, "generator.n_samples_per_prompt")),
        "minibatches": quotient(prompts, number(config, "trainer.policy_mini_batch_size")),
        "kl_adaptive": None if kind is None else bool(in_reward) and kind == "adaptive",
        "kl_place": "reward" if in_reward else ("loss" if in_loss else None),
        **tempered(found),
    }


def algorithm(config: Config, log: RawLog) -> str:
    """Return the algorithm of the advantage estimator; without a config, "ppo" where a critic is trained."""
    estimator = first(config, f"{ALGORITHM}.advantage_estimator")
    if estimator is not None:
        return {"gae": "ppo"}.get(str(estimator), str(estimator))
    return "ppo" if "critic/critic_loss" in log.columns else ""


KL = Choice(
    (f"{ALGORITHM}.kl_estimator_type",),
    estimators("nats/token", {"k1": "k1", "abs": "abs", "k2": "k2", "k3": "k3"}),
)
TABLE = Table(
    trainer="skyrl",
    logs_critic=True,
    names=names("""
        reward/avg_raw_reward = reward, reward
        reward/avg_pass_at_* = reward_part/pass_at_*, reward
        loss/avg_final_rewards = reward_with_kl, reward
        loss/avg_kl policy/policy_kl = kl_ref, nats/token
        loss/kl_loss_coef = kl_coef
        loss/avg_raw_advantages = advantage_mean, reward
        policy/policy_loss = loss_policy
        policy/policy_entropy = entropy, nats/token, exact
        policy/policy_lr = learning_rate
        policy/grad_norm = grad_norm
        policy/loss_metrics/clip_ratio = clip_fraction, share
        policy/response_length = length, tokens
        policy/rollout_train_logprobs_abs_diff_{mean|max} = sampler_gap{|_max}, nats/token, abs
        critic/critic_loss = loss_value
        critic/values_mean = value_mean, reward
        critic/values_clipfrac = clip_fraction_value, share
        critic/grad_norm = grad_norm_value
        generate/{avg|min|max}_num_tokens = length{|_min|_max}, tokens
        async/staleness_{mean|max} = staleness{|_max}, updates
        timing/step = time_step, s
        timing/* = time_part/*, s
    """),
    keys=keys("""
        temperature top_p top_k = generator.sampling_params.*
        max_new_tokens = generator.sampling_params.max_generate_length
        learning_rate = trainer.policy.optimizer_config.lr
        max_grad_norm = trainer.policy.optimizer_config.max_grad_norm
        epochs = trainer.update_epochs_per_batch
        samples_per_prompt = generator.n_samples_per_prompt
        clip = trainer.algorithm.eps_clip_high
        kl_coef = trainer.algorithm.kl_loss_coef
        kl_target = trainer.algorithm.kl_ctrl.kl_target
        kl_horizon = trainer.algorithm.kl_ctrl.horizon
        model = trainer.policy.model.path
    """),
    facts={"kl_target_unit": "nats/token", "kl_horizon_unit": "samples"},
    derive=derive,
    distinctive=words("""
        reward/avg_raw_reward reward/avg_pass_at_* reward/mean_positive_reward reward/num_zero_variance_filtered
        loss/avg_final_rewards loss/avg_kl loss/avg_raw_advantages_abs loss/kl_loss_coef policy/policy_entropy
        policy/policy_kl policy/rollout_train_logprobs_abs_diff_* generate/avg_num_tokens async/staleness_*
    """),
    prefixes=(),
    choices={"loss/avg_kl": KL, "policy/policy_kl": KL},
    algorithm=algorithm,
)
