import json

import numpy as np
import pytest

from steadyrl.core import config
from steadyrl.doctor.names import derive
from steadyrl.doctor.names.identify import TABLES, identify
from steadyrl.doctor.readers.spelling import typed
from steadyrl.doctor.series import Column, RawLog
from tests.doctor.names.vocabulary import VOCABULARY

COLUMN = Column(np.arange(2), np.zeros(2))
GRPO = ("completions/mean_length", "completions/clipped_ratio", "kl")
PPO_OLD = ("objective/kl", "objective/kl_coef", "ppo/mean_scores")
PPO_NEW = ("objective/kl", "policy/approxkl_avg", "loss/value_avg")
VERL = ("actor/pg_loss", "critic/score/mean")
OPENRLHF = ("actor_lr", "ppo_clip_ratio", "kl")


def settings(names, given, format="jsonl"):
    return identify(RawLog("x", format, dict.fromkeys(names, COLUMN), given)).settings


def flat(data, above=""):
    """Return nested settings with dotted keys."""
    found = {}
    for key, value in data.items():
        found |= flat(value, f"{above}{key}.") if isinstance(value, dict) else {above + key: value}
    return found


def resolved(*overrides):
    """Return what resolved.json holds, with dotted keys."""
    made = config.resolve({"rewards": {"retrieval": 1.0}}, overrides)
    return flat(json.loads(json.dumps(config.dump(made))))


def test_our_own_settings_are_found_under_their_sections():
    found = settings(
        ["reward/mean"],
        resolved(
            "sampling.temperature=0.5",
            "rollout.prompts_per_step=16",
            "rollout.samples_per_prompt=4",
            "algorithm.args.kl_coef=0.004",
            "algorithm.args.clip_high=0.3",
            "update.epochs=3",
            "run.steps=150",
        ),
        "steadyrl",
    )
    expected = {
        "temperature": 0.5,
        "top_k": 0,
        "logprobs": "sampled",
        "batch_size": 64,
        "samples_per_prompt": 4,
        "kl_coef": 0.004,
        "clip": 0.3,
        "epochs": 3,
        "minibatches": 2,
        "steps": 150,
        "kl_adaptive": False,
        "kl_target": 6.0,
        "kl_target_unit": "nats/sequence",
        "kl_horizon_unit": "updates",
        "kl_place": "reward",
        "whitened": True,
        "lora": False,
        "task": "search",
        "model": "base",
    }
    assert {name: found.get(name) for name in expected} == expected


def test_our_own_adaptive_controller_adapters_and_grpo_are_seen():
    adaptive = settings(
        ["reward/mean"], resolved("algorithm.args.kl_control=adaptive", "model.lora_rank=8"), "steadyrl"
    )
    assert (adaptive["kl_adaptive"], adaptive["lora"]) == (True, True)
    grpo = settings(["reward/mean"], resolved("algorithm.name=grpo"), "steadyrl")
    assert grpo["kl_place"] == "loss"
    assert not {"kl_target", "kl_target_unit", "kl_adaptive", "whitened"} & set(grpo)


@pytest.mark.parametrize("wrapper", ["", "trl_ppo_trainer_config."])
def test_trls_old_ppo_config_is_understood_wrapped_or_not(wrapper):
    given = {
        "init_kl_coef": 0.2,
        "target": 6.0,
        "horizon": 10000,
        "adap_kl_ctrl": True,
        "ppo_epochs": 4,
        "batch_size": 128,
        "mini_batch_size": 16,
        "gradient_accumulation_steps": 2,
        "cliprange": 0.2,
        "learning_rate": 1.41e-5,
        "max_grad_norm": None,
    }
    found = settings(PPO_OLD, {wrapper + key: value for key, value in given.items()})
    assert found == {
        "kl_coef": 0.2,
        "kl_target": 6.0,
        "kl_horizon": 10000,
        "kl_adaptive": True,
        "epochs": 4,
        "batch_size": 128,
        "minibatches": 4,
        "clip": 0.2,
        "learning_rate": 1.41e-5,
        "logprobs": "raw",
        "whitened": True,
        "kl_place": "reward",
        "kl_target_unit": "nats/sequence",
        "kl_horizon_unit": "samples",
    }


@pytest.mark.parametrize(
    "above", ["", "generation_kwargs.", "gen_kwargs.", "trl_ppo_trainer_config.generation_kwargs."]
)
@pytest.mark.parametrize("names", [PPO_OLD, ("reward", "loss")])
def test_generation_settings_are_found_flat_and_nested(above, names):
    given = {"temperature": "0.65", "top_p": 0.8, "top_k": 0.0, "max_new_tokens": 48}
    found = settings(names, {above + key: value for key, value in given.items()})
    if above.startswith("trl") and names is not PPO_OLD:
        assert "temperature" not in found  # the wrapper is one trainer's own
    else:
        assert [found[key] for key in given] == [0.65, 0.8, 0, 48]


def test_grpos_generation_kwargs_outdo_what_stands_beside_them():
    found = settings(GRPO, {"temperature": 1.0, "top_p": 1.0, "generation_kwargs.top_p": 0.85})
    assert (found["temperature"], found["top_p"], found["logprobs"]) == (1.0, 0.85, "tempered")


def test_rolls_generation_settings_are_found_where_its_sampler_has_them():
    found = settings(
        ("actor/approxkl", "actor_train/grad_norm", "system/step"),
        {"actor_infer.generating_args.temperature": 0.9, "actor_infer.generating_args.top_k": 80},
    )
    assert (found["temperature"], found["top_k"]) == (0.9, 80)


def test_facts_of_a_trainer_need_no_config():
    old, new = settings(PPO_OLD, {}), settings(PPO_NEW, {})
    assert (old["whitened"], old["kl_target_unit"], old["logprobs"]) == (True, "nats/sequence", "raw")
    assert (new["kl_adaptive"], new["kl_place"], new["top_p"], new["logprobs"]) == (False, "reward", 1.0, "sampled")
    assert "kl_coef" not in old


def test_trls_new_ppo_config_is_understood():
    given = {"kl_coef": 0.05, "num_ppo_epochs": 4, "num_mini_batches": 1, "cliprange": 0.2, "temperature": 0.7}
    found = settings(PPO_NEW, {**given, "response_length": 53, "batch_size": 64})
    assert (found["kl_coef"], found["epochs"], found["minibatches"], found["clip"]) == (0.05, 4, 1, 0.2)
    assert (found["temperature"], found["max_new_tokens"], found["batch_size"]) == (0.7, 53, 64)


def test_trls_grpo_config_is_understood():
    given = {
        "beta": 0.04,
        "num_generations": 8,
        "num_iterations": 2,
        "epsilon": 0.2,
        "epsilon_high": 0.28,
        "max_completion_length": 256,
        "temperature": 0.9,
        "top_p": 1.0,
        "top_k": None,
        "generation_batch_size": 64,
        "warmup_steps": 0,
        "warmup_ratio": 0.1,
        "max_steps": -1,
        "vocab_size": 32000,
    }
    assert settings(GRPO, given) == {
        "kl_coef": 0.04,
        "samples_per_prompt": 8,
        "epochs": 2,
        "clip": 0.28,
        "max_new_tokens": 256,
        "temperature": 0.9,
        "top_p": 1.0,
        "batch_size": 64,
        "vocabulary": 32000,
        "kl_place": "loss",
        "kl_adaptive": False,
        "logprobs": "sampled",
    }


def test_truncated_sampling_is_not_what_trls_grpo_scores():
    assert settings(GRPO, {"top_p": 0.9})["logprobs"] == "tempered"
    assert settings(GRPO, {"top_p": 1.0, "top_k": 50})["logprobs"] == "tempered"
    assert "logprobs" not in settings(GRPO, {"temperature": 0.9})
    assert "logprobs" not in settings(("completion_length", "reward_std"), {"top_p": 1.0})


def test_verls_penalty_in_the_reward_has_its_controller():
    given = {
        "algorithm.use_kl_in_reward": True,
        "algorithm.kl_ctrl.type": "adaptive",
        "algorithm.kl_ctrl.kl_coef": 0.001,
        "algorithm.kl_ctrl.target_kl": 0.1,
        "algorithm.kl_ctrl.horizon": 10000,
        "algorithm.adv_estimator": "gae",
        "actor_rollout_ref.actor.use_kl_loss": False,
        "actor_rollout_ref.actor.kl_loss_coef": 0.5,
        "actor_rollout_ref.rollout.temperature": 1.0,
        "actor_rollout_ref.rollout.top_p": 1,
        "actor_rollout_ref.rollout.top_k": -1,
        "actor_rollout_ref.rollout.n": 5,
        "data.train_batch_size": 256,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 64,
    }
    assert settings(VERL, given) == {
        "kl_place": "reward",
        "kl_adaptive": True,
        "kl_coef": 0.001,
        "kl_target": 0.1,
        "kl_target_unit": "nats/token",
        "kl_horizon": 10000,
        "kl_horizon_unit": "samples",
        "whitened": True,
        "temperature": 1.0,
        "top_p": 1,
        "top_k": 0,
        "logprobs": "sampled",
        "samples_per_prompt": 5,
        "batch_size": 1280,
        "minibatches": 4,
    }


def test_verls_penalty_in_the_loss_has_a_fixed_coefficient():
    given = {
        "algorithm.use_kl_in_reward": False,
        "algorithm.kl_ctrl.type": "adaptive",
        "algorithm.kl_ctrl.kl_coef": 0.9,
        "actor_rollout_ref.actor.use_kl_loss": True,
        "actor_rollout_ref.actor.kl_loss_coef": 0.001,
    }
    assert settings(VERL, given) == {"kl_place": "loss", "kl_adaptive": False, "kl_coef": 0.001}


def test_verls_metrics_show_where_the_penalty_is_without_a_config():
    assert settings([*VERL, "actor/reward_kl_penalty"], {})["kl_place"] == "reward"
    assert settings([*VERL, "critic/kl"], {})["kl_place"] == "reward"  # as older versions call it
    assert settings([*VERL, "actor/kl_loss"], {})["kl_place"] == "loss"
    assert "kl_place" not in settings(VERL, {})


def test_openrlhfs_arguments_are_understood():
    given = {"rollout_batch_size": 128, "n_samples_per_prompt": 8, "train_batch_size": 256, "init_kl_coef": 0.01}
    found = settings(OPENRLHF, {**given, "kl_target": None, "use_kl_loss": False, "max_epochs": 1, "eps_clip": 0.2})
    assert (found["batch_size"], found["minibatches"], found["kl_coef"]) == (1024, 4, 0.01)
    assert (found["kl_adaptive"], found["kl_place"], found["kl_target_unit"]) == (False, "reward", "nats/token")
    assert settings(OPENRLHF, {"kl_target": 0.05})["kl_adaptive"] is True


def test_settings_that_a_tracker_kept_as_text_are_typed():
    found = settings(GRPO, {"beta": "0.04", "num_generations": "8", "top_p": "None", "temperature": "auto"})
    assert (found["kl_coef"], found["samples_per_prompt"]) == (0.04, 8)
    assert not {"top_p", "temperature"} & set(found)


@pytest.mark.parametrize(
    ("text", "value"), [("1e-5", 1e-5), ("8", 8), ("True", True), ("none", None), ("bfloat16", "bfloat16"), (3.5, 3.5)]
)
def test_text_is_typed(text, value):
    assert typed(text) == value
    assert type(typed(text)) is type(value)


class AnyConfig(dict):
    """A config in which every setting is set."""

    def __init__(self, value):
        self.value = value

    def get(self, key, default=None):
        return self.value

    def __contains__(self, key):
        return True


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.trainer)
def test_only_known_settings_come_out_whatever_a_config_holds(table):
    log = RawLog("x", "jsonl", {})
    for value in (2, 0, -1, 0.5, True, "text", [1, 2], None):
        settings = derive.settings(table, AnyConfig(value), log)
        assert set(settings) <= VOCABULARY, value
        assert None not in settings.values(), value
        assert isinstance(derive.algorithm(table, AnyConfig(value), log), str), value


@pytest.mark.parametrize(
    ("names", "key"),
    [
        (GRPO, "optim"),
        (PPO_NEW, "optim"),
        (VERL, "actor_rollout_ref.actor.optim.optimizer"),
        (("loss",), "optimizer"),
        (("loss",), "optim"),
    ],
)
def test_the_optimizer_is_found_as_the_trainer_calls_it(names, key):
    assert settings(names, {key: "sgd"})["optimizer"] == "sgd"
    assert "optimizer" not in settings(names, {})


@pytest.mark.parametrize(("group", "drawn"), [({"env.rollout.n": 6}, 6), ({}, 1)])
def test_the_group_of_verls_agents_is_of_episodes(group, drawn):
    config = {"actor_rollout_ref.rollout.n": 1, "data.train_batch_size": 8, **group}
    canonical = settings(VERL, config)
    assert (canonical["samples_per_prompt"], canonical["batch_size"]) == (drawn, 8 * drawn)


@pytest.mark.parametrize(
    ("given", "key"), [({}, "actor_rollout_ref.rollout.n"), ({"env.rollout.n": 4}, "env.rollout.n")]
)
def test_advice_names_the_agents_key_only_where_the_config_has_it(given, key):
    run = identify(RawLog("x", "jsonl", dict.fromkeys(VERL, COLUMN), given))
    assert run.keys["samples_per_prompt"] == key
