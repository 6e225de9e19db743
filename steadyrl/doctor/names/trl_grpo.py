"""Names of TRL's trainers with groups or without rewards: GRPO, asynchronous GRPO, RLOO, OnlineDPO and SFT.

Unsloth runs these trainers and logs the same names. ``kl`` is not one thing: GRPO logs k3 as a mean per token, RLOO k1
summed over a completion.

Source: huggingface/trl, trl/trainer/{grpo,rloo,sft}_trainer.py, from v0.14 on.
"""

from __future__ import annotations

from typing import Any

from steadyrl.doctor.names.settings import first, known, number, pick, tempered
from steadyrl.doctor.names.table import Choice, Config, Name, Table
from steadyrl.doctor.series import RawLog

TOKEN, SEQUENCE = "nats/token", "nats/sequence"
# k3 is never negative but for the rounding of bfloat16; below this it was not k3.
K3_ROUNDING = -0.01

HUGGING_FACE = {
    "loss": Name("loss"),
    "grad_norm": Name("grad_norm"),
    "learning_rate": Name("learning_rate"),
    "epoch": Name("data_epoch"),
}
GRPO_NAMES = {
    **HUGGING_FACE,
    "reward": Name("reward", "reward"),
    "reward_std": Name("reward_std_within", "reward", "mean"),
    "rewards/*/mean": Name("reward_part/*", "reward"),
    "rewards/*/std": Name("reward_part_std/*", "reward"),
    "rewards/*": Name("reward_part/*", "reward"),  # until v0.16
    "frac_reward_zero_std": Name("no_signal", "share"),
    "kl": Name("kl_ref", TOKEN, "k3"),
    "entropy": Name("entropy", TOKEN, "exact"),
    "entropy_sampled": Name("entropy", TOKEN, "sampled"),  # not TRL's own: integrations/trl.py measures it
    "entropy_coef": Name("entropy_coef"),
    "policy_loss": Name("loss_policy"),
    "clip_ratio": Name("clip_fraction", "share"),  # v0.16, and with Liger kernels
    "clip_ratio/region_mean": Name("clip_fraction", "share"),
    "clip_ratio/low_mean": Name("clip_fraction_low", "share"),
    "clip_ratio/high_mean": Name("clip_fraction_high", "share"),
    "cispo_clip_ratio": Name("clip_fraction", "share"),
    "sampling/sampling_logp_difference/mean": Name("sampler_gap", TOKEN, "abs"),
    "sampling/sampling_logp_difference/max": Name("sampler_gap_max", TOKEN, "abs"),
    "sampling/importance_sampling_ratio/mean": Name("importance"),
    "sampling/importance_sampling_ratio/min": Name("importance_min"),
    "sampling/importance_sampling_ratio/max": Name("importance_max"),
    "completions/mean_length": Name("length", "tokens"),
    "completions/min_length": Name("length_min", "tokens"),
    "completions/max_length": Name("length_max", "tokens"),
    "completions/mean_terminated_length": Name("length_ended", "tokens"),
    "completions/clipped_ratio": Name("truncated", "share"),
    "completion_length": Name("length", "tokens"),  # until v0.16
    "step_time": Name("time_step", "s"),
}
ASYNC_NAMES = {
    **GRPO_NAMES,
    "ratio": Name("ratio_mean"),
    "training_tok/s": Name("tokens_per_second", "tokens/s"),
    "forward_time_s": Name("time_part/forward", "s"),
    "weight_sync_time_s": Name("time_part/weight_sync", "s"),
}
ONLINE_DPO_NAMES = {
    **HUGGING_FACE,
    "objective/kl": Name("kl_ref", SEQUENCE, "k1"),
    "objective/entropy": Name("entropy", SEQUENCE, "sampled"),
    "objective/non_score_reward": Name("reward_kl", "reward/sequence"),
    "objective/rlhf_reward": Name("reward_with_kl", "reward"),
    "objective/scores": Name("reward", "reward"),
}
SFT_NAMES = {
    **HUGGING_FACE,
    "entropy": Name("entropy", TOKEN, "exact"),
    "mean_token_accuracy": Name("token_accuracy", "share"),
}
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
)
# With one standard deviation for the whole batch, reward_std is that one.
REWARD_STD = Choice(("scale_rewards",), {"batch": Name("reward_std", "reward")})


def hugging_face(config: Config) -> dict[str, Any]:
    """Return the settings that every trainer of Hugging Face's takes."""
    found = pick(
        config,
        {
            "learning_rate": "learning_rate",
            "max_grad_norm": "max_grad_norm",
            "optimizer": "optim",
            "vocabulary": "vocab_size",
            "dtype": "dtype|torch_dtype",
            "model": "model_name_or_path|_name_or_path",
        },
    )
    warmup, steps = number(config, "warmup_steps"), number(config, "max_steps")
    if (warmup and warmup < 1) or (not warmup and number(config, "warmup_ratio")):
        warmup = None  # a share of the steps, not a number of them
    return {**found, **known({"warmup_steps": warmup, "steps": steps if steps and steps > 0 else None})}


def sampling(config: Config) -> dict[str, Any]:
    """Return how completions were drawn."""
    keys = {key: key for key in ("temperature", "top_p", "top_k")}
    return pick(config, {**keys, "max_new_tokens": "max_completion_length|max_new_tokens|response_length"})


def grouped(config: Config) -> dict[str, Any]:
    """Return the settings that GRPO and RLOO share."""
    found = pick(
        config,
        {
            "epochs": "num_iterations",
            "samples_per_prompt": "num_generations",
            "batch_size": "generation_batch_size",
            "clip": "epsilon_high|epsilon",
            "kl_coef": "beta",
            "entropy_coef": "entropy_coef",
        },
    )
    return {**hugging_face(config), **sampling(config), **found, "kl_adaptive": False}


def grpo_settings(config: Config, log: RawLog) -> dict[str, Any]:
    """Return GRPO's settings: the KL stands in the loss, its coefficient is fixed."""
    found = {**grouped(config), "kl_place": "loss"}
    # Logits are divided by the temperature since v0.16; these names came with v0.17.
    current = any(name.endswith("completions/mean_length") for name in log.columns)
    return {**found, **(tempered(found) if current else {})}


def rloo_settings(config: Config, log: RawLog) -> dict[str, Any]:
    """Return RLOO's settings: the KL, summed over a completion, is taken from the reward."""
    found = {**grouped(config), **pick(config, {"whitened": "normalize_advantages"}), "kl_place": "reward"}
    return {**found, **tempered(found)}


def plain_settings(config: Config, log: RawLog) -> dict[str, Any]:
    """Return the settings of SFT and OnlineDPO."""
    return {**hugging_face(config), **sampling(config)}


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
    averages=True,
    names=GRPO_NAMES,
    distinctive=GROUPED,
    needs=2,
    choices={"reward_std": REWARD_STD},
    settings=grpo_settings,
    algorithm=grpo_algorithm,
)
RLOO = Table(
    trainer="trl-rloo",
    averages=True,
    names={**GRPO_NAMES, "kl": Name("kl_ref", SEQUENCE, "k1")},
    distinctive=GROUPED,
    needs=2,
    settings=rloo_settings,
    algorithm=lambda config, log: "rloo",
    preferred=is_rloo,
)
ASYNC_GRPO = Table(
    trainer="trl-async-grpo",
    averages=True,
    names=ASYNC_NAMES,
    distinctive=("training_tok/s", "forward_time_s", "train_seq_len", "weight_sync_time_s", *GROUPED),
    needs=2,
    settings=grpo_settings,
    algorithm=grpo_algorithm,
)
ONLINE_DPO = Table(
    trainer="trl-online-dpo",
    averages=True,
    names=ONLINE_DPO_NAMES,
    distinctive=(
        "objective/scores_margin",
        "rewards/chosen",
        "rewards/rejected",
        "logps/chosen",
        "val/contain_eos_token",
        "objective/rlhf_reward",
    ),
    needs=2,
    settings=plain_settings,
    algorithm=lambda config, log: "online-dpo",
)
SFT = Table(
    trainer="trl-sft",
    averages=True,
    names=SFT_NAMES,
    distinctive=("mean_token_accuracy",),
    settings=plain_settings,
    algorithm=lambda config, log: "sft",
)
