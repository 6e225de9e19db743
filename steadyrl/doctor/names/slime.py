"""Names of slime; its KLs are means per token.

Source: THUDM/slime, slime/backends/megatron_utils/loss.py.
"""

from __future__ import annotations

from typing import Any

from steadyrl.doctor.names.settings import first, known, number, pick, product, quotient
from steadyrl.doctor.names.table import Choice, Config, Name, Table
from steadyrl.doctor.series import RawLog

TOKEN = "nats/token"

NAMES = {
    "train/loss": Name("loss"),
    "train/pg_loss": Name("loss_policy"),
    "train/value_loss": Name("loss_value"),
    "train/entropy_loss": Name("entropy", TOKEN, "exact"),
    "train/kl_loss": Name("kl_ref", TOKEN),
    "train/ppo_kl": Name("kl_old", TOKEN, "k1"),
    "train/pg_clipfrac": Name("clip_fraction", "share"),
    "train/value_clipfrac": Name("clip_fraction_value", "share"),
    "train/train_rollout_logprob_abs_diff": Name("sampler_gap", TOKEN, "abs"),
    "train/tis": Name("importance"),
    "train/grad_norm": Name("grad_norm"),
    "train/lr-pg_0": Name("learning_rate"),
    "rollout/raw_reward": Name("reward", "reward"),
    "rollout/response_len/mean": Name("length", "tokens"),
    "rollout/response_len/max": Name("length_max", "tokens"),
    "rollout/response_len/min": Name("length_min", "tokens"),
    "rollout/truncated_ratio": Name("truncated", "share"),
    "rollout/advantages": Name("advantage_mean", "reward"),
    "rollout/returns": Name("return_mean", "reward"),
    "rollout/values": Name("value_mean", "reward"),
    "perf/step_time": Name("time_step", "s"),
    "perf/*_time": Name("time_part/*", "s"),
}
ESTIMATORS = {"k1": "k1", "k2": "k2", "k3": "k3", "low_var_kl": "k3"}
KINDS = {kind: Name("kl_ref", TOKEN, estimator) for kind, estimator in ESTIMATORS.items()}


def settings(config: Config, log: RawLog) -> dict[str, Any]:
    """Return slime's arguments as settings."""
    found = pick(
        config,
        {
            "temperature": "rollout_temperature",
            "top_p": "rollout_top_p",
            "top_k": "rollout_top_k",
            "max_new_tokens": "rollout_max_response_len",
            "learning_rate": "lr",
            "samples_per_prompt": "n_samples_per_prompt",
            "clip": "eps_clip_high|eps_clip",
            "entropy_coef": "entropy_coef",
            "max_grad_norm": "clip_grad",
            "steps": "num_rollout",
            "model": "hf_checkpoint",
        },
    )
    rows = product(number(config, "rollout_batch_size"), number(config, "n_samples_per_prompt"))
    in_loss = first(config, "use_kl_loss")
    derived = {
        "batch_size": rows,
        "minibatches": quotient(rows, number(config, "global_batch_size")),
        "kl_place": None if in_loss is None else ("loss" if in_loss else "reward"),
        "kl_coef": number(config, "kl_loss_coef" if in_loss else "kl_coef"),
    }
    return {**found, **known(derived), "kl_adaptive": False}


def algorithm(config: Config, log: RawLog) -> str:
    """Return the advantage estimator's name; without a config, "ppo" where a value loss is logged."""
    estimator = first(config, "advantage_estimator")
    if estimator is not None:
        return {"reinforce_plus_plus": "reinforce++"}.get(str(estimator), str(estimator))
    return "ppo" if "train/value_loss" in log.columns else ""


TABLE = Table(
    trainer="slime",
    names=NAMES,
    distinctive=(
        "train/pg_loss",
        "train/pg_clipfrac",
        "train/ppo_kl",
        "train/train_rollout_logprob_abs_diff",
        "train/ois",
        "train/tis",
        "train/tis_clipfrac",
        "train/opsm_clipfrac",
        "train/lr-pg_*",
        "rollout/raw_reward",
    ),
    prefixes=(),
    choices={"train/kl_loss": Choice(("kl_loss_type",), KINDS)},
    settings=settings,
    algorithm=algorithm,
)
