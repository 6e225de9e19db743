"""Names that DeepSpeed-Chat prints: its step 3 is PPO with a critic and a KL in the reward.

Source: deepspeedai/DeepSpeedExamples, applications/DeepSpeed-Chat/training/step3_rlhf_finetuning/main.py.
"""

from __future__ import annotations

from steadyrl.doctor.names.table import Table, keys, names

TABLE = Table(
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
    distinctive=("act_loss", "cri_loss", "unsuper_loss", "average_reward_score"),
    needs=2,
    algorithm=lambda config, log: "ppo",
)
