"""Common spellings, for logs of a trainer that is not known: what can be told from a name is told, units are not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steadyrl.doctor.names.settings import pick
from steadyrl.doctor.names.table import Config, Name, Table
from steadyrl.doctor.series import RawLog

SPELLINGS: Mapping[str, Name] = {
    "reward reward/mean reward_mean mean_reward rewards rewards/mean avg_reward score scores score/mean": Name(
        "reward"
    ),
    "reward_std reward/std std_reward": Name("reward_std"),
    "kl kl/mean kl_mean mean_kl kl_div kl_divergence kl_ref kl_loss kl_penalty": Name("kl_ref"),
    "kl_k3 kl_ref_k3": Name("kl_ref", estimator="k3"),
    "kl_k1 kl_ref_k1": Name("kl_ref", estimator="k1"),
    "approx_kl approxkl kl_old ppo_kl policy_kl": Name("kl_old"),
    "kl_coef kl_coeff kl_beta beta": Name("kl_coef"),
    "entropy entropy/mean entropy_mean mean_entropy policy_entropy": Name("entropy"),
    "loss loss/total total_loss loss/mean": Name("loss"),
    "policy_loss loss/policy pg_loss actor_loss": Name("loss_policy"),
    "value_loss loss/value vf_loss critic_loss": Name("loss_value"),
    "explained_variance explained_var": Name("explained_variance"),
    "grad_norm gradient_norm grad_norm/mean": Name("grad_norm"),
    "lr learning_rate": Name("learning_rate"),
    "clip_fraction clipfrac clip_frac clip_ratio pg_clipfrac": Name("clip_fraction"),
    "ratio ratio_mean ratio/mean": Name("ratio_mean"),
    "advantage advantage_mean advantages_mean advantage/mean advantages/mean": Name("advantage_mean"),
    "advantage_std advantages_std advantage/std advantages/std": Name("advantage_std"),
    "value_mean values values/mean": Name("value_mean"),
    "returns return_mean returns/mean": Name("return_mean"),
    "length mean_length completion_length response_length response_length/mean completion/length": Name("length"),
    "truncated truncated_ratio clipped_ratio completion/truncated": Name("truncated"),
    "no_signal frac_reward_zero_std": Name("no_signal"),
    "tokens_per_second": Name("tokens_per_second"),
    "step_time time_per_step time/step": Name("time_step"),
    "epoch": Name("data_epoch"),
}


def spell(name: str) -> str:
    """Return a name in lower case with underscores, as most are written."""
    return name.lower().replace(" ", "_").replace("-", "_")


def settings(config: Config, log: RawLog) -> dict[str, Any]:
    """Return settings under the names that most trainers share."""
    keys = (
        "temperature",
        "top_p",
        "top_k",
        "max_new_tokens",
        "learning_rate",
        "batch_size",
        "max_grad_norm",
        "kl_coef",
    )
    others = {"learning_rate": "learning_rate|lr", "optimizer": "optimizer|optim"}
    return pick(config, {**{key: key for key in keys}, **others})


TABLE = Table(
    trainer="unknown",
    names={spelling: name for spellings, name in SPELLINGS.items() for spelling in spellings.split()},
    distinctive=(),
    spell=spell,
    prefixes=("train/", "training/", "train_", "metrics/", "losses/", "charts/", "rollout/"),
    heldout=("eval/", "eval_", "val/", "val_", "validation/", "test/", "heldout/"),
    settings=settings,
    algorithm=lambda config, log: "",
)
