"""Names of LLaMA-Factory's trainer_log.jsonl; its PPO is TRL's old one, of which it logs loss and reward.

Source: hiyouga/LLaMA-Factory, src/llamafactory/train/callbacks.py and train/ppo/trainer.py.
"""

from __future__ import annotations

from steadyrl.doctor.names.table import Table, keys, names

TABLE = Table(
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
    distinctive=("total_steps", "percentage", "predict_loss", "current_steps"),
    needs=2,
    averages=True,
    algorithm=lambda config, log: "ppo" if "reward" in log.columns else "",
)
