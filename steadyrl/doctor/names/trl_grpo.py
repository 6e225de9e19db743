"""Names of TRL's trainers with groups or without rewards: GRPO, asynchronous GRPO, RLOO, OnlineDPO and SFT.

Unsloth runs these trainers and logs the same names. ``kl`` is not one thing: GRPO logs k3 as a mean per token, RLOO k1
summed over a completion.

Source: huggingface/trl, trl/trainer/{grpo,rloo,sft}_trainer.py, from v0.14 on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from steadyrl.doctor.names.settings import Config, first, number, tempered
from steadyrl.doctor.names.table import Choice, Name, Table, keys, names, words
from steadyrl.doctor.series import RawLog

# k3 is never negative but for the rounding of bfloat16; below this it was not k3.
K3_ROUNDING = -0.01

HUGGING_FACE = """
    loss training_loss = loss
    grad_norm = grad_norm
    learning_rate = learning_rate
    epoch = data_epoch
"""
# rewards/* and completion_length are of v0.14 to v0.16; clip_ratio is of v0.16, and of Liger kernels. entropy_sampled
# is not TRL's own: integrations/trl.py measures it.
GRPO_NAMES = f"""
    {HUGGING_FACE}
    reward = reward, reward
    reward_std = reward_std_within, reward, mean
    rewards/*/{{mean|std}} = reward_part{{|_std}}/*, reward
    rewards/* = reward_part/*, reward
    frac_reward_zero_std = no_signal, share
    kl = kl_ref, nats/token, k3
    entropy{{|_sampled}} = entropy, nats/token, {{exact|sampled}}
    entropy_coef = entropy_coef
    policy_loss = loss_policy
    clip_ratio clip_ratio/region_mean cispo_clip_ratio = clip_fraction, share
    clip_ratio/{{low|high}}_mean = clip_fraction_{{low|high}}, share
    sampling/sampling_logp_difference/{{mean|max}} = sampler_gap{{|_max}}, nats/token, abs
    sampling/importance_sampling_ratio/{{mean|min|max}} = importance{{|_min|_max}}
    completions/{{mean|min|max}}_length = length{{|_min|_max}}, tokens
    completions/mean_terminated_length = length_ended, tokens
    completions/clipped_ratio = truncated, share
    completion_length = length, tokens
    step_time = time_step, s
"""
ASYNC_NAMES = f"""
    {GRPO_NAMES}
    ratio = ratio_mean
    training_tok/s = tokens_per_second, tokens/s
    forward_time_s = time_part/forward, s
    weight_sync_time_s = time_part/weight_sync, s
"""
ONLINE_DPO_NAMES = f"""
    {HUGGING_FACE}
    objective/kl = kl_ref, nats/sequence, k1
    objective/entropy = entropy, nats/sequence, sampled
    objective/non_score_reward = reward_kl, reward/sequence
    objective/rlhf_reward = reward_with_kl, reward
    objective/scores = reward, reward
"""
SFT_NAMES = f"""
    {HUGGING_FACE}
    entropy = entropy, nats/token, exact
    mean_token_accuracy = token_accuracy, share
"""
GROUPED = (
    "frac_reward_zero_std",
    "reward_std",
    "rewards/*",
    "completion_length",
    "completions/mean_length",
    "completions/clipped_ratio",
    "completions/mean_terminated_length",
    "clip_ratio/low_mean",
    "clip_ratio/region_mean",
    "sampling/sampling_logp_difference/mean",
    "training_loss",  # in the table that a notebook shows
)
# With one standard deviation for the whole batch, reward_std is that one; so it is where a callback adds the groups'.
OF_THE_BATCH = Name("reward_std", "reward")
REWARD_STD = Choice(("scale_rewards",), {"batch": OF_THE_BATCH}, beside={"group_reward_std": OF_THE_BATCH})
HUGGING_FACE_KEYS = """
    learning_rate max_grad_norm = *
    optimizer = optim
    vocabulary = vocab_size
    dtype = dtype|torch_dtype
    model = model_name_or_path|_name_or_path
    temperature top_p top_k = *
    max_new_tokens = max_completion_length|max_new_tokens|response_length
"""
GROUPED_KEYS = f"""
    {HUGGING_FACE_KEYS}
    epochs = num_iterations
    samples_per_prompt = num_generations
    batch_size = generation_batch_size
    clip = epsilon_high|epsilon
    kl_coef = beta
    entropy_coef = entropy_coef
"""


def schedule(config: Config, log: RawLog, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the planned and the warm-up steps, where they are numbers and not shares."""
    warmup, steps = number(config, "warmup_steps"), number(config, "max_steps")
    if (warmup and warmup < 1) or (not warmup and number(config, "warmup_ratio")):
        warmup = None
    return {"warmup_steps": warmup, "steps": steps if steps and steps > 0 else None}


def derive_grpo(config: Config, log: RawLog, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what follows for GRPO: logits are divided by the temperature since v0.16; v0.17 brought these names."""
    current = any(name.endswith("completions/mean_length") for name in log.columns)
    return {**schedule(config, log, found), **(tempered(found) if current else {})}


def grpo_algorithm(config: Config, log: RawLog) -> str:
    """Return "gspo" where ratios are taken per sequence, "cispo" with that loss, else "grpo".

    The other losses differ from GRPO's only in how they average.
    """
    if first(config, "loss_type") == "cispo" or any(name.endswith("cispo_clip_ratio") for name in log.columns):
        return "cispo"
    return "gspo" if first(config, "importance_sampling_level") == "sequence" else "grpo"


def is_rloo(config: Config, log: RawLog) -> bool:
    """Return whether GRPO's names were logged by RLOO: by its settings, or by a KL that k3 could not have."""
    if "loss_type" in config or "normalize_advantages" in config:
        return "normalize_advantages" in config
    columns = [log.columns[name] for name in ("kl", "train/kl") if name in log.columns]
    return any(bool((column.values < K3_ROUNDING).any()) for column in columns)


GRPO = Table(
    trainer="trl-grpo",
    names=names(GRPO_NAMES),
    keys=keys(GROUPED_KEYS),
    facts={"kl_place": "loss", "kl_adaptive": False},
    derive=derive_grpo,
    distinctive=GROUPED,
    needs=2,
    choices={"reward_std": REWARD_STD},
    algorithm=grpo_algorithm,
    averages=True,
)
# The KL, summed over a completion, is taken from the reward.
RLOO = replace(
    GRPO,
    trainer="trl-rloo",
    names={**GRPO.names, "kl": Name("kl_ref", "nats/sequence", "k1")},
    keys={**GRPO.keys, "whitened": "normalize_advantages"},
    facts={"kl_place": "reward", "kl_adaptive": False},
    derive=lambda config, log, found: {**schedule(config, log, found), **tempered(found)},
    choices={},
    algorithm=lambda config, log: "rloo",
    preferred=is_rloo,
)
ASYNC_GRPO = replace(
    GRPO,
    trainer="trl-async-grpo",
    names=names(ASYNC_NAMES),
    distinctive=("training_tok/s", "forward_time_s", "train_seq_len", "weight_sync_time_s", *GROUPED),
    choices={},
)
ONLINE_DPO = Table(
    trainer="trl-online-dpo",
    names=names(ONLINE_DPO_NAMES),
    keys=keys(HUGGING_FACE_KEYS),
    derive=schedule,
    distinctive=words("""
        objective/scores_margin rewards/chosen rewards/rejected logps/chosen val/contain_eos_token
        objective/rlhf_reward
    """),
    needs=2,
    algorithm=lambda config, log: "online-dpo",
    averages=True,
)
SFT = Table(
    trainer="trl-sft",
    names=names(SFT_NAMES),
    keys=keys(HUGGING_FACE_KEYS),
    derive=schedule,
    distinctive=words("""
        mean_token_accuracy
    """),
    algorithm=lambda config, log: "sft",
    averages=True,
)
