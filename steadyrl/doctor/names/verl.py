"""Names of verl; its KLs are means per token, ``critic/score`` is before the KL penalty and ``critic/rewards`` after.

Source: verl-project/verl, verl/trainer/ppo/{metric_utils,ray_trainer,core_algos,rollout_corr_helper}.py.
"""

from __future__ import annotations

from typing import Any

from steadyrl.doctor.names.settings import first, known, number, pick, product, quotient, tempered
from steadyrl.doctor.names.table import Choice, Config, Name, Table
from steadyrl.doctor.series import RawLog

TOKEN = "nats/token"
ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"

NAMES = {
    "actor/loss": Name("loss"),
    "actor/pg_loss": Name("loss_policy"),
    "actor/entropy": Name("entropy", TOKEN, "exact"),
    "actor/entropy_loss": Name("entropy", TOKEN, "exact"),  # how older versions call it; the sign is the same
    "actor/kl_loss": Name("kl_ref", TOKEN),
    "actor/kl_coef": Name("kl_coef"),
    "actor/reward_kl_penalty": Name("kl_ref", TOKEN, "k1"),
    "actor/reward_kl_penalty_coeff": Name("kl_coef"),
    "actor/ppo_kl": Name("kl_old", TOKEN, "k1"),
    "actor/pg_clipfrac": Name("clip_fraction", "share"),
    "actor/grad_norm": Name("grad_norm"),
    "actor/lr": Name("learning_rate"),
    "critic/vf_loss": Name("loss_value"),
    "critic/vf_clipfrac": Name("clip_fraction_value", "share"),
    "critic/vf_explained_var": Name("explained_variance", "", "centred"),
    "critic/vpred_mean": Name("value_mean", "reward"),
    "critic/grad_norm": Name("grad_norm_value"),
    "critic/lr": Name("learning_rate_value"),
    "critic/score/mean": Name("reward", "reward"),
    "critic/score/max": Name("reward_max", "reward"),
    "critic/score/min": Name("reward_min", "reward"),
    "critic/rewards/mean": Name("reward_with_kl", "reward"),
    "critic/advantages/mean": Name("advantage_mean", "reward"),
    "critic/advantages/max": Name("advantage_max", "reward"),
    "critic/advantages/min": Name("advantage_min", "reward"),
    "critic/returns/mean": Name("return_mean", "reward"),
    "critic/returns/max": Name("return_max", "reward"),
    "critic/returns/min": Name("return_min", "reward"),
    "critic/values/mean": Name("value_mean", "reward"),
    "critic/values/max": Name("value_max", "reward"),
    "critic/values/min": Name("value_min", "reward"),
    "response_length/mean": Name("length", "tokens"),
    "response_length/max": Name("length_max", "tokens"),
    "response_length/min": Name("length_min", "tokens"),
    "response_length/clip_ratio": Name("truncated", "share"),
    "response/aborted_ratio": Name("empty", "share"),
    "prompt_length/mean": Name("length_prompt", "tokens"),
    "rollout_corr/kl": Name("kl_sampler", TOKEN, "k1"),
    "rollout_corr/k3_kl": Name("kl_sampler", TOKEN, "k3"),
    "rollout_corr/rollout_is_mean": Name("importance"),
    "rollout_corr/rollout_is_max": Name("importance_max"),
    "rollout_corr/rollout_is_min": Name("importance_min"),
    "rollout_corr/rollout_is_eff_sample_size": Name("importance_ess", "share"),
    "training/rollout_probs_diff_mean": Name("sampler_gap_probability", "probability", "abs"),
    "training/off_policy/trajectory_staleness/mean": Name("staleness", "updates"),
    "training/epoch": Name("data_epoch"),
    "perf/throughput": Name("tokens_per_second", "tokens/s/GPU"),
    "perf/time_per_step": Name("time_step", "s"),
    "timing_s/step": Name("time_step", "s"),
    "timing_s/*": Name("time_part/*", "s"),
}
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
KINDS = {
    f"{kind}{plus}": Name("kl_ref", TOKEN, estimator) for kind, estimator in ESTIMATORS.items() for plus in ("", "+")
}
ALGORITHMS = {"gae": "ppo", "reinforce_plus_plus": "reinforce++", "reinforce_plus_plus_baseline": "reinforce++"}


def settings(config: Config, log: RawLog) -> dict[str, Any]:
    """Return verl's settings.

    Facts: the controller of the KL in the reward compares the mean per token and counts samples; GAE's advantages are
    whitened; logits are divided by the temperature.
    """
    found = pick(
        config,
        {
            "temperature": f"{ROLLOUT}.temperature",
            "top_p": f"{ROLLOUT}.top_p",
            "top_k": f"{ROLLOUT}.top_k",
            "max_new_tokens": f"{ROLLOUT}.response_length|data.max_response_length",
            "learning_rate": f"{ACTOR}.optim.lr",
            "epochs": f"{ACTOR}.ppo_epochs",
            "samples_per_prompt": f"{ROLLOUT}.n",
            "clip": f"{ACTOR}.clip_ratio_high|{ACTOR}.clip_ratio",
            "entropy_coef": f"{ACTOR}.entropy_coeff",
            "max_grad_norm": f"{ACTOR}.grad_clip|{ACTOR}.optim.clip_grad",
            "optimizer": f"{ACTOR}.optim.optimizer",
            "steps": "trainer.total_training_steps",
            "model": "actor_rollout_ref.model.path",
            "task": "data.train_files",
        },
    )
    prompts, warmup = number(config, "data.train_batch_size"), number(config, f"{ACTOR}.optim.lr_warmup_steps")
    rank = number(config, "actor_rollout_ref.model.lora_rank")
    derived = {
        "batch_size": product(prompts, number(config, f"{ROLLOUT}.n")),
        "minibatches": quotient(prompts, number(config, f"{ACTOR}.ppo_mini_batch_size")),
        "warmup_steps": warmup if warmup is not None and warmup >= 0 else None,  # -1 leaves it to a ratio
        "lora": None if rank is None else rank > 0,
        "whitened": True if algorithm(config, log) == "ppo" else None,
    }
    return {**found, **known(derived), **tempered(found), **_penalty(config, log)}


def _penalty(config: Config, log: RawLog) -> dict[str, Any]:
    """Return where the KL stands and what it costs; a log without a config shows the place by its metrics."""
    in_reward = first(config, "algorithm.use_kl_in_reward")
    in_loss = first(config, f"{ACTOR}.use_kl_loss")
    if in_reward or (in_reward is None and "actor/reward_kl_penalty" in log.columns):
        control = "algorithm.kl_ctrl"
        kind = first(config, f"{control}.type")
        found = pick(
            config,
            {"kl_coef": f"{control}.kl_coef", "kl_target": f"{control}.target_kl", "kl_horizon": f"{control}.horizon"},
        )
        adaptive = {} if kind is None else {"kl_adaptive": kind == "adaptive"}
        return {"kl_place": "reward", "kl_target_unit": TOKEN, "kl_horizon_unit": "samples", **found, **adaptive}
    if in_loss or (in_loss is None and "actor/kl_loss" in log.columns):
        return {"kl_place": "loss", "kl_adaptive": False, **pick(config, {"kl_coef": f"{ACTOR}.kl_loss_coef"})}
    return {}


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
    names=NAMES,
    distinctive=(
        "actor/pg_loss",
        "actor/pg_clipfrac",
        "actor/pg_clipfrac_lower",
        "actor/ppo_kl",
        "actor/reward_kl_penalty",
        "critic/score/mean",
        "critic/rewards/mean",
        "critic/vf_explained_var",
        "response_length/clip_ratio",
        "prompt_length/clip_ratio",
        "timing_s/*",
        "timing_per_token_ms/*",
        "global_seqlen/*",
        "rollout_corr/*",
        "perf/total_num_tokens",
    ),
    prefixes=(),
    heldout=("val-core/", "val-aux/", "val/"),
    choices={
        "actor/kl_loss": Choice((f"{ACTOR}.kl_loss_type",), KINDS),
        "actor/reward_kl_penalty": Choice(("algorithm.kl_penalty",), KINDS),
    },
    settings=settings,
    algorithm=algorithm,
    formats=("verl_file", "verl_console"),
)
