"""Trainers of which names and keys are all there is to say: what follows from several settings fits in a line.

Sources: inclusionAI/AReaL, areal/trainer/ppo/actor.py; inclusionAI/AReno v0.0.8, its docs and dashboard;
deepspeedai/DeepSpeedExamples, applications/DeepSpeed-Chat/training/step3_rlhf_finetuning/main.py;
hiyouga/LLaMA-Factory, src/llamafactory/train/{callbacks,ppo/trainer}.py;
Goekdeniz-Guelmez/mlx-lm-lora, mlx_lm_lora/trainer/grpo_trainer.py;
PrimeIntellect-ai/prime-rl, src/prime_rl/trainer/rl/loss.py;
thinking-machines-lab/tinker-cookbook, tinker_cookbook/rl/{train,metrics}.py;
pytorch/torchtune, recipes/{ppo_full_finetune_single_device,dev/grpo_full_finetune_distributed}.py;
CarperAI/trlx, trlx/{trainer/accelerate_ppo_trainer,models/modeling_ppo}.py.
"""

from __future__ import annotations

from steadyrl.doctor.names.settings import number, product, quotient
from steadyrl.doctor.names.table import Table, keys, names, words

# Its ratios are two: of the trained to the proximal policy, and of the proximal one to the sampler.
AREAL = Table(
    trainer="areal",
    names=names("""
        ppo_actor/task_reward/avg rollout/reward = reward, reward
        ppo_actor/task_reward/{min|max} = reward_{min|max}, reward
        ppo_actor/no_eos_ratios/avg = truncated, share
        ppo_actor/prompt_len/avg = length_prompt, tokens
        ppo_actor/update/importance_weight/{avg|min|max} = ratio_{mean|min|max}
        ppo_actor/update/behave_imp_weight/{avg|min|max} = importance{|_min|_max}
        ppo_actor/update/entropy/avg = entropy, nats/token, exact
        ppo_actor/update/clip_ratio/avg = clip_fraction, share
        ppo_actor/update/grad_norm = grad_norm
        ppo_actor/update/lr = learning_rate
        timeperf/* = time_part/*, s
    """),
    keys=keys("""
        temperature top_p top_k max_new_tokens = gconfig.*
        samples_per_prompt = gconfig.n_samples
        learning_rate = actor.optimizer.lr
        max_grad_norm = actor.optimizer.gradient_clipping
        minibatches = actor.ppo_n_minibatches
        clip = actor.eps_clip_higher|actor.eps_clip
        kl_coef = actor.kl_ctl
        model = actor.path
    """),
    distinctive=words("""
        ppo_actor/* ppo_actor/task_reward/avg ppo_actor/no_eos_ratios/avg ppo_actor/update/importance_weight/avg
        ppo_actor/update/behave_imp_weight/avg timeperf/*
    """),
    prefixes=(),
    heldout=("eval-rollout/", "eval/"),
)
ARENO = Table(
    trainer="areno",
    # The mean log-prob of sampled tokens is minus the sampled entropy.
    names=names("""
        train/{loss|policy_loss|ratio_mean|grad_norm|lr} = {loss|loss_policy|ratio_mean|grad_norm|learning_rate}
        train/logp_abs_diff_mean = sampler_gap, nats/token, abs
        rollout/rewards_{mean|std|max|min} = reward{|_std|_max|_min}, reward
        rollout/accuracy = reward_part/accuracy, reward
        rollout/advantages_{mean|std} = advantage_{mean|std}, reward
        rollout/logprobs_mean = entropy, nats/token, sampled, negate
        rollout/{response|prompt}_len_mean = length{|_prompt}, tokens
        time/* = time_part/*, s
    """),
    distinctive=words("""
        train/logp_abs_diff_mean train/logp_diff_mean train/rollout_logprobs_mean train/train_logprobs_mean
        train/grad_zero_ratio rollout/rewards_mean rollout/response_len_mean rollout/skipped_long
    """),
    prefixes=(),
)
# Its step 3 is PPO with a critic and a KL in the reward.
DEEPSPEED_CHAT = Table(
    trainer="deepspeed-chat",
    names=names("""
        average_reward_score = reward, reward
        act_loss actor_loss = loss_policy
        cri_loss critic_loss = loss_value
        unsuper_loss pretrain_loss = loss_nll
        epoch = data_epoch
    """),
    keys=keys("""
        learning_rate = actor_learning_rate
        epochs = ppo_epochs
        samples_per_prompt = num_return_sequences
        max_new_tokens = max_answer_seq_len
        model = actor_model_name_or_path
    """),
    facts={"kl_place": "reward", "kl_adaptive": False},
    distinctive=words("""
        act_loss cri_loss unsuper_loss average_reward_score
    """),
    needs=2,
    algorithm=lambda config, log: "ppo",
)
# Its PPO is TRL's old one, of which it logs loss and reward.
LLAMAFACTORY = Table(
    trainer="llamafactory",
    names=names("""
        loss = loss
        reward = reward, reward
        learning_rate lr = learning_rate
        epoch = data_epoch
    """),
    keys=keys("""
        temperature top_p top_k max_new_tokens learning_rate max_grad_norm = *
        epochs = ppo_epochs
        kl_target = ppo_target
        steps = max_steps
        model = model_name_or_path
    """),
    distinctive=words("""
        total_steps percentage predict_loss current_steps
    """),
    needs=2,
    averages=True,
    algorithm=lambda config, log: "ppo" if "reward" in log.columns else "",
)
# Its callbacks put "train_" before the names, and it prints them as words. With a coefficient above 0 and ratios per
# token its ``kl`` is r^2 - 1 - log r, r = p/ref: no estimate of the KL, and below 0 where r is a little below 1.
MLX_LM_LORA = Table(
    trainer="mlx-lm-lora",
    names=names("""
        loss = loss
        total_rewards_{mean|std} = reward{|_std}, reward
        grouped_rewards_std = reward_std_within, reward, mean
        kl = kl_ref, nats/token, biased
        {average|min|max}_generated_tokens = length{|_min|_max}, tokens
        avg_length = length, tokens
        hit_max_tokens_ratio = truncated, share
        clip_ratio_total clip_fraction = clip_fraction, share
        clip_ratio_{low|high} = clip_fraction_{low|high}, share
        learning_rate = learning_rate
        tokens_per_second tokens/sec = tokens_per_second, tokens/s
        *_{mean|std} = reward_part{|_std}/*, reward
    """),
    keys=keys("""
        temperature top_p top_k learning_rate model = *
        max_new_tokens = max_completion_length
        samples_per_prompt = group_size
        clip = epsilon_high|epsilon
        kl_coef = beta
        steps = iters
    """),
    # Its log-probs are of the raw logits.
    facts={"logprobs": "raw", "kl_place": "loss", "kl_adaptive": False},
    distinctive=words("""
        total_rewards_mean grouped_rewards_mean average_generated_tokens hit_max_tokens_ratio clip_ratio_total
    """),
    prefixes=("train/", "train_"),
    heldout=("val_", "val/"),
    algorithm=lambda config, log: "grpo",
)
# Its KL is between trainer and sampler; there is no reference policy unless one asks for it.
PRIME_RL = Table(
    trainer="prime-rl",
    names=names("""
        loss/mean = loss
        entropy/all/mean entropy/mean = entropy, nats/token, exact
        mismatch_kl/all/mean mismatch_kl/mean = kl_sampler, nats/token, k3
        is_masked is_masked/mean = clip_fraction, share
        is_masked_{low|high} = clip_fraction_{low|high}, share
        optim/lr = learning_rate
        optim/grad_norm = grad_norm
        perf/throughput = tokens_per_second, tokens/s
        off_policy/{mean|max} = staleness{|_max}, updates
        time/step = time_step, s
        time/* = time_part/*, s
        reward/mean train/agg/all/*/reward/mean = reward, reward
        train/agg/all/*/is_truncated/mean = truncated, share
        train/agg/all/*/has_error/mean = reward_unscored, share
        train/*/reward/mean = reward_part/*, reward
    """),
    keys=keys("""
        temperature = sampling.temperature
        max_new_tokens = sampling.max_tokens
        learning_rate = optim.lr
        max_grad_norm = optim.max_norm
        samples_per_prompt = rollouts_per_example
        batch_size = batch_size
        steps = max_steps
        model = model.name
    """),
    distinctive=words("""
        mismatch_kl/all/mean mismatch_kl/mean entropy/all/mean masked_mismatch_kl unmasked_mismatch_kl
        is_masked_low kl_ent_ratio/mean off_policy/dropped time/wait_for_policy time/wait_for_batch
        time/broadcast_weights dispatcher/*
    """),
    prefixes=(),
)
# "v1" and "v2" of a KL are k1 and k2.
TINKER = Table(
    trainer="tinker",
    names=names("""
        env/all/reward/total = reward, reward
        env/all/reward/* = reward_part/*, reward
        env/all/by_group/frac_mixed = no_signal, share, , complement
        env/all/{ac|ob}_tokens_per_turn = length{|_prompt}, tokens
        optim/lr = learning_rate
        optim/entropy = entropy, nats/token, sampled
        optim/kl_sample_train_{v1|v2} = kl_sampler, nats/token, {k1|k2}
        kl_pre_post_{v1|v2} = kl_old, nats/token, {k1|k2}
        time/total = time_step, s
        time/* = time_part/*, s
    """),
    keys=keys("""
        temperature learning_rate = *
        max_new_tokens = max_tokens
        kl_coef = kl_penalty_coef
        minibatches = num_substeps
        model = model_name
        samples_per_prompt = dataset_builder.group_size|group_size
    """),
    facts={"lora": True, "kl_adaptive": False},
    derive=lambda config, log, found: {
        "batch_size": product(
            number(config, "dataset_builder.batch_size|groups_per_batch"), found.get("samples_per_prompt")
        )
    },
    distinctive=words("""
        optim/kl_sample_train_v1 optim/kl_sample_train_v2 kl_pre_post_v1 kl_pre_post_v2 env/all/reward/total
        env/all/by_group/frac_mixed env/all/by_group/frac_all_good env/all/by_group/frac_all_bad
    """),
    prefixes=(),
    heldout=("test/",),
)
# PPO's ``kl`` is summed over a completion, GRPO's ``kl_loss`` is per token.
TORCHTUNE = Table(
    trainer="torchtune",
    names=names("""
        scores rewards = reward, reward
        successes = reward_part/successes, share
        rlhf_reward = reward_with_kl, reward
        kl = kl_ref, nats/sequence, k1
        kl_loss = kl_ref, nats/token, k3
        kl_reward = reward_kl, reward/sequence
        approx_policy_kl = kl_old, nats/token, k2
        lr = learning_rate
        loss = loss
        {policy|value}_loss = loss_{policy|value}
        clipfrac = clip_fraction, share
        ratios = ratio_mean
        response_lengths = length, tokens
        tokens_per_second_per_gpu_trajectory = tokens_per_second, tokens/s/GPU
    """),
    keys=keys("""
        temperature top_k batch_size = *
        max_new_tokens = max_generated_tokens
        learning_rate = optimizer.lr
        epochs = ppo_epochs
        samples_per_prompt = grpo_samples
        clip = loss.epsilon
        kl_coef = kl_coeff|loss.kl_coeff
        steps = num_steps
    """),
    facts={"kl_adaptive": False},
    derive=lambda config, log, found: {
        "minibatches": quotient(number(config, "batch_size"), number(config, "ppo_batch_size"))
    },
    distinctive=words("""
        approx_policy_kl num_stop_tokens response_lengths ratios rlhf_reward kl_reward
    """),
    needs=2,
    algorithm=lambda config, log: "ppo" if {"value_loss", "train/value_loss"} & set(log.columns) else "grpo",
)
# KLs are logged as square roots and stay so: nats would have to be made of them by squaring. Log-probs are of the raw
# logits; the controller, where there is a target, compares the sum over a completion and counts samples.
TRLX = Table(
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
    distinctive=words("""
        policy/sqrt_kl policy/kl_per_token kl_ctl_value losses/total_loss values/values_error old_values/*
        padding_percentage rollout_scores/*
    """),
    prefixes=(),
    heldout=("reward/", "metrics/"),  # trlX logs both in its evaluation only
    algorithm=lambda config, log: "ppo",
)
