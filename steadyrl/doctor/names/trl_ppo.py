"""Names of TRL's two PPO trainers: the one until v0.11, and its successor (PPOv2), gone since September 2026.

Both log ``objective/kl`` as a sum over a completion. The successor fills padding with a log-prob of +1: sums of -log p
lose 1 per padded token, and plain means take the padding in. Its old RLOO trainer logs the same names, without a value
loss.

Source: huggingface/trl v0.11.0, trl/trainer/ppo_trainer.py and ppo_config.py; trl/experimental/ppo/ppo_trainer.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steadyrl.doctor.names.settings import Config, first, number, quotient
from steadyrl.doctor.names.table import Choice, Name, Table, estimators, keys, names, words
from steadyrl.doctor.names.trl_grpo import HUGGING_FACE_KEYS, schedule
from steadyrl.doctor.series import RawLog

OLD_NAMES = """
    objective/kl = kl_ref, nats/sequence, k1
    objective/kl_coef = kl_coef
    objective/entropy = entropy, nats/sequence, sampled
    ppo/policy/entropy = entropy, nats/token, exact
    ppo/policy/{approxkl|policykl} = kl_old, nats/token, {k2|k1}
    ppo/policy/clipfrac = clip_fraction, share
    ppo/policy/ratio = ratio_mean
    ppo/policy/advantages_mean = advantage_mean, reward, whitened
    ppo/{mean|std}_scores = reward{|_std}, reward
    env/reward_{mean|std} = reward{|_std}, reward
    ppo/mean_non_score_reward = reward_kl, reward/token
    ppo/learning_rate = learning_rate
    ppo/loss/{policy|value|total} = loss{_policy|_value|}
    ppo/returns/mean = return_mean, reward
    ppo/returns/var = return_std, reward, , sqrt
    ppo/val/mean = value_mean, reward
    ppo/val/var = value_std, reward, , sqrt
    ppo/val/error = value_error, reward^2
    ppo/val/clipfrac = clip_fraction_value, share
    ppo/val/var_explained = explained_variance, , uncentred
    tokens/{responses|queries}_len_mean = length{|_prompt}, tokens
    time/ppo/total = time_step, s
    time/ppo/* = time_part/*, s
"""
NEW_NAMES = """
    objective/kl = kl_ref, nats/sequence, k1
    objective/entropy = entropy, nats/sequence, sampled and padding
    policy/entropy_avg = entropy, nats/token, exact and padding
    policy/approxkl_avg = kl_old, nats/token, k2 and padding
    {policy|val}/clipfrac_avg = clip_fraction{|_value}, share
    val/ratio = ratio_mean, , all and padding
    val/ratio_var = ratio_var, , of step means
    objective/scores = reward, reward
    objective/rlhf_reward = reward_with_kl, reward
    objective/non_score_reward = reward_kl, reward/sequence
    loss/{policy|value}_avg = loss_{policy|value}
    lr learning_rate = learning_rate
    epoch = data_epoch
"""
PENALTIES = estimators("nats/sequence", {"kl": "k1", "abs": "abs", "mse": "k2", "full": "exact"})
WRAPPER = "trl_ppo_trainer_config."  # what the trainer's config is wrapped in, except for TensorBoard


OLD_KEYS = """
    learning_rate batch_size max_grad_norm = *
    epochs = ppo_epochs
    clip = cliprange
    kl_coef = init_kl_coef
    kl_adaptive = adap_kl_ctrl
    kl_target = target
    kl_horizon = horizon
    model = model_name
"""
NEW_KEYS = f"""
    {HUGGING_FACE_KEYS}
    epochs = num_ppo_epochs
    minibatches = num_mini_batches
    batch_size kl_coef = *
    clip = cliprange
    samples_per_prompt = rloo_k
    steps = num_total_batches
    whitened = normalize_advantage
"""


def wrapped(keys: Mapping[str, str]) -> dict[str, str]:
    """Return keys that may stand in the wrapper of the old trainer's config."""
    return {name: f"{theirs}|{WRAPPER}{theirs}" for name, theirs in keys.items()}


def derive_old(config: Config, log: RawLog, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return how many optimizer steps the old trainer makes of a batch."""
    small, accumulated = (
        number(config, f"{name}|{WRAPPER}{name}") for name in ("mini_batch_size", "gradient_accumulation_steps")
    )
    return {"minibatches": quotient(found.get("batch_size"), small * (accumulated or 1) if small else None)}


def derive_new(config: Config, log: RawLog, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what follows for PPOv2: PPO's advantages are whitened, RLOO's only where a setting says so."""
    whitened = found.get("whitened", True if new_algorithm(config, log) == "ppo" else None)
    planned = schedule(config, log, found)
    return {**planned, "steps": found.get("steps", planned["steps"]), "whitened": whitened}


def new_algorithm(config: Config, log: RawLog) -> str:
    """Return "rloo" where no value loss is logged."""
    if first(config, "rloo_k") is not None:
        return "rloo"
    return "ppo" if any(name.endswith("loss/value_avg") for name in log.columns) else "rloo"


OLD = Table(
    trainer="trl-ppo-old",
    names=names(OLD_NAMES),
    keys=wrapped(keys(OLD_KEYS)),
    # Log-probs are of the raw logits, whatever the sampler did; advantages are whitened; the controller compares the
    # sum over a completion, with its horizon in samples.
    facts={
        "logprobs": "raw",
        "whitened": True,
        "kl_place": "reward",
        "kl_target_unit": "nats/sequence",
        "kl_horizon_unit": "samples",
    },
    derive=derive_old,
    distinctive=words("""
        objective/kl_coef objective/kl_dist ppo/mean_non_score_reward ppo/mean_scores ppo/std_scores ppo/loss/*
        ppo/policy/* ppo/returns/* ppo/val/* tokens/queries_len_mean tokens/responses_len_mean time/ppo/*
        env/reward_mean
    """),
    choices={"objective/kl": Choice((f"{WRAPPER}kl_penalty", "kl_penalty"), PENALTIES)},
    algorithm=lambda config, log: "ppo",
)
NEW = Table(
    trainer="trl-ppo",
    names=names(NEW_NAMES),
    keys=keys(NEW_KEYS),
    # Logits are divided by the temperature and nothing is truncated; the coefficient is fixed.
    facts={"logprobs": "sampled", "top_p": 1.0, "top_k": 0, "kl_place": "reward", "kl_adaptive": False},
    derive=derive_new,
    distinctive=words("""
        policy/approxkl_avg policy/clipfrac_avg policy/entropy_avg loss/policy_avg loss/value_avg
        val/clipfrac_avg val/ratio val/ratio_var val/num_eos_tokens
    """),
    choices={"objective/kl": Choice(("kl_estimator",), {"k3": Name("kl_ref", "nats/sequence", "k3")})},
    algorithm=new_algorithm,
    caveats={
        "objective/entropy": "objective/entropy of TRL's PPO counts every padded token as -1 nat.",
        "policy/entropy_avg": "policy/entropy_avg of TRL's PPO is a mean over padding too.",
        "policy/approxkl_avg": "policy/approxkl_avg of TRL's PPO is a mean over padding too, so it reads low.",
        "val/ratio": "val/ratio of TRL's PPO is a mean over padding too, so it reads nearer to 1.",
    },
)
