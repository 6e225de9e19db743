import itertools
import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from steadyrl.core.metrics import CATALOGUE
from steadyrl.doctor.names.identify import TABLES, identify
from steadyrl.doctor.names.table import Name, load
from steadyrl.doctor.series import Column, RawLog
from tests.doctor.names.vocabulary import VOCABULARY

# What each trainer logs, as its own code writes it; {a,b} stands for each of a and b.
KEYS = {
    "steadyrl": """
        reward/{mean,std,std_within,unscored,retrieval} groups/no_signal kl_ref_{k1,k1_seq,k1_seq_se,k3,exact}
        kl_old_{k1,k3} entropy entropy_sampled sampler_gap clip_fraction loss/{total,policy,value} grad_norm
        learning_rate value/{mean,explained_variance} completion/{length,truncated,empty} tokens/per_second
        time/{rollout,step} time
    """,
    "trl-grpo": """
        num_tokens step_time completions/{mean,min,max}_length completions/{mean,min,max}_terminated_length
        completions/clipped_ratio rewards/fmt/{mean,std} reward reward_std frac_reward_zero_std entropy kl
        loss grad_norm sampling/sampling_logp_difference/{mean,max}
        sampling/importance_sampling_ratio/{min,mean,max} learning_rate epoch
        clip_ratio/{low_mean,low_min,high_mean,high_max,region_mean}
    """,
    "trl-async-grpo": """
        reward reward_std frac_reward_zero_std rewards/fmt/{mean,std} completions/mean_length kl entropy ratio
        clip_ratio/{low_mean,region_mean} training_tok/s forward_time_s train_seq_len weight_sync_time_s loss
    """,
    "trl-online-dpo": """
        objective/{kl,entropy,non_score_reward,rlhf_reward,scores,scores_margin}
        rewards/{chosen,rejected,accuracies,margins} logps/{chosen,rejected} val/contain_eos_token beta loss
    """,
    "trl-dpo": """
        loss rewards/{chosen,rejected,accuracies,margins} logps/{chosen,rejected} logits/{chosen,rejected} nll_loss
        grad_norm learning_rate epoch
    """,
    "trl-reward": """
        loss accuracy margin {min,mean,max}_reward num_tokens grad_norm learning_rate epoch
    """,
    "trl-sft": """
        loss entropy mean_token_accuracy num_tokens aux_loss grad_norm learning_rate epoch
    """,
    "trl-ppo": """
        eps objective/{kl,entropy,non_score_reward,rlhf_reward,scores} policy/{approxkl,clipfrac,entropy}_avg
        loss/{policy,value}_avg val/{clipfrac_avg,ratio,ratio_var,num_eos_tokens} lr episode
    """,
    "trl-ppo-old": """
        objective/{kl,kl_coef,entropy} ppo/{mean_non_score_reward,mean_scores,std_scores,learning_rate}
        ppo/loss/{policy,value,total} ppo/policy/{entropy,approxkl,policykl,clipfrac,advantages_mean}
        ppo/returns/{mean,var} ppo/val/{vpred,error,clipfrac,mean,var,var_explained}
        tokens/{queries,responses}_len_{mean,std} time/ppo/{forward_pass,compute_rewards,optimize_step,total}
        env/reward_{mean,std}
    """,
    "verl": """
        actor/{pg_loss,entropy,kl_loss,kl_coef,ppo_kl,pg_clipfrac,pg_clipfrac_lower,grad_norm,lr,loss,reward_kl_penalty,reward_kl_penalty_coeff}
        critic/{vf_loss,vf_clipfrac,vpred_mean,grad_norm,lr,vf_explained_var}
        critic/{score,rewards,advantages,returns,values}/{mean,max,min}
        response_length/{mean,max,min,clip_ratio} response/aborted_ratio
        prompt_length/{mean,max,min,clip_ratio} timing_s/{gen,ref,update_actor,step}
        perf/{total_num_tokens,time_per_step,throughput} global_seqlen/{min,max} training/{global_step,epoch}
        training/rollout_probs_diff_{max,mean,std}
        rollout_corr/{kl,k3_kl,rollout_is_mean,rollout_is_eff_sample_size} val-core/gsm8k/acc/mean@1
    """,
    "openrlhf": """
        policy_loss entropy_loss actor_lr actor_grad_norm ppo_clip_ratio ppo_kl vllm_kl kl logprobs_diff
        reward return score group_reward_std response_clip_ratio response_length truncated total_length
        critic_loss values critic_lr rollout/{reward_mean,reward_std,response_length_mean,truncated_rate}
        timing/{make_experience,ppo_train,step_total}
    """,
    "nemo-rl": """
        loss kl_penalty probs_ratio probs_ratio_min probs_ratio_max probs_ratio_clamped token_mult_prob_error
        gen_kl_error policy_kl_error js_divergence_error sampling_importance_ratio approx_entropy
        num_valid_samples grad_norm lr global_valid_toks reward mean_prompt_length total_num_tokens
    """,
    "prime-rl": """
        loss/mean loss/nan_count entropy/all/{mean,std,max} mismatch_kl/all/{mean,max} masked_mismatch_kl
        is_masked is_masked_low optim/{lr,grad_norm} perf/throughput
        time/{step,wait_for_batch,broadcast_weights} off_policy/{mean,max} train/agg/all/solver/reward/mean
    """,
    "skyrl": """
        reward/{avg_raw_reward,avg_pass_at_8,mean_positive_reward,num_zero_variance_filtered}
        loss/{avg_kl,avg_kl_max,kl_loss_coef,avg_final_rewards,avg_raw_advantages,avg_raw_advantages_abs}
        policy/policy_entropy policy/rollout_train_logprobs_abs_diff_{mean,max} async/staleness_mean
        timing/step
    """,
    "tinker": """
        optim/{lr,kl_sample_train_v1,kl_sample_train_v2,entropy} kl_pre_post_v1 kl_pre_post_v2
        env/all/reward/total env/all/by_group/frac_{mixed,all_good,all_bad} test/env/all/reward/total
        time/total stop/length
    """,
    "slime": """
        train/{loss,pg_loss,entropy_loss,pg_clipfrac,ppo_kl,kl_loss,train_rollout_logprob_abs_diff,ois,tis,tis_clipfrac}
        train/{grad_norm,lr-pg_0} rollout/{raw_reward,response_len/mean} perf/step_time eval/aime
    """,
    "areal": """
        ppo_actor/{task_reward,no_eos_ratios,seq_len,prompt_len}/{avg,min,max} rollout/reward
        eval-rollout/reward ppo_actor/update/{importance_weight,behave_imp_weight,entropy,clip_ratio}/avg
        timeperf/rollout
    """,
    "areno": """
        train/{loss,policy_loss,total_loss,ratio_mean,ratio_std,grad_norm,lr,rollout_logprobs_mean,train_logprobs_mean}
        train/{logp_diff_mean,logp_abs_diff_mean,grad_zero_ratio}
        rollout/{rewards_mean,rewards_std,accuracy,logprobs_mean}
        rollout/{response_len_mean,num_sequences,skipped_long} time/{rollout,reward,train}
    """,
    "torchtune": """
        scores num_stop_tokens rlhf_reward kl kl_reward lr loss policy_loss value_loss clipfrac ratios
        approx_policy_kl response_lengths tokens_per_second_per_gpu_trajectory
    """,
    "trlx": """
        losses/{total,policy,value}_loss values/{mean,min,max,std,values_error,clipfrac} old_values/mean
        returns/mean policy/{approx_kl,clipfrac,sqrt_kl,kl_per_token} ratio padding_percentage
        rollout_scores/{mean,std} kl_ctl_value time/rollout_generate reward/mean
    """,
    "mlx-lm-lora": """
        train_{loss,kl,total_rewards_mean,total_rewards_std,grouped_rewards_mean,average_generated_tokens}
        train_{hit_max_tokens_ratio,clip_ratio_total,r1_int_mean} learning_rate peak_memory val_loss
    """,
}
KEYS["deepspeed-chat"] = "act_loss cri_loss unsuper_loss average_reward_score ppo_ep epoch"
KEYS["roll"] = """
    system/step system/tps actor/lr actor/pg_loss actor/kl_loss actor/total_loss actor/approxkl actor/policykl
    actor/ppo_ratio_high_clipfrac actor/ppo_ratio_clipfrac actor/ratio_mean actor_train/grad_norm critic/score/mean
    critic/rewards/mean critic/advantages/mean critic/kl tokens/response_length/mean tokens/prompt_length/mean
    time/step_total
"""
KEYS["llamafactory"] = "total_steps loss reward learning_rate epoch percentage"
OLD_KEYS = {
    "trl-grpo": [
        "completion_length kl reward reward_std rewards/fmt loss",
        "completion_length kl reward reward_std clip_ratio",
    ],
    "openrlhf": [
        "policy_loss ptx_loss critic_loss values kl reward return response_length total_length num_actions actor_lr",
    ],
    "torchtune": [
        """
            rewards successes num_stop_tokens loss policy_loss kl_loss clipfrac ratios approx_policy_kl
            response_lengths
        """,
    ],
    "verl": [
        "actor/entropy_loss actor/pg_loss actor/ppo_kl critic/score/mean critic/rewards/mean response_length/mean",
    ],
}


def expand(keys):
    """Return the keys of a text with braces."""
    found = []
    for key in keys.split():
        parts = [part.strip("{}").split(",") for part in re.split(r"(\{[^}]*\})", key)]
        found += ["".join(chosen) for chosen in itertools.product(*parts)]
    return found


def log(keys, settings=None, format="jsonl", prefix="", **values):
    """Return a log of three steps; each column holds 0.5 unless ``values`` has it."""
    steps = np.arange(3)
    names = expand(keys) if isinstance(keys, str) else keys
    columns = {prefix + name: Column(steps, np.full(3, values.get(name, 0.5))) for name in names}
    return RawLog("x", format, columns, settings or {})


def kinds(run, quantity):
    """Return (unit, estimator, source) of a quantity's series, in order."""
    return [(series.unit, series.estimator, series.source) for series in run.series.get(quantity, ())]


def only(run, quantity):
    """Return (unit, estimator) of the one series of a quantity."""
    ((unit, estimator, _),) = kinds(run, quantity)
    return unit, estimator


@pytest.mark.parametrize("trainer", KEYS)
def test_a_trainer_is_known_by_its_names(trainer):
    assert identify(log(KEYS[trainer])).trainer == trainer


@pytest.mark.parametrize(("trainer", "keys"), [(name, keys) for name, several in OLD_KEYS.items() for keys in several])
def test_a_trainer_is_known_by_its_older_names(trainer, keys):
    assert identify(log(keys)).trainer == trainer


@pytest.mark.parametrize(
    "trainer", ["trl-grpo", "trl-sft", "trl-ppo", "openrlhf", "nemo-rl", "torchtune", "trl-online-dpo"]
)
def test_a_trackers_prefix_changes_nothing(trainer):
    bare, prefixed = identify(log(KEYS[trainer])), identify(log(KEYS[trainer], prefix="train/"))
    assert prefixed.trainer == trainer
    assert {name: len(several) for name, several in prefixed.series.items()} == {
        name: len(several) for name, several in bare.series.items()
    }


def test_every_table_is_tested():
    # RLOO logs GRPO's names; it has tests of its own.
    assert {table.trainer for table in TABLES} == {*KEYS, "trl-rloo"}


@pytest.mark.parametrize(
    ("trainer", "quantity", "source", "unit", "estimator"),
    [
        ("trl-ppo-old", "kl_ref", "objective/kl", "nats/sequence", "k1"),
        ("trl-ppo", "kl_ref", "objective/kl", "nats/sequence", "k1"),
        ("trl-online-dpo", "kl_ref", "objective/kl", "nats/sequence", "k1"),
        ("trl-grpo", "kl_ref", "kl", "nats/token", "k3"),
        ("verl", "kl_ref", "actor/kl_loss", "nats/token", ""),
        ("verl", "kl_ref", "actor/reward_kl_penalty", "nats/token", "k1"),
        ("verl", "kl_old", "actor/ppo_kl", "nats/token", "k1"),
        ("trl-ppo-old", "kl_old", "ppo/policy/approxkl", "nats/token", "k2"),
        ("trl-ppo-old", "kl_old", "ppo/policy/policykl", "nats/token", "k1"),
        ("trl-ppo", "kl_old", "policy/approxkl_avg", "nats/token", "k2 and padding"),
        ("openrlhf", "kl_old", "ppo_kl", "nats/token", "k1"),
        ("openrlhf", "kl_ref", "kl", "nats/token", "k1"),
        ("openrlhf", "kl_sampler", "vllm_kl", "nats/token", "k1"),
        ("trlx", "kl_ref", "policy/sqrt_kl", "sqrt nats/sequence", "k3"),
        ("verl", "kl_sampler", "rollout_corr/kl", "nats/token", "k1"),
        ("verl", "kl_sampler", "rollout_corr/k3_kl", "nats/token", "k3"),
        ("nemo-rl", "kl_sampler", "gen_kl_error", "nats/token", "k3"),
        ("nemo-rl", "kl_ref", "kl_penalty", "nats/token", "k3"),
        ("prime-rl", "kl_sampler", "mismatch_kl/all/mean", "nats/token", "k3"),
        ("tinker", "kl_sampler", "optim/kl_sample_train_v1", "nats/token", "k1"),
        ("torchtune", "kl_ref", "kl", "nats/sequence", "k1"),
        ("slime", "kl_ref", "train/kl_loss", "nats/token", ""),
    ],
)
def test_each_kl_has_its_unit_and_estimator(trainer, quantity, source, unit, estimator):
    assert (unit, estimator, source) in kinds(identify(log(KEYS[trainer])), quantity)


def test_kl_to_the_old_policy_or_the_sampler_is_never_kl_to_the_reference():
    others = {
        "actor/ppo_kl",
        "rollout_corr/kl",
        "rollout_corr/k3_kl",
        "ppo_kl",
        "vllm_kl",
        "ppo/policy/approxkl",
        "gen_kl_error",
    }
    for keys in KEYS.values():
        assert not others & {series.source for series in identify(log(keys)).series.get("kl_ref", ())}


@pytest.mark.parametrize(
    ("kind", "estimator"), [("low_var_kl", "k3"), ("kl", "k1"), ("mse", "k2"), ("abs", "abs"), ("low_var_kl+", "k3")]
)
def test_verls_loss_is_of_the_estimator_that_was_set(kind, estimator):
    run = identify(log("actor/kl_loss actor/pg_loss", {"actor_rollout_ref.actor.kl_loss_type": kind}))
    assert only(run, "kl_ref") == ("nats/token", estimator)


@pytest.mark.parametrize(("kind", "estimator"), [("kl", "k1"), ("abs", "abs"), ("mse", "k2"), ("full", "exact")])
@pytest.mark.parametrize("wrapper", ["", "trl_ppo_trainer_config."])
def test_old_trls_kl_is_of_the_penalty_that_was_set(kind, estimator, wrapper):
    run = identify(log(KEYS["trl-ppo-old"], {f"{wrapper}kl_penalty": kind}))
    assert only(run, "kl_ref") == ("nats/sequence", estimator)


def test_group_or_batch_decides_what_trls_reward_std_is():
    assert "reward_std_within" in identify(log(KEYS["trl-grpo"], {"scale_rewards": "group"})).series
    assert only(identify(log(KEYS["trl-grpo"], {"scale_rewards": "batch"})), "reward_std") == ("reward", "")
    with_groups = identify(log(f"{KEYS['trl-grpo']} group_reward_std"))
    assert kinds(with_groups, "reward_std_within") == [("", "", "group_reward_std")]
    assert only(with_groups, "reward_std") == ("reward", "")


def test_rloo_is_told_from_grpo_by_its_settings_or_by_a_kl_below_0():
    by_settings = identify(log(KEYS["trl-grpo"], {"normalize_advantages": False, "beta": 0.05}))
    by_kl = identify(log(KEYS["trl-grpo"], prefix="train/", kl=-0.4))
    assert [run.trainer for run in (by_settings, by_kl)] == ["trl-rloo", "trl-rloo"]
    assert only(by_kl, "kl_ref") == ("nats/sequence", "k1")
    # Rounding below 0 makes no RLOO of a GRPO run, nor does a bug where the settings say GRPO.
    assert identify(log(KEYS["trl-grpo"], kl=-1e-4)).trainer == "trl-grpo"
    assert identify(log(KEYS["trl-grpo"], {"loss_type": "grpo"}, kl=-0.4)).trainer == "trl-grpo"


def test_a_list_of_rewards_beside_common_names_makes_nobodys_log_trls():
    own = "rewards/mean rewards/std rewards/min completion_length kl"
    run = identify(log(own))
    assert run.trainer == "unknown" and run.series["kl_ref"][0].unit == ""
    assert run.series["reward"][0].source == "rewards/mean"
    assert identify(log(f"{own} rewards/format")).trainer == "trl-grpo"


def test_the_most_exact_estimator_comes_first_and_both_units_are_kept():
    run = identify(log(KEYS["steadyrl"]))
    assert [(unit, estimator) for unit, estimator, _ in kinds(run, "kl_ref")] == [
        ("nats/token", "exact"),
        ("nats/token", "k3"),
        ("nats/token", "k1"),
        ("nats/sequence", "k1"),
    ]
    assert [estimator for _, estimator, _ in kinds(run, "entropy")] == ["exact", "sampled"]


def test_every_metric_of_the_catalogue_is_placed():
    names = [
        metric.name.replace("*", "kl_coef" if metric.name.startswith("algorithm/") else "x") for metric in CATALOGUE
    ]
    run = identify(log(names, format="steadyrl"))
    assert run.unknown == ()
    assert kinds(run, "reward_part/x") == [("reward", "", "reward/x")]
    assert kinds(run, "heldout/x")[0][2] == "heldout/x"


def test_units_of_the_catalogue_are_kept():
    run = identify(
        log([m.name for m in CATALOGUE if m.name.startswith(("kl_", "entropy", "completion"))], format="steadyrl")
    )
    units = {series.source: series.unit for several in run.series.values() for series in several}
    assert units == {m.name: m.unit for m in CATALOGUE if m.name.startswith(("kl_", "entropy", "completion"))}


def test_trls_padded_means_are_marked_and_noted():
    run = identify(log(KEYS["trl-ppo"]))
    assert only(run, "ratio_mean") == ("", "all and padding")
    assert run.get("entropy", "nats/token", "exact") is None
    assert {estimator for _, estimator, _ in kinds(run, "entropy")} == {"exact and padding", "sampled and padding"}
    assert any("padded" in note for note in run.notes)
    assert not identify(log(KEYS["trl-ppo-old"])).notes


def test_reward_functions_are_parts_under_old_and_new_names():
    new = identify(
        log("rewards/len/mean rewards/len/std reward_std reward", prefix="train/", **{"rewards/len/mean": 0.25})
    )
    old = identify(log("rewards/len completion_length reward_std"))
    assert new.with_prefix("reward_part/")["len"].values[0] == 0.25
    assert (*new.with_prefix("reward_part_std/"), *old.with_prefix("reward_part/")) == ("len", "len")


def test_held_out_measurements_keep_their_names_and_their_unit():
    run = identify(log("reward reward_std frac_reward_zero_std eval_reward eval_kl eval_runtime eval/rewards/len/mean"))
    assert only(run, "heldout/reward") == ("reward", "")
    assert only(run, "heldout/kl") == ("nats/token", "k3")
    assert "heldout/rewards/len/mean" in run.series
    assert len(run.series["reward"]) == 1
    assert run.unknown == ("eval_runtime",)


@pytest.mark.parametrize(
    ("trainer", "source", "quantity"),
    [
        ("verl", "val-core/gsm8k/acc/mean@1", "heldout/gsm8k/acc/mean@1"),
        ("tinker", "test/env/all/reward/total", "heldout/env/all/reward/total"),
        ("slime", "eval/aime", "heldout/aime"),
        ("trlx", "reward/mean", "heldout/mean"),
        ("mlx-lm-lora", "val_loss", "heldout/loss"),
        ("areal", "eval-rollout/reward", "heldout/reward"),
    ],
)
def test_each_trainers_evaluation_is_held_out(trainer, source, quantity):
    assert kinds(identify(log(KEYS[trainer])), quantity)[0][2] == source


@pytest.mark.parametrize(
    ("trainer", "source", "quantity", "logged", "value"),
    [
        ("trl-ppo-old", "ppo/returns/var", "return_std", 4.0, 2.0),
        ("trl-ppo-old", "ppo/val/var", "value_std", 0.25, 0.5),
        ("tinker", "env/all/by_group/frac_mixed", "no_signal", 0.75, 0.25),
        ("areno", "rollout/logprobs_mean", "entropy", -1.5, 1.5),
        ("trlx", "policy/sqrt_kl", "kl_ref", 3.0, 3.0),
    ],
)
def test_logged_numbers_become_the_quantity(trainer, source, quantity, logged, value):
    run = identify(log(KEYS[trainer], **{source: logged}))
    values = {series.source: series.values for series in run.series[quantity]}
    assert values[source].tolist() == [value] * 3


def test_a_variance_below_0_is_no_number():
    run = identify(log(KEYS["trl-ppo-old"], **{"ppo/returns/var": -1.0}))
    assert np.isnan(run.series["return_std"][0].values).all()


@pytest.mark.parametrize(
    ("trainer", "estimator"), [("steadyrl", "centred"), ("verl", "centred"), ("trl-ppo-old", "uncentred")]
)
def test_explained_variance_says_whether_an_offset_counts(trainer, estimator):
    assert only(identify(log(KEYS[trainer])), "explained_variance") == ("", estimator)


def test_differences_of_probabilities_are_not_taken_for_differences_of_logs():
    assert "sampler_gap" not in identify(log(KEYS["verl"])).series
    assert "sampler_gap" not in identify(log(KEYS["nemo-rl"])).series
    assert only(identify(log(KEYS["trl-grpo"])), "sampler_gap") == ("nats/token", "abs")


def test_scores_before_the_penalty_are_the_reward():
    run = identify(log(KEYS["verl"]))
    assert (kinds(run, "reward")[0][2], kinds(run, "reward_with_kl")[0][2]) == (
        "critic/score/mean",
        "critic/rewards/mean",
    )


def test_names_that_cannot_be_placed_are_kept_as_unknown():
    run = identify(log("kl reward reward_std completion_length my_metric train/other loss"))
    assert run.unknown == ("my_metric", "train/other")


def test_common_spellings_are_understood_without_units_where_the_trainer_is_unknown():
    run = identify(
        log(["Reward", "KL", "Grad Norm", "learning-rate", "train/entropy", "eval_reward", "colour", "approx_kl"])
    )
    assert (run.trainer, run.unknown) == ("unknown", ("colour",))
    assert {"reward", "kl_ref", "grad_norm", "learning_rate", "entropy", "heldout/reward", "kl_old"} == set(run.series)
    assert {series.unit for several in run.series.values() for series in several} == {""}
    assert "unknown" in run.notes[0]


def test_one_name_of_a_trainer_does_not_switch_the_common_ones_off():
    run = identify(
        log("env/all/reward/total skyrl.ai/grad_norm box/validation_mean_reward mean_entropy critic/grad_norm x/y")
    )
    assert run.trainer == "tinker"
    assert kinds(run, "reward") == [("reward", "", "env/all/reward/total")]
    assert kinds(run, "grad_norm") == [("", "", "skyrl.ai/grad_norm")]
    assert kinds(run, "entropy") == [("", "", "mean_entropy")]
    assert kinds(run, "heldout/box/validation_mean_reward") == [("", "", "box/validation_mean_reward")]
    assert run.unknown == ("critic/grad_norm", "x/y")


def test_a_trainers_own_meaning_counts_more_than_the_common_one():
    run = identify(log("kl reward reward_std completions/mean_length grad_norm mean_reward"))
    assert kinds(run, "kl_ref") == [("nats/token", "k3", "kl")]
    assert [source for _, _, source in kinds(run, "reward")] == ["reward", "mean_reward"]


def test_a_last_part_that_several_names_share_tells_nothing():
    run = identify(log("a/grad_norm b/grad_norm a/entropy"))
    assert (set(run.series), run.unknown) == ({"entropy"}, ("a/grad_norm", "b/grad_norm"))


def test_words_are_names_as_well():
    run = identify(log(["Total rewards mean", "Grouped rewards mean", "KL", "Learning Rate", "r1 int mean"]))
    assert run.trainer == "mlx-lm-lora"
    assert {"reward", "kl_ref", "learning_rate", "reward_part/r1_int"} <= set(run.series)


def test_a_rate_in_units_of_its_own_is_put_right():
    run = identify(log(["actor/pg_loss", "actor/lr(1e-4)"], **{"actor/lr(1e-4)": 0.01}))
    assert run.series["learning_rate"][0].values == pytest.approx([1e-6] * 3)


def test_the_trainers_own_key_of_each_setting_is_known():
    given = {"actor_rollout_ref.actor.clip_ratio": 0.2, "algorithm.use_kl_in_reward": False}
    verl = identify(log(KEYS["verl"], given)).keys
    assert verl["clip"] == "actor_rollout_ref.actor.clip_ratio"
    assert verl["kl_coef"] == "actor_rollout_ref.actor.kl_loss_coef"
    in_reward = identify(log("actor/pg_loss actor/reward_kl_penalty")).keys
    assert in_reward["kl_coef"] == "algorithm.kl_ctrl.kl_coef"
    assert identify(log(KEYS["trl-grpo"])).keys["samples_per_prompt"] == "num_generations"
    assert identify(log(KEYS["trl-ppo-old"])).keys["kl_coef"] == "init_kl_coef"


def test_a_few_common_names_make_no_trainer():
    assert identify(log("completion_length kl loss")).trainer == "unknown"
    assert identify(log("ratios loss kl reward")).trainer == "unknown"


def test_the_format_tells_the_trainer_before_the_names_do():
    assert identify(log("reward loss", format="steadyrl")).trainer == "steadyrl"
    assert identify(log("custom actor/kl_loss", format="verl_console")).trainer == "verl"
    assert identify(log("custom", format="verl_console")).trainer == "unknown"  # others print so, too


def test_notes_path_and_gaps_of_the_log_are_kept():
    column = Column(np.array([3, 9]), np.array([np.nan, 1.0]))
    run = identify(RawLog("here", "csv", {"reward": column}, notes=("torn",)))
    assert (run.path, run.notes[0], run.series["reward"][0].steps.tolist()) == ("here", "torn", [3, 9])
    assert np.isnan(run.series["reward"][0].values[0])


@pytest.mark.parametrize(
    ("keys", "settings", "algorithm"),
    [
        (KEYS["verl"], {"algorithm.adv_estimator": "gae"}, "ppo"),
        (KEYS["verl"], {"algorithm.adv_estimator": "grpo"}, "grpo"),
        (KEYS["verl"], {"actor_rollout_ref.actor.policy_loss.loss_mode": "gspo"}, "gspo"),
        (KEYS["verl"], {}, "ppo"),
        ("actor/pg_loss actor/ppo_kl", {}, ""),
        (KEYS["trl-grpo"], {}, "grpo"),
        (KEYS["trl-grpo"], {"importance_sampling_level": "sequence"}, "gspo"),
        (KEYS["trl-grpo"] + " cispo_clip_ratio", {}, "cispo"),
        (KEYS["trl-ppo"], {}, "ppo"),
        (KEYS["trl-ppo"].replace("{policy,value}_avg", "policy_avg"), {}, "rloo"),
        (KEYS["trl-ppo-old"], {}, "ppo"),
        (KEYS["openrlhf"], {"advantage_estimator": "group_norm"}, "grpo"),
        (KEYS["openrlhf"], {}, "ppo"),
        (KEYS["steadyrl"], {"algorithm.name": "grpo"}, "grpo"),
        (KEYS["steadyrl"], {"algorithm.name": "mine.algorithms:Rloo"}, "rloo"),
        (KEYS["steadyrl"], {}, ""),
        (KEYS["torchtune"], {}, "ppo"),
        (OLD_KEYS["torchtune"][0], {}, "grpo"),
        (KEYS["trl-sft"], {}, "sft"),
        (KEYS["trl-dpo"], {}, "dpo"),
        (KEYS["trl-dpo"] + " kl", {}, "kto"),
        (KEYS["trl-dpo"] + " log_odds_ratio log_odds_chosen", {}, "orpo"),
        (KEYS["trl-reward"], {}, "reward-model"),
    ],
)
def test_the_algorithm_is_derived_where_something_tells(keys, settings, algorithm):
    assert identify(log(keys, settings)).algorithm == algorithm


def test_every_quantity_of_every_table_is_in_the_vocabulary():
    for table in TABLES:
        for theirs, name in table.meanings():
            family = name.quantity.partition("/")[0] + "/"
            assert {name.quantity, family} & VOCABULARY, (table.trainer, theirs, name)
            assert theirs.count("*") <= 1


def test_the_meanings_of_a_table_have_units_and_what_settings_decide():
    assert ("objective/kl", Name("kl_ref", "nats/sequence", "k1")) in load("trl-ppo-old").meanings()
    with_setting = "actor/kl_loss with actor_rollout_ref.actor.kl_loss_type=mse"
    assert (with_setting, Name("kl_ref", "nats/token", "k2")) in load("verl").meanings()
    assert ("kl", Name("kl_ref")) in load("unknown").meanings()


ANY_NAME = st.one_of(
    st.sampled_from(sorted({name for keys in KEYS.values() for name in expand(keys)})),
    st.text(min_size=1, max_size=12),
    st.builds(
        "{}{}".format,
        st.sampled_from(["train/", "eval_", "eval/", "val-core/", "test/", "rewards/"]),
        st.text(max_size=8),
    ),
)


@given(st.lists(ANY_NAME, max_size=30, unique=True), st.sampled_from(["jsonl", "steadyrl", "verl_file"]))
@example(["losses/total_loss", "reward/mean"], "jsonl")  # a held-out reward that stands for the training reward as well
@example(["rollout/logprobs_mean", "rollout/rewards_mean"], "jsonl")  # which would be an entropy below 0
@example(["critic/rewards/max", "train_seq_len"], "jsonl")  # what stands before all names is left out of them
def test_no_column_is_lost_and_only_a_held_out_one_is_placed_twice(names, format):
    run = identify(log(names, format=format))
    placed = {name: [series.source for series in several] for name, several in run.series.items()}
    heldout = {source for name, sources in placed.items() if name.startswith("heldout/") for source in sources}
    elsewhere = [source for name, sources in placed.items() if not name.startswith("heldout/") for source in sources]
    once = [source for source in elsewhere if source not in heldout]
    # What cannot be what its name says, such as an entropy below 0, is left out with a note.
    noted = [name for name in names if any(f"'{name}' is " in note for note in run.notes)]
    assert sorted(map(last_part, [*heldout, *once, *run.unknown, *noted])) == sorted(map(last_part, names))


def last_part(name):
    return name.rpartition("/")[2]


def test_a_held_out_reward_stands_for_the_training_reward_that_is_not_logged():
    run = identify(log(["eval/reward", "entropy"]))
    assert run.needed("reward").source == run.needed("heldout/reward").source == "eval/reward"
    assert any("eval/reward stands for it" in note for note in run.notes)
    both = identify(log(["eval/reward", "reward"]))
    assert both.needed("reward").source == "reward"


def test_what_stands_before_all_names_is_left_out_where_only_then_the_trainer_is_recognised():
    run = identify(log(KEYS["trl-grpo"], prefix="my_run/metrics/"))
    assert run.trainer == "trl-grpo"
    assert set(run.series) == set(identify(log(KEYS["trl-grpo"])).series)
    assert identify(log("reward/style reward/answer")).unknown == identify(log("reward/style reward/answer")).unknown


def test_names_with_underscores_for_slashes_are_the_trainers():
    run = identify(log("reward reward_std frac_reward_zero_std completions_mean_length completions_clipped_ratio"))
    assert kinds(run, "length") == [("tokens", "", "completions_mean_length")]
    assert kinds(run, "truncated") == [("share", "", "completions_clipped_ratio")]


def test_a_guess_has_the_unit_in_which_the_trainer_logs_the_quantity():
    run = identify(log("reward reward_std frac_reward_zero_std ent policy_kld"))
    assert kinds(run, "entropy")[0][::2] == ("nats/token", "ent")
    assert kinds(run, "kl_ref")[0][::2] == ("nats/token", "policy_kld")


def test_a_rate_of_0_is_left_out_where_no_number_has_digits_enough_to_show_one():
    coarse = identify(log("reward kl lr", reward=0.25, kl=0.01, lr=0.0))
    assert "learning_rate" not in coarse.series and "printed as 0" in coarse.notes[-1]
    assert "learning_rate" in identify(log("reward kl lr", reward=0.25, kl=0.012345, lr=0.0)).series


def test_what_is_called_an_entropy_and_lies_below_0_is_none():
    """Sums of log-probs are logged as such."""
    run = identify(log(["mean_reward", "entropy"], entropy=-15.0))
    assert run.get("entropy") is None and any("'entropy' is below 0" in note for note in run.notes)
    both = identify(log(["mean_reward", "entropy", "policy/entropy"], **{"policy/entropy": -3.0}))
    assert kinds(both, "entropy") and all("policy" not in source for _, _, source in kinds(both, "entropy"))
