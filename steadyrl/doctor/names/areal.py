"""Names of AReaL, whose ratios are two: of the trained to the proximal policy, and of the proximal one to the sampler.

Source: inclusionAI/AReaL, areal/trainer/ppo/actor.py.
"""

from __future__ import annotations

from steadyrl.doctor.names.table import Table, keys, names

TABLE = Table(
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
    distinctive=(
        "ppo_actor/*",
        "ppo_actor/task_reward/avg",
        "ppo_actor/no_eos_ratios/avg",
        "ppo_actor/update/importance_weight/avg",
        "ppo_actor/update/behave_imp_weight/avg",
        "timeperf/*",
    ),
    prefixes=(),
    heldout=("eval-rollout/", "eval/"),
)
