"""Names of OpenRLHF, old and new; trackers see them under ``train/``.

``kl`` is to the reference, ``ppo_kl`` to the policy before the update, ``vllm_kl`` between sampler and trainer.

Source: OpenRLHF/OpenRLHF, openrlhf/trainer/ppo_trainer.py, openrlhf/trainer/ray/ppo_actor.py, openrlhf/models/loss.py.
"""

from __future__ import annotations

from typing import Any

from steadyrl.doctor.names.settings import first, known, number, pick, product, quotient, tempered
from steadyrl.doctor.names.table import Choice, Config, Name, Table
from steadyrl.doctor.series import RawLog

TOKEN = "nats/token"

NAMES = {
    "policy_loss": Name("loss_policy"),
    "critic_loss": Name("loss_value"),
    "entropy_loss": Name("entropy", TOKEN, "exact"),  # logged as the mean entropy, not as what it adds to the loss
    "kl": Name("kl_ref", TOKEN, "k1"),
    "ppo_kl": Name("kl_old", TOKEN, "k1"),
    "vllm_kl": Name("kl_sampler", TOKEN, "k1"),
    "ppo_clip_ratio": Name("clip_fraction", "share"),
    "reward": Name("reward", "reward"),
    "rollout/reward_mean": Name("reward", "reward"),
    "rollout/reward_std": Name("reward_std", "reward"),
    "group_reward_std": Name("reward_std_within", "reward", "mean"),
    "score": Name("reward_part/score", "reward"),
    "return": Name("return_mean", "reward"),
    "values": Name("value_mean", "reward"),
    "response_length": Name("length", "tokens"),
    "rollout/response_length_mean": Name("length", "tokens"),
    "truncated": Name("truncated", "share"),
    "response_clip_ratio": Name("truncated", "share"),
    "rollout/truncated_rate": Name("truncated", "share"),
    "actor_grad_norm": Name("grad_norm"),
    "critic_grad_norm": Name("grad_norm_value"),
    "actor_lr": Name("learning_rate"),
    "critic_lr": Name("learning_rate_value"),
    "timing/step_total": Name("time_step", "s"),
    "timing/*": Name("time_part/*", "s"),
}
KINDS = {kind: Name("kl_ref", TOKEN, kind) for kind in ("k1", "k2", "k3")}
ALGORITHMS = {"gae": "ppo", "reinforce": "reinforce++", "group_norm": "grpo", "dr_grpo": "grpo"}


def settings(config: Config, log: RawLog) -> dict[str, Any]:
    """Return OpenRLHF's settings: its controller, where it adapts, compares the mean per token and counts samples."""
    found = pick(
        config,
        {
            "temperature": "temperature",
            "top_p": "top_p",
            "max_new_tokens": "generate_max_len|max_new_tokens",
            "learning_rate": "actor_learning_rate",
            "epochs": "max_epochs",
            "samples_per_prompt": "n_samples_per_prompt",
            "clip": "eps_clip",
            "kl_coef": "init_kl_coef",
            "kl_target": "kl_target",
            "kl_horizon": "kl_horizon",
            "entropy_coef": "entropy_loss_coef",
            "max_grad_norm": "max_norm",
            "model": "pretrain",
            "task": "prompt_data",
        },
    )
    rows = product(number(config, "rollout_batch_size"), number(config, "n_samples_per_prompt"))
    rank, in_loss = number(config, "lora_rank"), first(config, "use_kl_loss")
    derived = {
        "batch_size": rows,
        "minibatches": quotient(rows, number(config, "train_batch_size")),
        "lora": None if rank is None else rank > 0,
        "kl_place": None if in_loss is None else ("loss" if in_loss else "reward"),
        "kl_adaptive": "kl_target" in found if "kl_target" in config else None,
        "kl_target_unit": TOKEN,
        "kl_horizon_unit": "samples",
    }
    return {**found, **known(derived), **tempered(found)}


def algorithm(config: Config, log: RawLog) -> str:
    """Return the algorithm of the advantage estimator; without a config, "ppo" where a critic is trained."""
    estimator = first(config, "advantage_estimator")
    if estimator is not None:
        return ALGORITHMS.get(str(estimator), str(estimator))
    return "ppo" if any(name.endswith("critic_loss") for name in log.columns) else ""


TABLE = Table(
    trainer="openrlhf",
    names=NAMES,
    distinctive=(
        "actor_lr",
        "actor_grad_norm",
        "critic_lr",
        "critic_grad_norm",
        "ppo_clip_ratio",
        "vllm_kl",
        "group_reward_std",
        "response_clip_ratio",
        "ptx_loss",
        "num_actions",
        "total_length",
        "rollout/response_length_mean",
        "timing/make_experience",
        "dynamic_filtering_pass_rate",
    ),
    choices={"kl": Choice(("kl_estimator",), KINDS)},
    settings=settings,
    algorithm=algorithm,
)
