"""Common spellings: what can be told from a name alone, whoever wrote it; of the unit it tells nothing.

They hold for a log of an unknown trainer, and after every trainer's own table for what that does not name.
"""

from __future__ import annotations

import re

from steadyrl.doctor.names.table import Name, Table, keys, names, spell

TABLE = Table(
    trainer="unknown",
    names=names("""
        reward reward/mean reward_mean mean_reward rewards rewards/mean avg_reward average_reward score scores = reward
        score/mean mean_score average_reward_score total_reward reward_avg train_reward episode_reward = reward
        reward_std reward/std std_reward rewards/std = reward_std
        {reward_min|reward_max} {rewards/min|rewards/max} {min_reward|max_reward} = reward_{min|max}
        group_reward_std reward_std_within = reward_std_within
        kl kl/mean kl_mean mean_kl kl_div kl_divergence kl_ref kl_loss kl_penalty = kl_ref
        kl_{k3|k1} kl_ref_{k3|k1} = kl_ref, , {k3|k1}
        exact_kl kl_exact = kl_ref, , exact
        approx_kl approxkl kl_old ppo_kl policy_kl = kl_old
        kl_coef kl_coeff kl_beta beta = kl_coef
        entropy entropy/mean entropy_mean mean_entropy policy_entropy = entropy
        loss loss/total total_loss loss/mean train_loss training_loss = loss
        policy_loss loss/policy pg_loss actor_loss loss_pg reinforce_loss act_loss = loss_policy
        value_loss loss/value vf_loss critic_loss cri_loss = loss_value
        explained_variance explained_var = explained_variance
        grad_norm gradient_norm grad_norm/mean = grad_norm
        lr learning_rate = learning_rate
        clip_fraction clipfrac clip_frac clip_ratio pg_clipfrac = clip_fraction
        ratio ratio_mean ratio/mean = ratio_mean
        advantage advantage_mean advantages_mean advantage/mean advantages/mean mean_advantage = advantage_mean
        advantage_std advantages_std advantage/std advantages/std = advantage_std
        advantages/{min|max} = advantage_{min|max}
        value_mean values values/mean = value_mean
        returns return_mean returns/mean = return_mean
        length mean_length completion_length response_length response_length/mean completion/length = length
        avg_length average_length mean_response_length avg_gen_tokens mean_generation_length = length
        {min|max}_gen_tokens = length_{min|max}
        truncated truncated_ratio truncated_rate clipped_ratio completion/truncated = truncated
        no_signal frac_reward_zero_std zero_std_ratio zero_variance_fraction zvf = no_signal
        {accuracy|acc|format_rate} = reward_part/{accuracy|accuracy|format}
        tokens_per_second tokens/sec = tokens_per_second
        step_time time_per_step time/step total_step_time = time_step
        epoch = data_epoch
    """),
    keys=keys("""
        temperature top_p top_k max_new_tokens batch_size max_grad_norm kl_coef = *
        learning_rate = learning_rate|lr
        optimizer = optimizer|optim
        samples_per_prompt = num_generations|group_size|n_samples_per_prompt|group|G
        steps = max_steps|total_steps|steps
    """),
    distinctive=(),
    prefixes=("train/", "training/", "train_", "metrics/", "losses/", "charts/", "rollout/", "avg_", "mean_"),
    heldout=("eval/", "eval_", "val/", "val_", "validation/", "validation_", "test/", "heldout/", "dev/", "dev_"),
)
# Whose metric it is, where a part of the name before the last says so: of another model, or of another time.
NOT_THE_POLICY = re.compile(r"(^|[/._])(critic|value|vf|reward_model|rm|ref|teacher|draft|disc|time|timing|perf)")


def suffix(logged: str) -> Name | None:
    """Return what the last part of a name with slashes tells, as in "trainer.ai/grad_norm"; None if it tells nothing.

    A part of a reward has no place of its own in the name, so a last part that says "mean" alone tells nothing.
    """
    before, _, last = spell(logged).rpartition("/")
    if not before or NOT_THE_POLICY.search(before):
        return None
    return TABLE.names.get(last)
