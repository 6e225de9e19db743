"""Names of verl; its KLs are means per token, ``critic/score`` is before the KL penalty and ``critic/rewards`` after.

GAE's advantages are whitened; logits are divided by the temperature. The controller of the KL in the reward compares
the mean per token and counts samples.

Source: verl-project/verl, verl/trainer/ppo/{metric_utils,ray_trainer,core_algos,rollout_corr_helper}.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steadyrl.doctor.names.settings import Config, first, number, pick, product, quotient, tempered
from steadyrl.doctor.names.table import Choice, Table, estimators, keys, names, words
from steadyrl.doctor.series import RawLog

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
CONTROL = "algorithm.kl_ctrl"
IN_REWARD = {
    "kl_coef": f"{CONTROL}.kl_coef",
    "kl_target": f"{CONTROL}.target_kl",
    "kl_horizon": f"{CONTROL}.horizon",
}
IN_LOSS = {"kl_coef": f"{ACTOR}.kl_loss_coef"}
ESTIMATORS = {
    "kl": "k1",
    "k1": "k1",
    "abs": "abs",
    "mse": "k2",
    "k2": "k2",
    "low_var_kl": "k3",
    "k3": "k3",
    "full": "exact",
}
# A "+" sends the gradient through another estimator; the value that is logged stays the same.
KINDS = estimators("nats/token", {f"{kind}{plus}": name for kind, name in ESTIMATORS.items() for plus in ("", "+")})
SHOWN_BY = {"reward": ("actor/reward_kl_penalty", "critic/kl"), "loss": ("actor/kl_loss",)}
ALGORITHMS = {"gae": "ppo", "reinforce_plus_plus": "reinforce++", "reinforce_plus_plus_baseline": "reinforce++"}


def derive(config: Config, log: RawLog, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what several of verl's settings say together."""
    prompts, warmup = number(config, "data.train_batch_size"), number(config, f"{ACTOR}.optim.lr_warmup_steps")
    rank = number(config, "actor_rollout_ref.model.lora_rank")
    return {
        "batch_size": product(prompts, number(config, f"{ROLLOUT}.n")),
        "minibatches": quotient(prompts, number(config, f"{ACTOR}.ppo_mini_batch_size")),
        "warmup_steps": warmup if warmup is not None and warmup >= 0 else None,  # -1 leaves it to a ratio
        "lora": None if rank is None else rank > 0,
        "whitened": True if algorithm(config, log) == "ppo" else None,
        **tempered(found),
        **_penalty(config, log),
    }


def _penalty(config: Config, log: RawLog) -> dict[str, Any]:
    """Return where the KL stands and what it costs; a log without a config shows the place by its metrics."""
    place = kl_place(config, log)
    if place == "reward":
        kind = first(config, f"{CONTROL}.type")
        adaptive = None if kind is None else kind == "adaptive"
        units = {"kl_target_unit": "nats/token", "kl_horizon_unit": "samples"}
        return {"kl_place": place, **units, **pick(config, IN_REWARD), "kl_adaptive": adaptive}
    if place == "loss":
        return {"kl_place": place, "kl_adaptive": False, **pick(config, IN_LOSS)}
    return {"kl_place": place or None}


def kl_place(config: Config, log: RawLog) -> str:
    """Return "reward", "loss", "none", or "" where neither config nor metrics tell."""
    told = first(config, "algorithm.use_kl_in_reward"), first(config, f"{ACTOR}.use_kl_loss")
    for place, switch in zip(SHOWN_BY, told, strict=True):
        if switch or (switch is None and any(name in log.columns for name in SHOWN_BY[place])):
            return place
    return "none" if told == (False, False) else ""


def algorithm(config: Config, log: RawLog) -> str:
    """Return the algorithm of the advantage estimator; without a config, "ppo" where a critic is trained."""
    loss = first(config, f"{ACTOR}.policy_loss.loss_mode")
    if loss in ("gspo", "cispo"):
        return str(loss)
    estimator = first(config, "algorithm.adv_estimator")
    if estimator is not None:
        return ALGORITHMS.get(str(estimator), str(estimator))
    return "ppo" if "critic/vf_loss" in log.columns else ""


TABLE = Table(
    trainer="verl",
    logs_critic=True,
    # Older versions call the entropy entropy_loss, with the same sign, and log rates in units of 1e-4.
    names=names("""
        actor/loss = loss
        actor/pg_loss = loss_policy
        actor/entropy actor/entropy_loss = entropy, nats/token, exact
        actor/kl_loss = kl_ref, nats/token
        actor/kl_coef actor/reward_kl_penalty_coeff critic/kl_coeff = kl_coef
        actor/reward_kl_penalty critic/kl = kl_ref, nats/token, k1
        actor/ppo_kl = kl_old, nats/token, k1
        actor/pg_clipfrac = clip_fraction, share
        {actor|critic}/grad_norm = grad_norm{|_value}
        {actor|critic}/lr = learning_rate{|_value}
        {actor|critic}/lr(1e-4) = learning_rate{|_value}, , , 1e-4
        critic/vf_loss = loss_value
        critic/vf_clipfrac = clip_fraction_value, share
        critic/vf_explained_var = explained_variance, , centred
        critic/vpred_mean = value_mean, reward
        critic/score/{mean|max|min} = reward{|_max|_min}, reward
        critic/rewards/mean = reward_with_kl, reward
        critic/advantages/{mean|max|min} = advantage_{mean|max|min}, reward
        critic/returns/{mean|max|min} = return_{mean|max|min}, reward
        critic/values/{mean|max|min} = value_{mean|max|min}, reward
        response_length/{mean|max|min} = length{|_max|_min}, tokens
        response_length/clip_ratio = truncated, share
        response/aborted_ratio = empty, share
        prompt_length/mean = length_prompt, tokens
        rollout_corr/{kl|k3_kl} = kl_sampler, nats/token, {k1|k3}
        rollout_corr/rollout_is_{mean|max|min} = importance{|_max|_min}
        rollout_corr/rollout_is_eff_sample_size = importance_ess, share
        training/rollout_probs_diff_mean = sampler_gap_probability, probability, abs
        training/off_policy/trajectory_staleness/mean = staleness, updates
        training/epoch = data_epoch
        perf/throughput = tokens_per_second, tokens/s/GPU
        perf/time_per_step timing_s/step = time_step, s
        timing_s/* = time_part/*, s
    """),
    keys=keys("""
        temperature top_p top_k = actor_rollout_ref.rollout.*
        max_new_tokens = data.max_response_length|actor_rollout_ref.rollout.response_length
        learning_rate = actor_rollout_ref.actor.optim.lr
        epochs = actor_rollout_ref.actor.ppo_epochs
        samples_per_prompt = actor_rollout_ref.rollout.n
        clip = actor_rollout_ref.actor.clip_ratio_high|actor_rollout_ref.actor.clip_ratio
        entropy_coef = actor_rollout_ref.actor.entropy_coeff
        max_grad_norm = actor_rollout_ref.actor.grad_clip|actor_rollout_ref.actor.optim.clip_grad
        optimizer = actor_rollout_ref.actor.optim.optimizer
        steps = trainer.total_training_steps
        model = actor_rollout_ref.model.path
        task = data.train_files
    """),
    # Which of both settings of the coefficient holds depends on the place of the KL.
    place_keys={"reward": IN_REWARD, "loss": IN_LOSS},
    derive=derive,
    distinctive=words("""
        actor/pg_loss actor/pg_clipfrac actor/pg_clipfrac_lower actor/ppo_kl actor/reward_kl_penalty
        critic/score/mean critic/rewards/mean critic/vf_explained_var response_length/clip_ratio
        prompt_length/clip_ratio timing_s/* timing_per_token_ms/* global_seqlen/* rollout_corr/*
        perf/total_num_tokens
    """),
    prefixes=(),
    heldout=("val-core/", "val-aux/", "val/"),
    choices={
        "actor/kl_loss": Choice((f"{ACTOR}.kl_loss_type",), KINDS),
        "actor/reward_kl_penalty": Choice(("algorithm.kl_penalty",), KINDS),
    },
    algorithm=algorithm,
    formats=("verl_file", "verl_console"),
)
