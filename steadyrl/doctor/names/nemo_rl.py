"""Names of NeMo RL; trackers see them under ``train/`` and ``validation/``.

``kl_penalty`` is logged with its coefficient divided out, so it is the KL itself.

Source: NVIDIA-NeMo/RL, nemo_rl/algorithms/loss/loss_functions.py, nemo_rl/algorithms/{grpo,ppo}.py.
"""

from __future__ import annotations

from typing import Any

from steadyrl.doctor.names.settings import known, number, pick, product, quotient
from steadyrl.doctor.names.table import Choice, Config, Name, Table
from steadyrl.doctor.series import RawLog

TOKEN = "nats/token"

NAMES = {
    "loss": Name("loss"),
    "reward": Name("reward", "reward"),
    "kl_penalty": Name("kl_ref", TOKEN, "k3"),
    "gen_kl_error": Name("kl_sampler", TOKEN, "k3"),
    "policy_kl_error": Name("kl_sampler", TOKEN, "k3 reversed"),
    "js_divergence_error": Name("kl_sampler", TOKEN, "js"),
    "token_mult_prob_error": Name("sampler_gap_factor", "", "abs"),
    "sampling_importance_ratio": Name("importance"),
    "approx_entropy": Name("entropy", TOKEN, "sampled"),
    "probs_ratio": Name("ratio_mean"),
    "probs_ratio_min": Name("ratio_min"),
    "probs_ratio_max": Name("ratio_max"),
    "grad_norm": Name("grad_norm"),
    "lr": Name("learning_rate"),
    "mean_prompt_length": Name("length_prompt", "tokens"),
    "mean_gen_tokens_per_sample": Name("length", "tokens"),
    "critic/loss": Name("loss_value"),
    "critic/grad_norm": Name("grad_norm_value"),
    # Only mean squares enter it, so a constant offset of the values counts against them.
    "critic/explained_var": Name("explained_variance", "", "uncentred"),
    "critic/vf_clipfrac": Name("clip_fraction_value", "share"),
    "critic/returns_mean": Name("return_mean", "reward"),
    "critic/values_mean": Name("value_mean", "reward"),
    "critic/values_min": Name("value_min", "reward"),
    "critic/values_max": Name("value_max", "reward"),
    "critic/residual_sq_mean": Name("value_error", "reward^2"),
}
KINDS = {kind: Name("kl_ref", TOKEN, kind) for kind in ("k1", "k2", "k3")}


def settings(config: Config, log: RawLog) -> dict[str, Any]:
    """Return NeMo RL's settings."""
    found = pick(
        config,
        {
            "temperature": "policy.generation.temperature",
            "top_p": "policy.generation.top_p",
            "top_k": "policy.generation.top_k",
            "max_new_tokens": "policy.generation.max_new_tokens",
            "learning_rate": "policy.optimizer.kwargs.lr",
            "samples_per_prompt": "grpo.num_generations_per_prompt",
            "clip": "loss_fn.ratio_clip_max",
            "kl_coef": "loss_fn.reference_policy_kl_penalty",
            "max_grad_norm": "policy.max_grad_norm",
            "steps": "grpo.max_num_steps",
            "model": "policy.model_name",
        },
    )
    rows = product(number(config, "grpo.num_prompts_per_step"), number(config, "grpo.num_generations_per_prompt"))
    minibatches = quotient(rows, number(config, "policy.train_global_batch_size"))
    return {**found, "kl_adaptive": False, **known({"batch_size": rows, "minibatches": minibatches})}


TABLE = Table(
    trainer="nemo-rl",
    names=NAMES,
    distinctive=(
        "token_mult_prob_error",
        "gen_kl_error",
        "policy_kl_error",
        "js_divergence_error",
        "probs_ratio",
        "probs_ratio_clamped",
        "sampling_importance_ratio",
        "global_valid_toks",
        "global_valid_seqs",
        "critic/residual_sq_mean",
    ),
    heldout=("validation/", "val/"),
    choices={"kl_penalty": Choice(("loss_fn.reference_policy_kl_type",), KINDS)},
    settings=settings,
    algorithm=lambda config, log: "ppo" if any(name.endswith("critic/loss") for name in log.columns) else "grpo",
)
