"""Faults in the settings at the strengths of twelve parts, on the toy backend: the parts judged the advice one by one.

A run takes some seconds. Strengths, task and seeds of all parts but "taught" were written down before any advice on
these runs was asked for, and a part teaches the advice once it has judged it. "taught" never judged. "later" has kinds
of faults that no part before it has, and so have "fresh" and all parts after it: mistakes from public threads on
trainers, alone and in pairs. Those of "second" and later parts were chosen by reasoning alone: no run with one of them
was made before. "third" and later parts, most of whose faults are pairs, were chosen without a look at the doctor, and
the tasks of "fifth", "sixth" and "eighth" so that their runs without a fault are near their plateau at the end.
"seventh" is the first with algorithms beside PPO and GRPO, and "eighth" the first with variants of GRPO by settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Literal, get_args

import rate_or_penalty
import runs
import settings
from faults import BOTH, setting, times

Part = Literal[
    "taught", "judged", "last", "later", "fresh", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth"
]  # fmt: skip
PARTS = get_args(Part)
RATE = 0.1  # of the toy backend, whose policy is a table of logits
REWARDS = {
    "taught": {"scores:early_letters": 1.0},
    "judged": {"scores:in_order": 1.0},
    "last": {"scores:in_order": 0.5, "scores:early_letters": 0.5},
    "later": {"scores:early_letters": 0.6, "scores:target_words": 0.4},
    "fresh": {"scores:alternating": 0.5, "scores:early_letters": 0.2, "scores:ten_words": 0.3},
    "second": {"scores:alternating": 0.4, "scores:early_letters": 0.3, "scores:target_words": 0.3},
    "third": {
        "scores:target_words": 0.4,
        "scores:alternating": 0.3,
        "scores:distinct_words": 0.2,
        "scores:in_order": 0.1,
    },
    "fourth": {
        "scores:middle_words": 0.4,
        "scores:ten_words": 0.25,
        "scores:early_letters": 0.2,
        "scores:in_order": 0.15,
    },
    "fifth": {"scores:ten_words": 0.45, "scores:open_words": 0.35, "scores:distinct_words": 0.2},
    "sixth": {"scores:open_words": 0.4, "scores:alternating": 0.35, "scores:ten_words": 0.25},
    "seventh": {"scores:open_words": 0.4, "scores:early_letters": 0.35, "scores:target_words": 0.25},
    "eighth": {"scores:early_letters": 0.4, "scores:ten_words": 0.35, "scores:distinct_words": 0.25},
}
SEEDS = {
    "taught": (30,),
    "judged": (31,),
    "last": (32, 33, 34),
    "later": (51, 52, 53),
    "fresh": (71, 72, 73),
    "second": (81, 82, 83),
    "third": (91, 92, 93),
    "fourth": (101, 102, 103),
    "fifth": (111, 112, 113, 114, 115, 116),
    "sixth": (121, 122, 123, 124, 125, 126),
    "seventh": (131, 132, 133, 134, 135, 136),
    "eighth": (141, 142, 143, 144, 145, 146),
}
ROOM = {  # tokens
    "taught": 40,
    "judged": 40,
    "last": 100,
    "later": 60,
    "fresh": 64,
    "second": 72,
    "third": 80,
    "fourth": 90,
    "fifth": 56,
    "sixth": 76,
    "seventh": 84,
    "eighth": 62,
}
PPO, GRPO, RLOO, REINFORCE = ("ppo",), ("grpo",), ("rloo",), ("reinforce",)
RLAIF, RAFT, RWR = ("rlaif",), ("raft",), ("rwr",)
DAPO, GSPO, CISPO, DR_GRPO = ("dapo",), ("gspo",), ("cispo",), ("dr_grpo",)
# Beside those of settings.py: of whom each has the batches, and its own settings.
SETTINGS: Mapping[str, tuple[str, settings.Data]] = {
    "rloo": ("grpo", {"kl_coef": 0.001}),
    "reinforce": ("ppo", {"kl_coef": 0.001}),
    "rlaif": ("grpo", {"kl_coef": 0.02}),
    "raft": ("grpo", {}),
    "rwr": ("grpo", {}),
    "dapo": ("grpo", {"kl_coef": 0.0, "clip_high": 0.28, "groups": "signal"}),
    "gspo": ("grpo", {"kl_coef": 0.0, "ratio": "sequence", "mean": "sequence", "clip_low": 3e-4, "clip_high": 4e-4}),
    "cispo": ("grpo", {"kl_coef": 0.0, "surrogate": "weight", "clip_high": 4.0}),
    "dr_grpo": ("grpo", {"kl_coef": 0.0, "scale": "none", "mean": "constant", "length_limit": ROOM["eighth"]}),
}
VARIANTS = (*DAPO, *GSPO, *CISPO, *DR_GRPO)  # of GRPO, see docs/algorithms/grpo.md
# PPO's penalty is summed over an answer's tokens: at the 0.01 of the other parts the policy would rather end at once.
PENALTY = {part: {"ppo": 0.001} for part in ("fresh", "second", "third", "fourth", "fifth", "sixth", "seventh")}
PENALTY["eighth"] = {"ppo": 0.001, "rlaif": 0.002}  # at 0.02 RLAIF comes to two thirds of the others' reward


@dataclass(frozen=True)
class Kind:
    """A fault in the settings.

    Attributes:
        name: Of the fault. Several rows may share a name, each for other parts.
        changes: What it changes, by part.
        algorithms: Those in which it occurs in these parts.
        source: Of a fault in "fresh" and later parts: where users made it, as owner/repository#number, or why they do.
        to_mend: Of a fault in "fourth" and later parts: all settings that a person would have to put right.
    """

    name: str
    changes: Mapping[str, settings.Change]
    algorithms: tuple[str, ...] = BOTH
    source: str = ""
    to_mend: tuple[str, ...] = ()


def _raw(**values: float) -> settings.Change:
    return setting(sampling__logprobs="raw", **{f"sampling__{name}": value for name, value in values.items()})


def _passes(epochs: int, factor: float) -> settings.Change:
    faster = times("update.learning_rate", factor)
    return lambda data: faster(setting(update__epochs=epochs, update__kl_old_limit=1000.0)(data))


def _controller(coefficient: float, target: float, horizon: float) -> settings.Change:
    return _args(kl_control="adaptive", kl_coef=coefficient, kl_target=target, kl_horizon=horizon)


def _penalty(coefficient: float) -> settings.Change:
    def change(data: settings.Data) -> settings.Data:
        fixed = {"algorithm__args__kl_control": "fixed"} if data["algorithm"]["name"] == "ppo" else {}
        return setting(algorithm__args__kl_coef=coefficient, **fixed)(data)

    return change


def _rate(factor: float) -> settings.Change:
    return times("update.learning_rate", factor)


def _batch(prompts: int, samples: int) -> settings.Change:
    return setting(rollout__prompts_per_step=prompts, rollout__samples_per_prompt=samples, update__minibatches=1)


def _weights(factor: float) -> settings.Change:
    return lambda data: {**data, "rewards": {name: factor * weight for name, weight in data["rewards"].items()}}


def _read_after(mark: str) -> settings.Change:
    def change(data: settings.Data) -> settings.Data:
        read = {name: {"weight": weight, "answer_after": mark} for name, weight in data["rewards"].items()}
        return {**data, "rewards": read}

    return change


def _part_read_after(name: str, mark: str) -> settings.Change:
    def change(data: settings.Data) -> settings.Data:
        read = {"weight": data["rewards"][name], "answer_after": mark}
        return {**data, "rewards": {**data["rewards"], name: read}}

    return change


def _args(**values: Any) -> settings.Change:
    return setting(**{f"algorithm__args__{name}": value for name, value in values.items()})


def _masked(data: settings.Data) -> settings.Data:
    return {**data, "rewards": {**data["rewards"], "cut_off": {"weight": 0.0, "mask": True}}}


def _pair(*changes: settings.Change) -> settings.Change:
    return lambda data: reduce(lambda changed, change: change(changed), changes, data)


def _each(change: Callable[..., settings.Change], **strengths: Any) -> Mapping[str, settings.Change]:
    """Return the change of each part: ``change`` of the part's strength, or of its strengths where it has several."""
    return {part: change(*(s if isinstance(s, tuple) else (s,))) for part, s in strengths.items()}


def _set(key: str, **strengths: float) -> Mapping[str, settings.Change]:
    return {part: setting(**{key: value}) for part, value in strengths.items()}


def _sampled(name: str, **strengths: float) -> Mapping[str, settings.Change]:
    return {part: _raw(**{name: value}) for part, value in strengths.items()}


def _only(part: Part, name: str, algorithms: tuple[str, ...], source: str, *changes: settings.Change) -> Kind:
    return Kind(name, {part: _pair(*changes)}, algorithms, source)


def _mended(
    part: Part, name: str, algorithms: tuple[str, ...], source: str, to_mend: str, *changes: settings.Change
) -> Kind:
    return Kind(name, {part: _pair(*changes)}, algorithms, source, tuple(to_mend.split()))


_fresh, _second, _third = (partial(_only, part) for part in ("fresh", "second", "third"))
_fourth, _fifth, _sixth = (partial(_mended, part) for part in ("fourth", "fifth", "sixth"))
_seventh, _eighth = (partial(_mended, part) for part in ("seventh", "eighth"))


KINDS = (
    Kind("cooler", _sampled("temperature", taught=0.7, judged=0.5, last=0.6)),
    Kind("cooler", _sampled("temperature", later=0.4), GRPO),
    Kind("hotter", _sampled("temperature", taught=1.4, judged=1.7, last=1.5)),
    Kind("hotter", _sampled("temperature", later=2.0), PPO),
    Kind("top_p", _sampled("top_p", taught=0.8, judged=0.6, last=0.7)),
    Kind("top_p", _sampled("top_p", later=0.5), PPO),
    Kind("rate_high", _each(_rate, taught=30.0, judged=100.0, last=50.0, later=70.0)),
    Kind("rate_low", _each(_rate, taught=0.01, judged=0.03, last=0.02, later=0.005)),
    Kind("rate_zero", _each(_rate, taught=0.0, judged=0.0, last=0.0)),
    Kind("rate_zero", _each(_rate, later=0.0), GRPO),
    Kind("passes", _each(_passes, taught=(8, 3.0), judged=(12, 2.0), last=(6, 4.0))),
    Kind("passes", _each(_passes, later=(10, 5.0)), PPO),
    Kind(
        "controller_slow",
        _each(
            _controller,
            taught=(0.002, 1.0, 1e4),
            judged=(0.005, 2.0, 3000.0),
            last=(0.003, 1.5, 6000.0),
            later=(0.004, 1.2, 4000.0),
        ),
        PPO,
    ),
    Kind(
        "unit_clash",
        _each(
            _controller,
            taught=(0.01, 0.1, 20.0),
            judged=(0.02, 0.05, 40.0),
            last=(0.015, 0.08, 30.0),
            later=(0.012, 0.06, 25.0),
        ),
        PPO,
    ),
    Kind("entropy_bonus", _set("algorithm__args__entropy_coef", taught=0.5, judged=0.2, last=0.35, later=0.25), PPO),
    Kind("entropy_bonus_strong", _set("algorithm__args__entropy_coef", later=0.7), PPO),
    Kind("cut_off", _set("sampling__max_new_tokens", taught=3, judged=4, last=5)),
    Kind("cut_off", _set("sampling__max_new_tokens", later=6), GRPO),
    Kind("penalty_strong", _each(_penalty, taught=1.0, judged=0.5, last=0.7, later=0.4)),
    Kind("gradient_cut", _set("update__max_grad_norm", taught=1e-7, judged=1e-6, last=3e-7)),
    Kind("gradient_cut", _set("update__max_grad_norm", later=5e-8), GRPO),
    Kind("warm_up", _set("update__warmup_steps", taught=6000, judged=600, last=1500, later=60)),  # 60: the whole run
    Kind("greedy", _set("sampling__temperature", taught=0.05, judged=0.1, last=0.2)),
    Kind("greedy", _set("sampling__temperature", later=0.3), PPO),
    # Kinds that no part before "later" has.
    Kind("batch_of_two_ppo", _each(_batch, later=(2, 1)), PPO),
    Kind("batch_of_two_grpo", _each(_batch, later=(1, 2)), GRPO),
    Kind("pairs", _each(_batch, later=(24, 2)), GRPO),
    Kind("value_weight", _set("algorithm__args__value_coef", later=30.0), PPO),
    Kind("value_untrained", _set("algorithm__args__value_coef", later=0.0), PPO),
    Kind("head_first", _set("algorithm__args__value_warmup_steps", later=60), PPO),
    Kind("clip_narrow", {"later": _args(clip_low=0.01, clip_high=0.01)}),
    Kind("rewards_large", _each(_weights, later=100.0), PPO),
    Kind("rewards_small", _each(_weights, later=0.01), PPO),
    Kind("discount", _set("algorithm__args__gamma", later=0.5), PPO),
    Kind("lambda_zero", _set("algorithm__args__lam", later=0.0), PPO),
    Kind("schedule_short", {"later": setting(update__schedule="linear", update__schedule_steps=8)}, PPO),
    Kind("step_limit", _set("update__kl_old_limit", later=1e-6), PPO),
    Kind("reward_limit", _set("update__reward_limit", later=1e-3), GRPO),
    Kind("target_near", _each(_controller, later=(0.05, 0.05, 5.0)), PPO),
    Kind("narrow", _set("sampling__top_k", later=2), GRPO),
    # Earlier kinds at other strengths.
    _fresh("hotter", GRPO, "huggingface/trl#3029", _raw(temperature=2.5)),
    _fresh("top_p", GRPO, "PrimeIntellect-ai/prime-rl#679", _raw(top_p=0.4)),
    _fresh("rate_high", GRPO, "datawhalechina/hello-agents#770", _rate(90.0)),
    _fresh("rate_low", PPO, "XueZeyue/DanceGRPO#45", _rate(0.05)),
    _fresh("unit_clash", PPO, "huggingface/trl#1178", _controller(0.002, 0.04, 8.0)),
    _fresh("entropy_bonus", PPO, "davidADSP/SIMPLE#35", _args(entropy_coef=0.15)),
    _fresh("cut_off", PPO, "huggingface/trl#5697", setting(sampling__max_new_tokens=12)),
    _fresh("penalty_strong", GRPO, "SakanaAI/self-adaptive-llms#5", _penalty(0.25)),
    _fresh("gradient_cut", PPO, "PrimeIntellect-ai/verifiers#82", setting(update__max_grad_norm=2e-7)),
    _fresh("greedy", GRPO, "huggingface/trl#11", setting(sampling__temperature=0.02)),
    _fresh("narrow", PPO, "huggingface/trl#6944", setting(sampling__top_k=1)),
    _fresh("discount", PPO, "natolambert/rlhf-book#364", _args(gamma=0.8)),
    # Kinds that no part before "fresh" has.
    _fresh("batch_of_four", PPO, "mll-lab-nu/RAGEN#73", _batch(4, 1)),
    _fresh("hot", PPO, "tenstorrent/tt-metal#56016", setting(sampling__temperature=3.0)),
    _fresh("nucleus_small", GRPO, "billy-enrizky/openbrowser-ai#60", setting(sampling__top_p=0.05)),
    _fresh("stop_early", GRPO, "vllm-project/vllm#14170", setting(sampling__stop=[" ", "\n"])),
    _fresh("rewards_whitened", PPO, "vwxyzjn/summarize_from_feedback_details#17", _args(whiten_rewards=True)),
    _fresh("penalty_k2", GRPO, "NovaSky-AI/SkyRL#1445", _args(kl_form="k2", kl_coef=0.5)),
    _fresh("sign_wrong", BOTH, "huggingface/trl#2714", _weights(-1.0)),
    _fresh("overlong_all", GRPO, "verl-project/verl#2107", _args(length_limit=64, overlong_buffer=64)),
    _fresh("overlong_short", GRPO, "verl-project/verl#3855", _args(length_limit=16, overlong_buffer=8)),
    _fresh("stale", GRPO, "radixark/miles#1829", setting(rollout__ahead=8, update__correction="off")),
    _fresh("stale_masked", PPO, "verl-project/verl#3984", setting(rollout__ahead=4, update__correction="geometric")),
    _fresh("clip_of_sequences", PPO, "verl-project/verl#2775", _args(clip_low=3e-4, clip_high=4e-4)),
    _fresh("clip_high_small", GRPO, "XueZeyue/DanceGRPO#45", _args(clip_high=1e-3)),
    _fresh("clip_value_small", PPO, "ray-project/ray#2921", _args(clip_value=1e-4)),
    _fresh("value_rate", PPO, "deepspeedai/DeepSpeedExamples#556", _args(value_learning_rate=5.0)),
    _fresh(
        "decay_in_warm_up",
        GRPO,
        "allenai/open-instruct#537",
        setting(update__warmup_steps=20, update__schedule="cosine", update__schedule_steps=24),
    ),
    # Two faults at once.
    _fresh("masked_and_cut", BOTH, "huggingface/trl#6369", _masked, setting(sampling__max_new_tokens=16)),
    _fresh("small_unscaled", GRPO, "huggingface/trl#3138", _weights(0.02), _args(scale="none")),
    _fresh(
        "small_and_bonus",
        PPO,
        "openai/baselines#371",
        _weights(0.02),
        _args(whiten_advantages=False, entropy_coef=0.01),
    ),
    _fresh(
        "unclipped_fast",
        PPO,
        "deepspeedai/DeepSpeedExamples#533",
        _passes(6, 5.0),
        _args(clip_low=0.99, clip_high=100.0),
    ),
    _fresh("slow_and_held", PPO, "huggingface/open-r1#474", _rate(0.1), _penalty(0.01)),
    _fresh(
        "cut_and_overlong",
        GRPO,
        "huggingface/trl#5697",
        setting(sampling__max_new_tokens=24),
        _args(length_limit=24, overlong_buffer=24),
    ),
    _fresh(
        "minibatches_of_one",
        PPO,
        "huggingface/trl#462",
        setting(update__minibatches=48, update__kl_old_limit=1000.0),
        _rate(10.0),
    ),
    # Earlier kinds, at other strengths or in the other algorithm.
    _second("hotter", PPO, "NVIDIA-NeMo/RL#3497", _raw(temperature=4.0)),
    _second("hot", GRPO, "a temperature for diverse groups, never lowered", setting(sampling__temperature=8.0)),
    _second("rate_low", GRPO, "modelscope/ms-swift#5571", _rate(0.04)),
    _second("controller_slow", PPO, "ray-project/ray#18492", _controller(0.3, 4.0, 5000.0)),
    _second("entropy_bonus", PPO, "a bonus for losses summed over tokens, in a mean", _args(entropy_coef=2.0)),
    _second("cut_off", GRPO, "modelscope/ms-swift#4950", setting(sampling__max_new_tokens=18)),
    _second("penalty_strong", PPO, "the usual 0.05 of short answers, for long ones", _penalty(0.05)),
    _second("gradient_cut", GRPO, "strands-labs/robots#2028", setting(update__max_grad_norm=5e-9)),
    _second("reward_limit", PPO, "a limit for another scale of rewards", setting(update__reward_limit=1e-4)),
    # Kinds that no part before "second" has.
    _second("penalty_weighted", GRPO, "mlvlab/DeepVideoR1#2", _args(kl_form="weighted_k3", kl_coef=2.0)),
    _second("offline", GRPO, "InternLM/xtuner#2003", setting(rollout__ahead=48)),
    _second(
        "no_baseline",
        PPO,
        "hiyouga/LlamaFactory#124",
        _args(value_coef=0.0, value_start="zero", whiten_advantages=False),
    ),
    # Two faults at once.
    _second("discount_and_lambda", PPO, "NVIDIA-NeMo/RL#2530", _args(gamma=0.7, lam=0.5)),
    _second(
        "stale_and_fast", PPO, "huggingface/trl#6945", setting(rollout__ahead=12, update__correction="off"), _rate(4.0)
    ),
    _second("slow_start", GRPO, "PeterGriffinJin/Search-R1#28", _rate(0.1), setting(update__warmup_steps=40)),
    _second("slow_actor", PPO, "Human-Agent-Society/reef#341", _rate(0.02), _args(value_learning_rate=2.0)),
    _second(
        "head_first_and_warm_up",
        PPO,
        "RLinf/RLinf#209",
        _args(value_warmup_steps=50),
        setting(update__warmup_steps=60),
    ),
    _second("slow_with_bonus", PPO, "both are advised against collapse", _rate(0.05), _args(entropy_coef=0.1)),
    _second("small_and_fast", PPO, "RLinf/RLinf#504", _batch(6, 1), _rate(5.0)),
    _second(
        "decay_and_narrow",
        GRPO,
        "huggingface/trl#3834",
        setting(update__schedule="cosine", update__schedule_steps=10),
        _args(clip_low=0.02, clip_high=0.02),
    ),
    _second(
        "unclipped_minibatches",
        GRPO,
        "huggingface/open-r1#583",
        setting(update__epochs=6, update__minibatches=24, update__kl_old_limit=1000.0),
        _args(clip_low=0.99, clip_high=100.0),
    ),
    _second(
        "cut_and_hot", GRPO, "Tencent-Hunyuan/UniRL#19", setting(sampling__max_new_tokens=30, sampling__temperature=3.0)
    ),
    _second("held_and_fast", GRPO, "jjyaoao/HelloAgents#108", _penalty(1.0), _rate(20.0)),
    _second("narrow_and_cold", GRPO, "jsboige/CoursIA#10603", setting(sampling__top_k=5, sampling__temperature=0.05)),
    # Earlier kinds, at other strengths or in the other algorithm.
    _third("target_near", PPO, "CarperAI/trlx#361", _controller(0.001, 6.0, 2.0)),  # it takes its time to hold the run
    _third("discount", PPO, "deepspeedai/DeepSpeedExamples#556", _args(gamma=0.94)),
    _third("stop_early", PPO, "CarperAI/trlx#401", setting(sampling__stop=[" ", "\n"])),
    _third("cut_off", GRPO, "huggingface/trl#6263", setting(sampling__max_new_tokens=32)),
    _third(
        "schedule_short",
        GRPO,
        "NovaSky-AI/SkyRL#873",
        setting(update__schedule="linear", update__schedule_steps=10),
    ),
    _third(
        "minibatches_of_one",
        GRPO,
        "verl-project/verl#2793",
        setting(update__minibatches=48, update__kl_old_limit=1000.0),
        _rate(3.0),
    ),
    # Kinds that no part before "third" has.
    _third("stale_sequence", PPO, "NVIDIA-NeMo/RL#2269", setting(rollout__ahead=6, update__correction="sequence")),
    _third("stale_icepop", GRPO, "huggingface/trl#7120", setting(rollout__ahead=16, update__correction="icepop")),
    # Two faults at once, and more.
    _third("rising_rate", BOTH, "Unity-Technologies/ml-agents#1237", _rate(20.0), setting(update__warmup_steps=60)),
    _third("generation_config", BOTH, "OpenPipe/ART#140", _raw(temperature=0.6, top_p=0.7, top_k=8)),
    _third("few_updates", PPO, "huggingface/trl#964", setting(update__epochs=1, update__minibatches=1), _rate(0.4)),
    _third("discount_and_bonus", PPO, "verl-project/verl#5953", _args(gamma=0.97, entropy_coef=0.1)),
    _third("untrained_and_lambda", PPO, "Mikyx-1/Reinforcement-Learning#50", _args(value_coef=0.0, lam=0.8)),
    _third("percent_and_zero", PPO, "huggingface/trl#691", _weights(100.0), _args(value_start="zero")),
    _third(
        "stale_and_passes",
        PPO,
        "radixark/miles#2524",
        setting(rollout__ahead=8, update__correction="off"),
        _passes(8, 1.0),
    ),
    _third("small_and_held", PPO, "huggingface/trl#860", _weights(0.1), _penalty(0.02)),
    _third(
        "step_limit_and_slow",
        PPO,
        "Stable-Baselines-Team/stable-baselines3-contrib#292",
        setting(update__kl_old_limit=1e-5),
        _rate(0.2),
    ),
    _third(
        "head_first_and_decay",
        PPO,
        "alibaba/ROLL#407",
        _args(value_warmup_steps=30),
        setting(update__schedule="cosine", update__schedule_steps=40),
    ),
    _third("warm_and_slow", GRPO, "radixark/miles#338", setting(sampling__temperature=2.0), _rate(0.4)),
    _third(
        "unscaled_and_held",
        GRPO,
        "a penalty for scaled advantages, beside unscaled ones",
        _args(scale="none", kl_coef=0.1),
    ),
    _third(
        "clip_of_sequences_and_slow",
        GRPO,
        "erfanzar/EasyDeL#246",
        _args(ratio="sequence", mean="sequence", clip_low=3e-4, clip_high=4e-4),
        _rate(0.2),
    ),
    _third("few_and_passes", GRPO, "huggingface/trl#3197", _batch(1, 6), _passes(10, 1.0)),
    _third(
        "cold_and_fast", GRPO, "a rate that was tuned at temperature 1", setting(sampling__temperature=0.25), _rate(5.0)
    ),
    _third(
        "weight_unbounded",
        GRPO,
        "MiniMax-AI/MiniMax-M1#31",
        _args(surrogate="weight", clip_high=1000.0),
        _passes(12, 3.0),
    ),
    _third(
        "gradient_cut_and_warm_up",
        GRPO,
        "PrimeIntellect-ai/verifiers#82",
        setting(update__max_grad_norm=1e-7, update__warmup_steps=60),
    ),
    _third(
        "hot_and_held",
        GRPO,
        "both are advised against collapse",
        setting(sampling__temperature=3.0),
        _penalty(0.3),
    ),
    # Earlier kinds, at other strengths or in the other algorithm.
    _fourth("rate_high", PPO, "a rate for LoRA, beside all weights", "update.learning_rate", _rate(15.0)),
    _fourth("discount", PPO, "natolambert/rlhf-book#260", "algorithm.args.gamma", _args(gamma=0.98)),
    _fourth("entropy_bonus", PPO, "verl-project/verl#781", "algorithm.args.entropy_coef", _args(entropy_coef=0.08)),
    _fourth(
        "overlong_short",
        GRPO,
        "modelscope/ms-swift#3353",  # a length in another unit
        "algorithm.args.length_limit",
        _args(length_limit=30, overlong_buffer=2),
    ),
    _fourth("penalty_strong", GRPO, "PPO's usual penalty, in the loss", "algorithm.args.kl_coef", _penalty(0.15)),
    _fourth(
        "passes",
        GRPO,
        "agentscope-ai/Trinity-RFT#176",
        "update.epochs update.learning_rate update.kl_old_limit",
        _passes(16, 6.0),
    ),
    # Kinds that no part before "fourth" has.
    _fourth("narrow_raw", PPO, "verl-project/verl#6240", "sampling.top_k sampling.logprobs", _raw(top_k=3)),
    _fourth(
        "stale_dppo",
        PPO,
        "THUDM/slime#1800",
        "rollout.ahead",
        setting(rollout__ahead=30, update__correction="dppo"),
    ),
    _fourth("last_word_read", GRPO, "jsboige/CoursIA#13614", "rewards.*.answer_after", _read_after(" ")),
    _fourth(
        "batch_of_six",
        GRPO,
        "unslothai/unsloth#1924",
        "rollout.prompts_per_step rollout.samples_per_prompt",
        _batch(2, 3),
    ),
    # Two faults at once.
    _fourth(
        "cooler_and_slow",
        PPO,
        "OpenRLHF/OpenRLHF#853",
        "sampling.temperature sampling.logprobs update.learning_rate",
        _raw(temperature=0.3),
        _rate(0.05),
    ),
    _fourth(
        "sign_wrong_and_slow",
        PPO,
        "huggingface/trl#2771",
        "rewards update.learning_rate",
        _weights(-1.0),
        _rate(0.03),
    ),
    _fourth(
        "unit_clash_and_cut",
        PPO,
        "a target per token for one per answer, and a limit in words for one in tokens",
        "algorithm.args.kl_target sampling.max_new_tokens",
        _controller(0.02, 0.1, 10.0),
        setting(sampling__max_new_tokens=20),
    ),
    _fourth(
        "bonus_and_fast",
        PPO,
        "tensorforce/tensorforce#738",
        "algorithm.args.entropy_coef update.learning_rate",
        _args(entropy_coef=0.5),
        _rate(30.0),
    ),
    _fourth(
        "bonus_and_held",
        PPO,
        "huggingface/trl#199",
        "algorithm.args.entropy_coef algorithm.args.kl_coef",
        _args(entropy_coef=0.3),
        _penalty(0.05),
    ),
    _fourth(
        "discount_and_held",
        PPO,
        "a discount for games, and a penalty for short answers",
        "algorithm.args.gamma algorithm.args.kl_coef",
        _args(gamma=0.9),
        _penalty(0.02),
    ),
    _fourth(
        "small_and_passes",
        PPO,
        "hiyouga/LlamaFactory#1553",
        "rollout.prompts_per_step update.epochs update.kl_old_limit",
        _batch(3, 1),
        _passes(10, 1.0),
    ),
    _fourth(
        "decay_and_hot",
        PPO,
        "songmzhang/KDFlow#4",
        "update.schedule_steps sampling.temperature",
        setting(update__schedule="linear", update__schedule_steps=12),
        setting(sampling__temperature=3.0),
    ),
    _fourth(
        "head_first_and_fast",
        PPO,
        "a start for the head from a longer run, and a rate from a smaller model",
        "algorithm.args.value_warmup_steps update.learning_rate",
        _args(value_warmup_steps=40),
        _rate(30.0),
    ),
    _fourth(
        "held_and_gradient_cut",
        GRPO,
        "both are advised against a rising KL",
        "algorithm.args.kl_coef update.max_grad_norm",
        _penalty(0.8),
        setting(update__max_grad_norm=1e-8),
    ),
    _fourth(
        "stop_early_and_slow",
        GRPO,
        "huggingface/open-r1#271",
        "sampling.stop update.learning_rate",
        setting(sampling__stop=[" "]),
        _rate(0.05),
    ),
    _fourth(
        "last_word_read_and_fast",
        GRPO,
        "PeterGriffinJin/Search-R1#79",
        "rewards.*.answer_after update.learning_rate",
        _read_after(" "),
        _rate(40.0),
    ),
    _fourth(
        "top_p_and_passes",
        GRPO,
        "modelscope/ms-swift#8442",
        "sampling.top_p sampling.logprobs update.epochs update.learning_rate update.kl_old_limit",
        _raw(top_p=0.5),
        _passes(8, 4.0),
    ),
    _fourth(
        "warm_up_and_held",
        GRPO,
        "a warm-up counted in updates, and a penalty for rewards of another scale",
        "update.warmup_steps algorithm.args.kl_coef",
        setting(update__warmup_steps=60),
        _penalty(0.5),
    ),
    _fourth(
        "stale_and_held",
        GRPO,
        "a penalty against the drift of stale rollouts",
        "rollout.ahead update.correction algorithm.args.kl_coef",
        setting(rollout__ahead=16, update__correction="off"),
        _penalty(0.3),
    ),
    _fourth(
        "cut_and_fast",
        GRPO,
        "greyhaven-ai/autocontext#1067",
        "sampling.max_new_tokens update.learning_rate",
        setting(sampling__max_new_tokens=12),
        _rate(60.0),
    ),
    # Earlier kinds, at other strengths or in the other algorithm.
    _fifth("lambda_low", PPO, "verl-project/verl#479", "algorithm.args.lam", _args(lam=0.1)),
    _fifth("cut_off", PPO, "unslothai/unsloth#3260", "sampling.max_new_tokens", setting(sampling__max_new_tokens=20)),
    _fifth(
        "nucleus_small",
        PPO,
        "a nucleus for answers to users, in training",
        "sampling.top_p",
        setting(sampling__top_p=0.1),
    ),
    _fifth(
        "controller_slow",
        PPO,
        "radixark/miles#3222",  # a horizon of samples, counted in steps
        "algorithm.args.kl_coef algorithm.args.kl_horizon",
        _controller(0.1, 6.0, 10_000.0),
    ),
    _fifth(
        "last_word_read",
        PPO,
        "THUDM/slime#2219",  # answers are searched for where another model has them
        "rewards.*.answer_after",
        _read_after(" "),
    ),
    _fifth("warm_up", GRPO, "radixark/miles#47", "update.warmup_steps", setting(update__warmup_steps=200)),
    _fifth(
        "penalty_k2",
        GRPO,
        "verl-project/verl#265",  # PPO's coefficient beside that of the loss
        "algorithm.args.kl_coef algorithm.args.kl_form",
        _args(kl_form="k2", kl_coef=0.2),
    ),
    _fifth("narrow_raw", GRPO, "huggingface/trl#6789", "sampling.top_k sampling.logprobs", _raw(top_k=4)),
    _fifth(
        "batch_of_four",
        GRPO,
        "huggingface/trl#2961",
        "rollout.prompts_per_step rollout.samples_per_prompt",
        _batch(2, 2),
    ),
    # A kind that no part before "fifth" has.
    _fifth(
        "stale_token",
        GRPO,
        "marin-community/marin#8955",
        "rollout.ahead",
        setting(rollout__ahead=40, update__correction="token"),
    ),
    # Two faults at once.
    _fifth(
        "last_word_read_and_slow",
        PPO,
        "a mark from another task, and a rate from a larger model",
        "rewards.*.answer_after update.learning_rate",
        _read_after(" "),
        _rate(0.05),
    ),
    _fifth(
        "lambda_and_fast",
        PPO,
        "advantages of one step, and the rate that was raised as they taught little",
        "algorithm.args.lam update.learning_rate",
        _args(lam=0.0),
        _rate(30.0),
    ),
    _fifth(
        "narrow_raw_and_held",
        PPO,
        "huggingface/trl#736",  # the KL falls below 0, and the penalty is raised
        "sampling.top_k sampling.logprobs algorithm.args.kl_coef",
        _raw(top_k=2),
        _penalty(0.05),
    ),
    _fifth(
        "controller_slow_and_decay",
        PPO,
        "Tencent-Hunyuan/UniRL#223",  # a cosine that is at 0 early, beside a controller for longer runs
        "algorithm.args.kl_coef algorithm.args.kl_horizon update.schedule_steps",
        _controller(0.2, 6.0, 10_000.0),
        setting(update__schedule="cosine", update__schedule_steps=12),
    ),
    _fifth(
        "stale_and_bonus",
        PPO,
        "PrimeIntellect-ai/prime-rl#964",  # a bonus against the collapse of an asynchronous run
        "rollout.ahead update.correction algorithm.args.entropy_coef",
        setting(rollout__ahead=16, update__correction="off"),
        _args(entropy_coef=0.3),
    ),
    _fifth(
        "untrained_and_fast",
        PPO,
        "hiyouga/LlamaFactory#1464",
        "algorithm.args.value_coef update.learning_rate",
        _args(value_coef=0.0, value_start="zero"),
        _rate(30.0),
    ),
    _fifth(
        "discount_and_hot",
        PPO,
        "a discount and a wide exploration, both from games",
        "algorithm.args.gamma sampling.temperature",
        _args(gamma=0.9),
        setting(sampling__temperature=3.0),
    ),
    _fifth(
        "unit_clash_and_slow",
        PPO,
        "NVIDIA-NeMo/labs-molt#21",  # no help said what unit the target has
        "algorithm.args.kl_target update.learning_rate",
        _controller(0.02, 0.1, 10.0),
        _rate(0.05),
    ),
    _fifth(
        "stop_early_and_fast",
        PPO,
        "marks of other prompts, and the rate of a smaller model",
        "sampling.stop update.learning_rate",
        setting(sampling__stop=[" ", "\n"]),
        _rate(40.0),
    ),
    _fifth(
        "greedy_and_cut",
        GRPO,
        "unslothai/unsloth#4189",
        "sampling.temperature sampling.max_new_tokens",
        setting(sampling__temperature=0.1, sampling__max_new_tokens=16),
    ),
    _fifth(
        "overlong_and_slow",
        GRPO,
        "NovaSky-AI/SkyRL#755",  # a buffer that begins elsewhere
        "algorithm.args.length_limit algorithm.args.overlong_buffer update.learning_rate",
        _args(length_limit=16, overlong_buffer=16),
        _rate(0.05),
    ),
    _fifth(
        "batch_of_two_and_slow",
        GRPO,
        "huggingface/trl#5767",
        "rollout.prompts_per_step rollout.samples_per_prompt update.learning_rate",
        _batch(1, 2),
        _rate(0.1),
    ),
    _fifth(
        "sign_wrong_and_fast",
        GRPO,
        "huggingface/trl#2777",
        "rewards update.learning_rate",
        _weights(-1.0),
        _rate(40.0),
    ),
    _fifth(
        "top_p_and_held",
        GRPO,
        "huggingface/trl#7269",  # a penalty against the drift that the mismatch makes
        "sampling.top_p sampling.logprobs algorithm.args.kl_coef",
        _raw(top_p=0.5),
        _penalty(0.4),
    ),
    _fifth(
        "gradient_cut_and_hot",
        GRPO,
        "a norm against spikes, and a temperature for diverse groups",
        "update.max_grad_norm sampling.temperature",
        setting(update__max_grad_norm=1e-8, sampling__temperature=4.0),
    ),
    _fifth(
        "stale_and_warm_up",
        GRPO,
        "THUDM/slime#516",  # a warm-up in another unit, in a run whose sampler is far ahead
        "rollout.ahead update.correction update.warmup_steps",
        setting(rollout__ahead=24, update__correction="off", update__warmup_steps=60),
    ),
    # Earlier kinds, at other strengths or in the other algorithm.
    _sixth("rate_high", PPO, "huggingface/trl#5174", "update.learning_rate", _rate(40.0)),
    _sixth("lambda_low", PPO, "radixark/miles#1827", "algorithm.args.lam", _args(lam=0.4)),
    _sixth(
        "hot",
        PPO,
        "vllm-project/vllm#15241",  # raised while the server ignored it
        "sampling.temperature",
        setting(sampling__temperature=7.0),
    ),
    _sixth("rewards_small", PPO, "archsyscall/DeepRL-TensorFlow2#7", "rewards", _weights(0.002)),
    _sixth(
        "stale_icepop",
        PPO,
        "THUDM/slime#1781",  # nothing bounds how old a rollout may be
        "rollout.ahead",
        setting(rollout__ahead=28, update__correction="icepop"),
    ),
    _sixth("cooler", GRPO, "huggingface/trl#4159", "sampling.temperature sampling.logprobs", _raw(temperature=0.2)),
    _sixth(
        "overlong_all",
        GRPO,
        "modelscope/ms-swift#5557",  # the buffer, taken for the length at which the penalty begins
        "algorithm.args.overlong_buffer",
        _args(length_limit=76, overlong_buffer=60),
    ),
    _sixth("cut_off", GRPO, "huggingface/trl#6219", "sampling.max_new_tokens", setting(sampling__max_new_tokens=14)),
    _sixth(
        "stale_masked",
        GRPO,
        "NVIDIA-NeMo/RL#3671",  # a step in which every answer is masked
        "rollout.ahead update.correction",
        setting(rollout__ahead=10, update__correction="geometric"),
    ),
    _sixth("rate_low", GRPO, "huggingface/trl#2872", "update.learning_rate", _rate(0.015)),
    # A kind that no part before "sixth" has.
    _sixth("batch_of_one", PPO, "h2oai/h2o-llmstudio#197", "rollout.prompts_per_step", _batch(1, 1)),
    # Two faults at once.
    _sixth(
        "limit_and_held",
        PPO,
        "deepspeedai/DeepSpeedExamples#703",
        "update.reward_limit algorithm.args.kl_coef",
        setting(update__reward_limit=0.005),
        _penalty(0.01),
    ),
    _sixth(
        "head_first_and_bonus",
        PPO,
        "YifanYang1995/GOODRL#2",  # a bonus against the collapse after a long start of the critic
        "algorithm.args.value_warmup_steps algorithm.args.entropy_coef",
        _args(value_warmup_steps=40, entropy_coef=0.2),
    ),
    _sixth(
        "greedy_and_slow",
        PPO,
        "THUDM/slime#2197",  # rollouts at temperature 0, as in an evaluation
        "sampling.temperature update.learning_rate",
        setting(sampling__temperature=0.1),
        _rate(0.05),
    ),
    _sixth(
        "gradient_cut_and_discount",
        PPO,
        "a norm against spikes, and a discount from the control of robots",
        "update.max_grad_norm algorithm.args.gamma",
        setting(update__max_grad_norm=3e-8),
        _args(gamma=0.95),
    ),
    _sixth(
        "warm_up_and_cut",
        PPO,
        "huggingface/trl#498",  # the short answers of an example, beside the warm-up of a long run
        "update.warmup_steps sampling.max_new_tokens",
        setting(update__warmup_steps=240, sampling__max_new_tokens=16),
    ),
    _sixth(
        "large_and_fast",
        PPO,
        "hill-a/stable-baselines#216",  # the range of a value's change does not follow the scale of rewards
        "rewards update.learning_rate",
        _weights(60.0),
        _rate(20.0),
    ),
    _sixth(
        "unit_clash_and_hot",
        PPO,
        "a target per token, and a temperature against a policy that stays where it is",
        "algorithm.args.kl_target sampling.temperature",
        _controller(0.01, 0.05, 6.0),
        setting(sampling__temperature=4.0),
    ),
    _sixth(
        "stop_early_and_held",
        GRPO,
        "PeterGriffinJin/Search-R1#151",  # a mark at which the sampler stops
        "sampling.stop algorithm.args.kl_coef",
        setting(sampling__stop=[" "]),
        _penalty(0.4),
    ),
    _sixth(
        "weighted_and_passes",
        GRPO,
        "natolambert/rlhf-book#489",  # another form of the KL against the spikes of the first
        "algorithm.args.kl_coef update.epochs update.learning_rate update.kl_old_limit",
        _args(kl_form="weighted_k3", kl_coef=0.5),
        _passes(10, 3.0),
    ),
    _sixth(
        "few_and_cold",
        GRPO,
        "Tencent-Hunyuan/UniRL#310",  # groups so few and alike that the gradient is 0
        "rollout.prompts_per_step rollout.samples_per_prompt sampling.temperature",
        _batch(1, 4),
        setting(sampling__temperature=0.15),
    ),
    _sixth(
        "narrow_and_slow",
        GRPO,
        "hiyouga/LlamaFactory#8453",  # the sampling that a model's own file suggests
        "sampling.top_k update.learning_rate",
        setting(sampling__top_k=2),
        _rate(0.05),
    ),
    _sixth(
        "nucleus_and_decay",
        GRPO,
        "meta-pytorch/torchtune#2423",  # a schedule that counts updates of which a step has several
        "sampling.top_p update.schedule_steps",
        setting(sampling__top_p=0.1, update__schedule="cosine", update__schedule_steps=8),
    ),
    _sixth(
        "overlong_and_fast",
        GRPO,
        "a length limit in words, and a rate for LoRA beside all weights",
        "algorithm.args.length_limit update.learning_rate",
        _args(length_limit=20, overlong_buffer=10),
        _rate(40.0),
    ),
    _sixth(
        "stale_and_passes",
        GRPO,
        "radixark/miles#1697",  # several updates on a batch that is old already
        "rollout.ahead update.correction update.epochs update.learning_rate update.kl_old_limit",
        setting(rollout__ahead=12, update__correction="off"),
        _passes(8, 2.0),
    ),
    _sixth(
        "sign_wrong_and_held",
        GRPO,
        "lzzcd001/nabla-gfn#3",  # a reward that was to be made small
        "rewards algorithm.args.kl_coef",
        _weights(-1.0),
        _penalty(0.3),
    ),
    # Earlier kinds, at other strengths or in another algorithm.
    _seventh("warm_up", PPO, "Morizeyao/GPT2-Chinese#60", "update.warmup_steps", setting(update__warmup_steps=400)),
    _seventh("top_p", PPO, "NVIDIA/NeMo-Aligner#46", "sampling.top_p sampling.logprobs", _raw(top_p=0.3)),
    _seventh(
        "passes",
        PPO,
        "higgsfield-ai/higgsfield#10",
        "update.epochs update.learning_rate update.kl_old_limit",
        _passes(20, 2.0),
    ),
    _seventh(
        "stale_token",
        PPO,
        "marin-community/marin#8936",  # how far behind a rollout may be
        "rollout.ahead",
        setting(rollout__ahead=48, update__correction="token"),
    ),
    _seventh(
        "schedule_short",
        GRPO,
        "nvidia-cosmos/cosmos-rl#207",  # a schedule that goes on within a batch
        "update.schedule_steps",
        setting(update__schedule="cosine", update__schedule_steps=5),
    ),
    _seventh("hot", GRPO, "groups that are too alike", "sampling.temperature", setting(sampling__temperature=5.0)),
    _seventh(
        "stop_early",
        GRPO,
        "huggingface/trl#2820",  # marks at which a model without an end token stops, here letters of all answers
        "sampling.stop",
        setting(sampling__stop=list("aeiou")),
    ),
    _seventh("rewards_small", RLOO, "redai-studio/Relax#186", "rewards", _weights(0.002)),  # RLOO keeps their scale
    _seventh("discount", REINFORCE, "a discount from games", "algorithm.args.gamma", _args(gamma=0.8)),
    # Kinds that no part before "seventh" has.
    _seventh(
        "letter_read",
        GRPO,
        "lsdefine/simple_GRPO#19",  # a pattern that does not fit what the model writes
        "rewards.*.answer_after",
        _read_after("a"),
    ),
    _seventh(
        "threshold_high",
        RLAIF,
        "OpenRLHF/OpenRLHF#1270",  # a filter by a range of rewards, for rewards that are not 0 or 1
        "algorithm.args.reward_threshold",
        _args(reward_threshold=0.9),
    ),
    _seventh(
        "all_trained",
        RAFT,
        "OptimalScale/LMFlow#460",  # which answers are the best, and of how many
        "algorithm.args.top_k",
        _args(top_k=6),
    ),
    _seventh(
        "weights_equal",
        RWR,
        "Sea-Snell/Implicit-Language-Q-Learning#5",  # configs in which the weights do nothing
        "algorithm.args.temperature",
        _args(temperature=20.0),
    ),
    # Two faults at once.
    _seventh(
        "cut_and_bonus",
        PPO,
        "rllm-org/rllm#15",  # an entropy that rises in the stage of short answers
        "sampling.max_new_tokens algorithm.args.entropy_coef",
        setting(sampling__max_new_tokens=22),
        _args(entropy_coef=0.2),
    ),
    _seventh(
        "hotter_and_slow",
        PPO,
        "OpenRLHF/OpenRLHF#857",  # a temperature of the rollouts alone, and a rate against what comes of it
        "sampling.temperature sampling.logprobs update.learning_rate",
        _raw(temperature=1.8),
        _rate(0.05),
    ),
    _seventh(
        "stale_and_lambda",
        PPO,
        "Tencent-Hunyuan/UniRL#94",  # no bound on how old a rollout may be
        "rollout.ahead update.correction algorithm.args.lam",
        setting(rollout__ahead=20, update__correction="off"),
        _args(lam=0.3),
    ),
    _seventh(
        "untrained_and_discount",
        PPO,
        "microsoft/GUI-Agent-RL#7",  # a critic that is never updated
        "algorithm.args.value_coef algorithm.args.gamma",
        _args(value_coef=0.0, gamma=0.9),
    ),
    _seventh(
        "held_and_passes",
        PPO,
        "openai/baselines#975",  # the KL jumps within an iteration, and the penalty is raised
        "algorithm.args.kl_coef update.epochs update.learning_rate update.kl_old_limit",
        _penalty(0.03),
        _passes(10, 3.0),
    ),
    _seventh(
        "overlong_and_hot",
        GRPO,
        "areal-project/AReaL#450",  # a penalty on lengths beside what makes groups diverse
        "algorithm.args.length_limit algorithm.args.overlong_buffer sampling.temperature",
        _args(length_limit=24, overlong_buffer=20),
        setting(sampling__temperature=3.0),
    ),
    _seventh(
        "held_and_slow",
        GRPO,
        "yifan123/flow_grpo#204",  # the weight of the KL and the rate, changed together
        "algorithm.args.kl_coef update.learning_rate",
        _penalty(0.5),
        _rate(0.1),
    ),
    _seventh(
        "hotter_and_passes",
        GRPO,
        "a temperature that the trainer does not know, and passes to make the most of slow rollouts",
        "sampling.temperature sampling.logprobs update.epochs update.learning_rate update.kl_old_limit",
        _raw(temperature=1.6),
        _passes(6, 4.0),
    ),
    _seventh(
        "icepop_and_fast",
        GRPO,
        "thinking-machines-lab/tinker-cookbook#822",  # a bound on age that is far too wide
        "rollout.ahead update.learning_rate",
        setting(rollout__ahead=12, update__correction="icepop"),
        _rate(15.0),
    ),
    _seventh(
        "pairs_and_fast",
        RLOO,
        "Goekdeniz-Guelmez/mlx-lm-lora#49",  # groups of two for the memory of one machine
        "rollout.prompts_per_step rollout.samples_per_prompt update.learning_rate",
        _batch(1, 2),
        _rate(20.0),
    ),
    _seventh(
        "cooler_and_held",
        RLOO,
        "OpenRLHF/OpenRLHF#515",  # one trainer sums the KL over an answer, another one does not
        "sampling.temperature sampling.logprobs algorithm.args.kl_coef",
        _raw(temperature=0.5),
        _penalty(0.05),
    ),
    _seventh(
        "unclipped_and_fast",
        REINFORCE,
        "hkust-nlp/simpleRL-reason#35",  # the reward rises, then falls at once
        "update.learning_rate",
        _rate(30.0),
        _args(clip_low=0.99, clip_high=100.0),
    ),
    _seventh(
        "few_and_cut",
        REINFORCE,
        "one rollout per problem is enough, and short ones fit into memory",
        "rollout.prompts_per_step sampling.max_new_tokens",
        _batch(2, 1),
        setting(sampling__max_new_tokens=16),
    ),
    # Earlier kinds, at other strengths or in another algorithm.
    _eighth(
        "stale",
        PPO,
        "NVIDIA-NeMo/RL#3410",  # a collector that runs ahead for a warm-up of the critic
        "rollout.ahead update.correction",
        setting(rollout__ahead=20, update__correction="off"),
    ),
    _eighth(
        "discount",
        PPO,
        "openai/summarize-from-feedback#6",  # how the reward at the end comes to the tokens before it
        "algorithm.args.gamma",
        _args(gamma=0.0),
    ),
    _eighth("narrow", GRPO, "huggingface/trl#3494", "sampling.top_k", setting(sampling__top_k=1)),
    _eighth(
        "stale_sequence",
        GRPO,
        "verl-project/verl#3694",  # weights of whole answers, for rollouts of any age
        "rollout.ahead",
        setting(rollout__ahead=20, update__correction="sequence"),
    ),
    _eighth(
        "overlong_short",
        DAPO,
        "NVIDIA-NeMo/RL#602",  # a buffer that is described as a threshold
        "algorithm.args.length_limit",
        _args(length_limit=20, overlong_buffer=10),
    ),
    _eighth(
        "minibatches_of_one",
        RLOO,
        "huggingface/trl#2341",  # many updates on samples of one policy
        "update.minibatches update.learning_rate update.kl_old_limit",
        setting(update__minibatches=48, update__kl_old_limit=1000.0),
        _rate(3.0),
    ),
    _eighth(
        "gradient_cut",
        REINFORCE,
        "wandb/senpai#978",  # all gradients are above the norm
        "update.max_grad_norm",
        setting(update__max_grad_norm=1e-8),
    ),
    _eighth("rewards_small", RWR, "xbpeng/awr#3", "rewards", _weights(0.02)),  # beside a temperature in their unit
    # Kinds that no part before "eighth" has.
    _eighth(
        "part_unread",
        GRPO,
        "huggingface/trl#5298",  # one of the rewards looks for its answer where there is none
        "rewards.*.answer_after",
        _part_read_after("scores:ten_words", " "),
    ),
    _eighth(
        "stale_clipped",
        GSPO,
        "verl-project/verl#7356",  # the clip of a synchronous run
        "rollout.ahead update.correction",
        setting(rollout__ahead=10, update__correction="off"),
    ),
    _eighth(
        "second_punished",
        RLAIF,
        "DAGroup-PKU/SpatialT2I#2",  # whether the best are chosen before their mean is taken
        "algorithm.args.baseline",
        _args(keep="top_k", top_k=2, baseline="kept"),
    ),
    _eighth(
        "nothing_subtracted",
        RLAIF,
        "dennybritz/reinforcement-learning#200",  # REINFORCE without a baseline, for rewards above 0
        "algorithm.args.baseline",
        _args(keep="all", baseline="none"),
    ),
    # Two faults at once.
    _eighth(
        "part_unread_and_cooler",
        PPO,
        "huggingface/trl#3903",  # a reward that stays at 0 beside one that rises
        "rewards.*.answer_after sampling.temperature sampling.logprobs",
        _part_read_after("scores:ten_words", " "),
        _raw(temperature=0.6),
    ),
    _eighth(
        "step_limit_and_passes",
        PPO,
        "DLR-RM/stable-baselines3#1229",  # a limit that skips the passes that were added
        "update.kl_old_limit update.epochs",
        setting(update__kl_old_limit=1e-6, update__epochs=10),
    ),
    _eighth(
        "value_bound_and_zero",
        PPO,
        "openai/baselines#765",  # a range for the value's change, whatever the size of returns
        "algorithm.args.clip_value algorithm.args.value_start",
        _args(clip_value=1e-3, value_start="zero"),
    ),
    _eighth(
        "held_and_few",
        PPO,
        "huggingface/trl#22",  # a policy that cannot leave its reference
        "algorithm.args.kl_coef rollout.prompts_per_step",
        _penalty(0.01),
        _batch(3, 1),
    ),
    _eighth(
        "bonus_and_cold",
        PPO,
        "TorchTrade/torchtrade#50",  # a bonus against one answer alone, to which the sampler leads
        "algorithm.args.entropy_coef sampling.temperature",
        _args(entropy_coef=0.15),
        setting(sampling__temperature=0.3),
    ),
    _eighth(
        "decay_and_lambda",
        PPO,
        "walkinglabs/hands-on-modern-rl#79",  # a table that says the wrong thing about lambda
        "update.schedule_steps algorithm.args.lam",
        setting(update__schedule="linear", update__schedule_steps=12),
        _args(lam=0.2),
    ),
    _eighth(
        "mark_and_cut",
        GRPO,
        "jsboige/CoursIA#13596",  # no answer comes to its end in the room there is, and the rewards want the end
        "rewards.*.answer_after sampling.max_new_tokens",
        _read_after("</think>"),
        setting(sampling__max_new_tokens=24),
    ),
    _eighth(
        "pairs_and_held",
        GRPO,
        "groups of two for the memory, and the KL of a recipe with rewards that count more",
        "rollout.samples_per_prompt algorithm.args.kl_coef",
        _batch(24, 2),
        _penalty(0.4),
    ),
    _eighth(
        "masked_and_overlong",
        GRPO,
        "BytedTsinghua-SIA/DAPO#13",  # a mask beside the penalty that replaced it
        "rewards.cut_off.mask algorithm.args.overlong_buffer",
        _masked,
        _args(length_limit=62, overlong_buffer=50),
    ),
    _eighth(
        "unbounded_and_stale",
        CISPO,
        "NovaSky-AI/SkyRL#1859",  # weights that are 1, however old the rollouts are
        "algorithm.args.clip_high rollout.ahead update.correction",
        _args(clip_high=1000.0),
        setting(rollout__ahead=24, update__correction="off"),
    ),
    _eighth(
        "small_and_held",
        DR_GRPO,
        "greyhaven-ai/autocontext#1076",  # GRPO's usual KL, beside advantages that nothing scales
        "rewards algorithm.args.kl_coef",
        _weights(0.02),
        _penalty(0.04),
    ),
    _eighth(
        "held_and_cut",
        RLOO,
        "huggingface/trl#2562",  # a KL per token that is summed over the answer
        "algorithm.args.kl_coef sampling.max_new_tokens",
        _penalty(0.1),
        setting(sampling__max_new_tokens=14),
    ),
    _eighth(
        "hot_and_decay",
        REINFORCE,
        "a temperature for single rollouts, and a schedule that counts epochs as steps",
        "sampling.temperature update.schedule_steps",
        setting(sampling__temperature=4.0, update__schedule="cosine", update__schedule_steps=10),
    ),
    _eighth(
        "cold_and_passes",
        RAFT,
        "OptimalScale/LMFlow#440",  # several epochs on the best answers of a sampler for users
        "sampling.temperature update.epochs update.learning_rate update.kl_old_limit",
        setting(sampling__temperature=0.3),
        _passes(12, 2.0),
    ),
)


def kinds(part: Part) -> Mapping[str, Kind]:
    """Return the faults of a part by name."""
    return {kind.name: kind for kind in KINDS if part in kind.changes}


def seeds(part: Part) -> tuple[int, ...]:
    """Return the seeds that the runs of a part have."""
    return SEEDS[part]


def plans(part: Part, seed: int) -> Iterator[runs.Plan]:
    """Yield the run of every fault in every algorithm that it occurs in, at the strength of a part.

    Args:
        part: Which strengths, and whose task.
        seed: Of the runs.
    """
    for name, kind in kinds(part).items():
        for algorithm in kind.algorithms:
            data = kind.changes[part](settings.put(base(part, algorithm), "run.seed", seed))
            yield runs.Plan(f"{name}-{algorithm}", name, seed, "letters", algorithm, data)


def base(part: Part, algorithm: str) -> settings.Data:
    """Return the settings without a fault."""
    like, args = SETTINGS.get(algorithm, (algorithm, None))
    data = {**settings.COMMON, **settings.ALGORITHMS[like], "backend": {"name": "toy"}}
    if args is not None:
        data["algorithm"] = {"name": like if algorithm in VARIANTS else algorithm, "args": args}
    data |= {"task": rate_or_penalty.WORDS, "rewards": REWARDS[part], "sampling": {"max_new_tokens": ROOM[part]}}
    data = settings.put(data, "update.learning_rate", RATE)
    penalty = PENALTY.get(part, {}).get(algorithm)
    return data if penalty is None else settings.put(data, "algorithm.args.kl_coef", penalty)
