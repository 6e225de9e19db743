"""steadyrl's own names, as the catalogue in ``steadyrl.metrics`` defines them, and the settings of resolved.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from steadyrl.doctor.names.settings import Config, first, number, product
from steadyrl.doctor.names.table import Table, keys, names, words
from steadyrl.doctor.series import RawLog

KL_PLACES = {"ppo": "reward", "rloo": "reward", "reinforce": "reward", "grpo": "loss", "rlaif": "loss"}


def derive(config: Config, log: RawLog, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what several of our settings say together."""
    control, rank = first(config, "algorithm.args.kl_control"), number(config, "model.lora_rank")
    return {
        "batch_size": product(number(config, "rollout.prompts_per_step"), number(config, "rollout.samples_per_prompt")),
        "lora": None if rank is None else rank > 0,
        "kl_adaptive": None if control is None else control == "adaptive",
        "kl_target_unit": "nats/sequence" if "kl_target" in found else None,
        "kl_horizon_unit": "updates" if "kl_horizon" in found else None,
        "kl_place": KL_PLACES.get(algorithm(config, log)),
    }


def algorithm(config: Config, log: RawLog) -> str:
    """Return the short name or the class's name of the configured algorithm."""
    return re.split(r"[:.]", str(first(config, "algorithm.name") or ""))[-1].lower()


TABLE = Table(
    trainer="steadyrl",
    names=names("""
        reward/{mean|std} = reward{|_std}, reward
        reward/std_within = reward_std_within, reward, rms
        reward/unscored = reward_unscored, share
        reward/* = reward_part/*, reward
        reward_share/* = reward_share/*, share
        groups/no_signal = no_signal, share
        groups/best = reward_best, reward
        groups/mean_std = reward_std_between, reward
        kl_ref_exact{|_seq} = kl_ref, nats/{token|sequence}, exact
        kl_ref_k3 = kl_ref, nats/token, k3
        kl_ref_k1{|_seq} = kl_ref, nats/{token|sequence}, k1
        kl_ref_k1_seq_se = kl_ref_se, nats/sequence, k1
        kl_old_{k3|k1} = kl_old, nats/token, {k3|k1}
        kl_step_k3 = kl_step, nats/token, k3
        entropy{|_sampled} = entropy, nats/token, {exact|sampled}
        sampler_gap = sampler_gap, nats/token, abs
        rechecked = rechecked, share
        clip_fraction{|_value} = clip_fraction{|_value}, share
        loss/total = loss
        loss/{policy|kl|nll|value} = loss_{policy|kl|nll|value}
        value/mean = value_mean, reward
        value/explained_variance = explained_variance, , centred
        return/{mean|std} = return_{mean|std}, reward
        advantage/{mean|std} = advantage_{mean|std}, reward
        advantage/used = advantage_used, share
        grad_norm = grad_norm
        grad_clipped = grad_clipped, share
        learning_rate = learning_rate
        {epochs|updates|data_epoch} = {epochs|updates|data_epoch}
        algorithm/kl_coef = kl_coef
        {autopilot|curriculum|judge}/* = {autopilot|curriculum|judge}/*
        completion/length = length, tokens
        completion/{truncated|empty|repetition} = {truncated|empty|repetition}, share
        observation/cut = observation_cut, share
        tokens/sampled = tokens, tokens
        tokens/per_second = tokens_per_second, tokens/s
        time/step = time_step, s
        time/* = time_part/*, s
        time = time_logged, s
    """),
    keys=keys("""
        temperature top_p top_k logprobs max_new_tokens = sampling.*
        learning_rate warmup_steps epochs minibatches max_grad_norm = update.*
        samples_per_prompt = rollout.samples_per_prompt
        clip = algorithm.args.clip_high
        kl_coef kl_target kl_horizon entropy_coef = algorithm.args.*
        whitened = algorithm.args.whiten_advantages
        steps = run.steps
        task = task.name
        model = model.path
    """),
    derive=derive,
    distinctive=words("""
        reward/std_within reward/unscored groups/no_signal kl_ref_k1 kl_ref_k1_seq kl_ref_k3 kl_old_k1 kl_old_k3
        entropy_sampled sampler_gap value/explained_variance completion/truncated
    """),
    needs=2,
    prefixes=(),
    heldout=("heldout/",),
    algorithm=algorithm,
    formats=("steadyrl",),
)
