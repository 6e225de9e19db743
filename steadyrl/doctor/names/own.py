"""steadyrl's own names, as the catalogue in ``steadyrl.metrics`` defines them, and the settings of resolved.json."""

from __future__ import annotations

from typing import Any

from steadyrl.doctor.names.settings import first, known, number, pick, product
from steadyrl.doctor.names.table import Config, Name, Table
from steadyrl.doctor.series import RawLog

TOKEN, SEQUENCE = "nats/token", "nats/sequence"

NAMES = {
    "reward/mean": Name("reward", "reward"),
    "reward/std": Name("reward_std", "reward"),
    "reward/std_within": Name("reward_std_within", "reward", "rms"),
    "reward/unscored": Name("reward_unscored", "share"),
    "reward/*": Name("reward_part/*", "reward"),
    "reward_share/*": Name("reward_share/*", "share"),
    "groups/no_signal": Name("no_signal", "share"),
    "groups/best": Name("reward_best", "reward"),
    "groups/mean_std": Name("reward_std_between", "reward"),
    "kl_ref_exact": Name("kl_ref", TOKEN, "exact"),
    "kl_ref_exact_seq": Name("kl_ref", SEQUENCE, "exact"),
    "kl_ref_k3": Name("kl_ref", TOKEN, "k3"),
    "kl_ref_k1": Name("kl_ref", TOKEN, "k1"),
    "kl_ref_k1_seq": Name("kl_ref", SEQUENCE, "k1"),
    "kl_ref_k1_seq_se": Name("kl_ref_se", SEQUENCE, "k1"),
    "kl_old_k3": Name("kl_old", TOKEN, "k3"),
    "kl_old_k1": Name("kl_old", TOKEN, "k1"),
    "kl_step_k3": Name("kl_step", TOKEN, "k3"),
    "entropy": Name("entropy", TOKEN, "exact"),
    "entropy_sampled": Name("entropy", TOKEN, "sampled"),
    "sampler_gap": Name("sampler_gap", TOKEN, "abs"),
    "audited": Name("audited", "share"),
    "clip_fraction": Name("clip_fraction", "share"),
    "clip_fraction_value": Name("clip_fraction_value", "share"),
    "loss/total": Name("loss"),
    "loss/policy": Name("loss_policy"),
    "loss/kl": Name("loss_kl"),
    "loss/nll": Name("loss_nll"),
    "loss/value": Name("loss_value"),
    "value/mean": Name("value_mean", "reward"),
    "value/explained_variance": Name("explained_variance", "", "centred"),
    "return/mean": Name("return_mean", "reward"),
    "return/std": Name("return_std", "reward"),
    "advantage/mean": Name("advantage_mean", "reward"),
    "advantage/std": Name("advantage_std", "reward"),
    "advantage/used": Name("advantage_used", "share"),
    "grad_norm": Name("grad_norm"),
    "grad_clipped": Name("grad_clipped", "share"),
    "learning_rate": Name("learning_rate"),
    "epochs": Name("epochs"),
    "updates": Name("updates"),
    "data_epoch": Name("data_epoch"),
    "algorithm/kl_coef": Name("kl_coef"),
    "autopilot/*": Name("autopilot/*"),
    "curriculum/*": Name("curriculum/*"),
    "judge/*": Name("judge/*"),
    "completion/length": Name("length", "tokens"),
    "completion/truncated": Name("truncated", "share"),
    "completion/empty": Name("empty", "share"),
    "completion/repetition": Name("repetition", "share"),
    "observation/cut": Name("observation_cut", "share"),
    "tokens/sampled": Name("tokens", "tokens"),
    "tokens/per_second": Name("tokens_per_second", "tokens/s"),
    "time/step": Name("time_step", "s"),
    "time/*": Name("time_part/*", "s"),
    "time": Name("time_logged", "s"),
}


def settings(config: Config, log: RawLog) -> dict[str, Any]:
    """Return the settings of a resolved config; see ``steadyrl.config`` and the algorithms' own sections."""
    found = pick(
        config,
        {
            **{key: f"sampling.{key}" for key in ("temperature", "top_p", "top_k", "logprobs", "max_new_tokens")},
            **{
                key: f"update.{key}"
                for key in ("learning_rate", "warmup_steps", "epochs", "minibatches", "max_grad_norm")
            },
            "samples_per_prompt": "rollout.samples_per_prompt",
            "clip": "algorithm.args.clip_high",
            "kl_coef": "algorithm.args.kl_coef",
            "kl_target": "algorithm.args.kl_target",
            "kl_horizon": "algorithm.args.kl_horizon",
            "entropy_coef": "algorithm.args.entropy_coef",
            "whitened": "algorithm.args.whiten_advantages",
            "steps": "run.steps",
            "task": "task.name",
            "model": "model.path",
        },
    )
    control, rank = first(config, "algorithm.args.kl_control"), number(config, "model.lora_rank")
    rows = product(number(config, "rollout.prompts_per_step"), number(config, "rollout.samples_per_prompt"))
    places = {"ppo": "reward", "grpo": "loss", "rlaif": "loss"}
    derived = {
        "batch_size": rows,
        "lora": None if rank is None else rank > 0,
        "kl_adaptive": None if control is None else control == "adaptive",
        "kl_target_unit": SEQUENCE if "kl_target" in found else None,
        "kl_horizon_unit": "updates" if "kl_horizon" in found else None,
        "kl_place": places.get(algorithm(config, log)),
    }
    return {**found, **known(derived)}


def algorithm(config: Config, log: RawLog) -> str:
    """Return the short name or the class's name of the configured algorithm."""
    return str(first(config, "algorithm.name") or "").rpartition(":")[2].lower()


TABLE = Table(
    trainer="steadyrl",
    names=NAMES,
    distinctive=(
        "reward/std_within",
        "reward/unscored",
        "groups/no_signal",
        "kl_ref_k1",
        "kl_ref_k1_seq",
        "kl_ref_k3",
        "kl_old_k1",
        "kl_old_k3",
        "entropy_sampled",
        "sampler_gap",
        "value/explained_variance",
        "completion/truncated",
    ),
    needs=2,
    prefixes=(),
    heldout=("heldout/",),
    settings=settings,
    algorithm=algorithm,
    formats=("steadyrl",),
)
