"""Names of SkyRL; its KLs are means per token.

Source: NovaSky-AI/SkyRL, skyrl/train/trainer.py and skyrl/backends/skyrl_train/utils/ppo_utils.py.
"""

from __future__ import annotations

from typing import Any

from steadyrl.doctor.names.settings import first, known, number, pick, product, quotient, tempered
from steadyrl.doctor.names.table import Choice, Config, Name, Table
from steadyrl.doctor.series import RawLog

TOKEN = "nats/token"
ALGORITHM = "trainer.algorithm"
SAMPLING = "generator.sampling_params"

NAMES = {
    "reward/avg_raw_reward": Name("reward", "reward"),
    "reward/avg_pass_at_*": Name("reward_part/pass_at_*", "reward"),
    "loss/avg_final_rewards": Name("reward_with_kl", "reward"),
    "loss/avg_kl": Name("kl_ref", TOKEN),
    "policy/policy_kl": Name("kl_ref", TOKEN),
    "loss/kl_loss_coef": Name("kl_coef"),
    "loss/avg_raw_advantages": Name("advantage_mean", "reward"),
    "policy/policy_loss": Name("loss_policy"),
    "policy/policy_entropy": Name("entropy", TOKEN, "exact"),
    "policy/policy_lr": Name("learning_rate"),
    "policy/grad_norm": Name("grad_norm"),
    "policy/loss_metrics/clip_ratio": Name("clip_fraction", "share"),
    "policy/response_length": Name("length", "tokens"),
    "policy/rollout_train_logprobs_abs_diff_mean": Name("sampler_gap", TOKEN, "abs"),
    "policy/rollout_train_logprobs_abs_diff_max": Name("sampler_gap_max", TOKEN, "abs"),
    "critic/critic_loss": Name("loss_value"),
    "critic/values_mean": Name("value_mean", "reward"),
    "critic/values_clipfrac": Name("clip_fraction_value", "share"),
    "critic/grad_norm": Name("grad_norm_value"),
    "generate/avg_num_tokens": Name("length", "tokens"),
    "generate/min_num_tokens": Name("length_min", "tokens"),
    "generate/max_num_tokens": Name("length_max", "tokens"),
    "async/staleness_mean": Name("staleness", "updates"),
    "async/staleness_max": Name("staleness_max", "updates"),
    "timing/step": Name("time_step", "s"),
    "timing/*": Name("time_part/*", "s"),
}
KINDS = {kind: Name("kl_ref", TOKEN, kind) for kind in ("k1", "abs", "k2", "k3")}
ALGORITHMS = {"gae": "ppo"}


def settings(config: Config, log: RawLog) -> dict[str, Any]:
    """Return SkyRL's settings: the controller of the KL in the reward compares the mean per token, counting samples."""
    found = pick(
        config,
        {
            "temperature": f"{SAMPLING}.temperature",
            "top_p": f"{SAMPLING}.top_p",
            "top_k": f"{SAMPLING}.top_k",
            "max_new_tokens": f"{SAMPLING}.max_generate_length",
            "learning_rate": "trainer.policy.optimizer_config.lr",
            "max_grad_norm": "trainer.policy.optimizer_config.max_grad_norm",
            "epochs": "trainer.update_epochs_per_batch",
            "samples_per_prompt": "generator.n_samples_per_prompt",
            "clip": f"{ALGORITHM}.eps_clip_high",
            "kl_coef": f"{ALGORITHM}.kl_loss_coef",
            "kl_target": f"{ALGORITHM}.kl_ctrl.kl_target",
            "kl_horizon": f"{ALGORITHM}.kl_ctrl.horizon",
            "model": "trainer.policy.model.path",
        },
    )
    kind = first(config, f"{ALGORITHM}.kl_ctrl.type")
    in_reward, in_loss = first(config, f"{ALGORITHM}.use_kl_in_reward"), first(config, f"{ALGORITHM}.use_kl_loss")
    prompts = number(config, "trainer.train_batch_size")
    derived = {
        "batch_size": product(prompts, number(config, "generator.n_samples_per_prompt")),
        "minibatches": quotient(prompts, number(config, "trainer.policy_mini_batch_size")),
        "kl_adaptive": None if kind is None else bool(in_reward) and kind == "adaptive",
        "kl_place": "reward" if in_reward else ("loss" if in_loss else None),
        "kl_target_unit": TOKEN,
        "kl_horizon_unit": "samples",
    }
    return {**found, **known(derived), **tempered(found)}


def algorithm(config: Config, log: RawLog) -> str:
    """Return the algorithm of the advantage estimator; without a config, "ppo" where a critic is trained."""
    estimator = first(config, f"{ALGORITHM}.advantage_estimator")
    if estimator is not None:
        return ALGORITHMS.get(str(estimator), str(estimator))
    return "ppo" if "critic/critic_loss" in log.columns else ""


CHOICE = Choice((f"{ALGORITHM}.kl_estimator_type",), KINDS)
TABLE = Table(
    trainer="skyrl",
    names=NAMES,
    distinctive=(
        "reward/avg_raw_reward",
        "reward/avg_pass_at_*",
        "reward/mean_positive_reward",
        "reward/num_zero_variance_filtered",
        "loss/avg_final_rewards",
        "loss/avg_kl",
        "loss/avg_raw_advantages_abs",
        "loss/kl_loss_coef",
        "policy/policy_entropy",
        "policy/policy_kl",
        "policy/rollout_train_logprobs_abs_diff_*",
        "generate/avg_num_tokens",
        "async/staleness_*",
    ),
    prefixes=(),
    choices={"loss/avg_kl": CHOICE, "policy/policy_kl": CHOICE},
    settings=settings,
    algorithm=algorithm,
)
