"""Names of slime; its KLs are means per token.

Source: THUDM/slime, slime/backends/megatron_utils/loss.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steadyrl.doctor.names.settings import Config, first, number, product, quotient
from steadyrl.doctor.names.table import Choice, Table, estimators, keys, names, words
from steadyrl.doctor.series import RawLog


def derive(config: Config, log: RawLog, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the batch, and where the KL is paid with which coefficient."""
    rows = product(number(config, "rollout_batch_size"), number(config, "n_samples_per_prompt"))
    in_loss = first(config, "use_kl_loss")
    return {
        "batch_size": rows,
        "minibatches": quotient(rows, number(config, "global_batch_size")),
        "kl_place": None if in_loss is None else ("loss" if in_loss else "reward"),
        "kl_coef": number(config, "kl_loss_coef" if in_loss else "kl_coef"),
    }


def algorithm(config: Config, log: RawLog) -> str:
    """Return the advantage estimator's name; without a config, "ppo" where a value loss is logged."""
    estimator = first(config, "advantage_estimator")
    if estimator is not None:
        return {"reinforce_plus_plus": "reinforce++"}.get(str(estimator), str(estimator))
    return "ppo" if "train/value_loss" in log.columns else ""


TABLE = Table(
    trainer="slime",
    logs_critic=True,
    names=names("""
        train/loss = loss
        train/{pg|value}_loss = loss_{policy|value}
        train/entropy_loss = entropy, nats/token, exact
        train/kl_loss = kl_ref, nats/token
        train/ppo_kl = kl_old, nats/token, k1
        train/{pg|value}_clipfrac = clip_fraction{|_value}, share
        train/train_rollout_logprob_abs_diff = sampler_gap, nats/token, abs
        train/tis = importance
        train/grad_norm = grad_norm
        train/lr-pg_0 = learning_rate
        rollout/raw_reward = reward, reward
        rollout/response_len/{mean|max|min} = length{|_max|_min}, tokens
        rollout/truncated_ratio = truncated, share
        rollout/{advantages|returns|values} = {advantage|return|value}_mean, reward
        perf/step_time = time_step, s
        perf/*_time = time_part/*, s
    """),
    keys=keys("""
        temperature top_p top_k = rollout_*
        max_new_tokens = rollout_max_response_len
        learning_rate = lr
        samples_per_prompt = n_samples_per_prompt
        clip = eps_clip_high|eps_clip
        entropy_coef kl_coef = *
        max_grad_norm = clip_grad
        steps = num_rollout
        model = hf_checkpoint
    """),
    facts={"kl_adaptive": False},
    derive=derive,
    distinctive=words("""
        train/pg_loss train/pg_clipfrac train/ppo_kl train/train_rollout_logprob_abs_diff train/ois train/tis
        train/tis_clipfrac train/opsm_clipfrac train/lr-pg_* rollout/raw_reward
    """),
    prefixes=(),
    choices={
        "train/kl_loss": Choice(
            ("kl_loss_type",), estimators("nats/token", {"k1": "k1", "k2": "k2", "k3": "k3", "low_var_kl": "k3"})
        )
    },
    algorithm=algorithm,
)
