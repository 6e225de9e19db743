"""Names of trlX; its KLs are logged as square roots and stay so: nats would have to be made of them by squaring.

Log-probs are of the raw logits; advantages are whitened; the KL is taken from the reward. The controller, where there
is a target, compares the sum over a completion and counts samples.

Source: CarperAI/trlx, trlx/trainer/accelerate_ppo_trainer.py, trlx/models/modeling_ppo.py.
"""

from __future__ import annotations

from steadyrl.doctor.names.table import Table, keys, names

TABLE = Table(
    trainer="trlx",
    names=names("""
        policy/sqrt_kl = kl_ref, sqrt nats/sequence, k3
        policy/kl_per_token = kl_ref, sqrt nats/token, k3
        kl_ctl_value = kl_coef
        policy/approx_kl = kl_old, nats/token, k3
        policy/clipfrac = clip_fraction, share
        ratio = ratio_mean
        losses/{total|policy|value}_loss = loss{|_policy|_value}
        values/{mean|std|min|max} = value_{mean|std|min|max}, reward
        values/values_error = value_error, reward^2
        values/clipfrac = clip_fraction_value, share
        returns/{mean|std|min|max} = return_{mean|std|min|max}, reward
        rollout_scores/{mean|std} = reward{|_std}, reward
        time/rollout_{generate|score} = time_part/{rollout|reward}, s
    """),
    keys=keys("""
        temperature top_p top_k max_new_tokens = method.gen_kwargs.*
        learning_rate = optimizer.kwargs.lr
        epochs = method.ppo_epochs
        batch_size = method.num_rollouts
        clip = method.cliprange
        kl_coef = method.init_kl_coef
        kl_target = method.target
        kl_horizon = method.horizon
        steps = train.total_steps
        model = model.model_path
    """),
    facts={
        "logprobs": "raw",
        "whitened": True,
        "kl_place": "reward",
        "kl_target_unit": "nats/sequence",
        "kl_horizon_unit": "samples",
    },
    derive=lambda config, log, found: {"kl_adaptive": "kl_target" in found if "method.target" in config else None},
    distinctive=(
        "policy/sqrt_kl",
        "policy/kl_per_token",
        "kl_ctl_value",
        "losses/total_loss",
        "values/values_error",
        "old_values/*",
        "padding_percentage",
        "rollout_scores/*",
    ),
    prefixes=(),
    heldout=("reward/", "metrics/"),  # trlX logs both in its evaluation only
    algorithm=lambda config, log: "ppo",
)
