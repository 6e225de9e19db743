"""Names of NeMo RL; trackers see them under ``train/`` and ``validation/``, and it prints some of them as words.

``kl_penalty`` is logged with its coefficient divided out, so it is the KL itself.

Source: NVIDIA-NeMo/RL, nemo_rl/algorithms/loss/loss_functions.py, nemo_rl/algorithms/{grpo,ppo}.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steadyrl.doctor.names.settings import Config, number, product, quotient
from steadyrl.doctor.names.table import Choice, Table, estimators, keys, names, words
from steadyrl.doctor.series import RawLog


def derive(config: Config, log: RawLog, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the batch of a step and the optimizer steps that it makes."""
    rows = product(number(config, "grpo.num_prompts_per_step"), number(config, "grpo.num_generations_per_prompt"))
    return {"batch_size": rows, "minibatches": quotient(rows, number(config, "policy.train_global_batch_size"))}


TABLE = Table(
    trainer="nemo-rl",
    logs_critic=True,
    # Only mean squares enter explained_var, so a constant offset of the values counts against them.
    names=names("""
        loss = loss
        reward avg_reward avg_filtered_reward = reward, reward
        kl_penalty = kl_ref, nats/token, k3
        gen_kl_error generation_kl_error = kl_sampler, nats/token, k3
        policy_kl_error = kl_sampler, nats/token, k3 reversed
        js_divergence_error = kl_sampler, nats/token, js
        token_mult_prob_error = sampler_gap_factor, , abs
        sampling_importance_ratio = importance
        approx_entropy = entropy, nats/token, sampled
        probs_ratio{|_min|_max} = ratio_{mean|min|max}
        grad_norm = grad_norm
        lr = learning_rate
        mean_prompt_length = length_prompt, tokens
        mean_gen_tokens_per_sample mean_generation_length = length, tokens
        critic/{loss|grad_norm} = {loss|grad_norm}_value
        critic/explained_var = explained_variance, , uncentred
        critic/vf_clipfrac = clip_fraction_value, share
        critic/{returns|values}_mean = {return|value}_mean, reward
        critic/values_{min|max} = value_{min|max}, reward
        critic/residual_sq_mean = value_error, reward^2
        total_step_time = time_step, s
    """),
    keys=keys("""
        temperature top_p top_k max_new_tokens = policy.generation.*
        learning_rate = policy.optimizer.kwargs.lr
        max_grad_norm = policy.max_grad_norm
        samples_per_prompt = grpo.num_generations_per_prompt
        clip = loss_fn.ratio_clip_max
        kl_coef = loss_fn.reference_policy_kl_penalty
        steps = grpo.max_num_steps
        model = policy.model_name
    """),
    facts={"kl_adaptive": False},
    derive=derive,
    distinctive=words("""
        token_mult_prob_error gen_kl_error generation_kl_error policy_kl_error js_divergence_error probs_ratio
        probs_ratio_clamped sampling_importance_ratio global_valid_toks global_valid_seqs
        critic/residual_sq_mean
    """),
    heldout=("validation/", "val/"),
    choices={
        "kl_penalty": Choice(
            ("loss_fn.reference_policy_kl_type",), estimators("nats/token", {"k1": "k1", "k2": "k2", "k3": "k3"})
        )
    },
    algorithm=lambda config, log: "ppo" if any(name.endswith("critic/loss") for name in log.columns) else "grpo",
)
