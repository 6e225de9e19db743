"""What follows from a trainer's settings and columns, by its table; and the few rules that no table can hold."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from steadyrl.doctor.names.settings import Config, first, known, number, pick, quotient
from steadyrl.doctor.names.table import Table
from steadyrl.doctor.series import RawLog

# Of our own algorithms.
KL_PLACES = {"ppo": "reward", "rloo": "reward", "reinforce": "reward", "grpo": "loss", "rlaif": "loss"}
VERL, VERL_CONTROL = "actor_rollout_ref.actor", "algorithm.kl_ctrl"
VERL_SHOWS = {"reward": ("actor/reward_kl_penalty", "critic/kl"), "loss": ("actor/kl_loss",)}
SKYRL = "trainer.algorithm"
# k3 is never negative but for the rounding of bfloat16; below this it was not k3.
K3_ROUNDING = -0.01


Rule = Callable[[Config, RawLog, Mapping[str, Any]], dict[str, Any]]


def settings(table: Table, config: Config, log: RawLog) -> dict[str, Any]:
    """Return the canonical settings of a trainer's config."""
    found = {**table.facts, **pick(config, table.keys)}
    return {**found, **known(derived(table, config, log, found))}


def derived(table: Table, config: Config, log: RawLog, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what follows from several settings; None is unknown.

    A product is of settings; a quotient is of the first by the product of the others, of which only the first has to be
    known. Each is a canonical name or one of the trainer's keys.
    """
    more: dict[str, Any] = {}

    def value(name: str) -> float | None:
        held = found.get(name, more.get(name))
        return number(config, name) if held is None else held

    for name, several in table.products.items():
        factors = [value(one) for one in several]
        more[name] = None if None in factors else int(math.prod(factors))  # type: ignore[arg-type]
    for name, (whole, part, *others) in table.quotients.items():
        parts = value(part)
        more[name] = quotient(value(whole), parts and parts * math.prod(value(one) or 1 for one in others))
    for name, key in table.positive.items():
        size = number(config, key)
        more[name] = None if size is None else size > 0
    if table.in_loss and (in_loss := first(config, table.in_loss)) is not None:
        more["kl_place"] = "loss" if in_loss else "reward"
    if table.adapts_with in config:
        more["kl_adaptive"] = "kl_target" in found
    more |= _schedule(config, found) if table.schedule else {}
    more |= _tempered(found) if table.tempered else {}
    more |= SETTINGS_BY_HAND[table.trainer](config, log, found) if table.trainer in SETTINGS_BY_HAND else {}
    if table.whitened_ppo and algorithm(table, config, log) == "ppo":
        more["whitened"] = found.get("whitened", True)
    place = str(more.get("kl_place") or found.get("kl_place"))
    return more | pick(config, table.place_keys.get(place, {}))


def algorithm(table: Table, config: Config, log: RawLog) -> str:
    """Return the algorithm of a run; "" where nothing tells."""
    if table.trainer == "steadyrl":
        return _own_algorithm(config)
    if table.trainer in ALGORITHM_BY_HAND and (told := ALGORITHM_BY_HAND[table.trainer](config, log)):
        return told
    rule = table.algorithm
    named = first(config, rule["key"]) if "key" in rule else None
    if named is not None:
        return str(rule.get("words", {}).get(str(named), named))
    column = rule.get("column")
    if column and any(name == column or name.endswith(f"/{column}") for name in log.columns):
        return "ppo"
    return str(rule.get("always", rule.get("otherwise", "")))


def _schedule(config: Config, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the planned and the warm-up steps, where they are numbers and not shares."""
    warmup, steps = number(config, "warmup_steps"), number(config, "max_steps")
    if (warmup and warmup < 1) or (not warmup and number(config, "warmup_ratio")):
        warmup = None
    return {"warmup_steps": warmup, "steps": found.get("steps", steps if steps and steps > 0 else None)}


def _tempered(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``logprobs`` of a trainer that divides logits by the temperature but knows nothing of top-p and top-k.

    Without truncation that is the distribution that was sampled from; where the log does not say, nothing is said.
    """
    top_p, top_k = found.get("top_p"), found.get("top_k")
    if (top_p is not None and top_p < 1) or top_k:
        return {"logprobs": "tempered"}
    return {"logprobs": "sampled"} if top_p is not None else {}


def _own(config: Config, log: RawLog, found: Mapping[str, Any]) -> dict[str, Any]:
    control = first(config, "algorithm.args.kl_control")
    return {
        "kl_adaptive": None if control is None else control == "adaptive",
        "kl_target_unit": "nats/sequence" if "kl_target" in found else None,
        "kl_horizon_unit": "updates" if "kl_horizon" in found else None,
        "kl_place": KL_PLACES.get(_own_algorithm(config)),
    }


def _own_algorithm(config: Config) -> str:
    """Return the short name or the class's name of the configured algorithm."""
    return re.split(r"[:.]", str(first(config, "algorithm.name") or ""))[-1].lower()


def _trl_grpo(config: Config, log: RawLog, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return whose log-probs are logged: logits are divided by the temperature since v0.16, v0.17 has these names."""
    return _tempered(found) if any(name.endswith("completions/mean_length") for name in log.columns) else {}


def _trl_grpo_algorithm(config: Config, log: RawLog) -> str:
    """Return "gspo" where ratios are taken per sequence, "cispo" with that loss, else "grpo".

    The other losses differ from GRPO's only in how they average.
    """
    if first(config, "loss_type") == "cispo" or any(name.endswith("cispo_clip_ratio") for name in log.columns):
        return "cispo"
    return "gspo" if first(config, "importance_sampling_level") == "sequence" else "grpo"


def preferred(table: Table, config: Config, log: RawLog) -> bool:
    """Return whether a table holds where another fits as well: RLOO's where GRPO's names were logged by RLOO.

    That is told by its settings, or by a KL that k3 could not have.
    """
    if table.trainer != "trl-rloo":
        return False
    if "loss_type" in config or "normalize_advantages" in config:
        return "normalize_advantages" in config
    columns = [log.columns[name] for name in ("kl", "train/kl") if name in log.columns]
    return any(bool((column.values < K3_ROUNDING).any()) for column in columns)


def _trl_ppo_algorithm(config: Config, log: RawLog) -> str:
    """Return "rloo" where no value loss is logged."""
    values = any(name.endswith("loss/value_avg") for name in log.columns)
    return "ppo" if values and first(config, "rloo_k") is None else "rloo"


def _slime(config: Config, log: RawLog, found: Mapping[str, Any]) -> dict[str, Any]:
    return {"kl_coef": number(config, "kl_loss_coef" if first(config, "use_kl_loss") else "kl_coef")}


def _skyrl(config: Config, log: RawLog, found: Mapping[str, Any]) -> dict[str, Any]:
    kind, in_reward = first(config, f"{SKYRL}.kl_ctrl.type"), first(config, f"{SKYRL}.use_kl_in_reward")
    place = "reward" if in_reward else "loss" if first(config, f"{SKYRL}.use_kl_loss") else None
    return {"kl_adaptive": None if kind is None else bool(in_reward) and kind == "adaptive", "kl_place": place}


def _verl(config: Config, log: RawLog, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return where the KL stands and what it costs; a log without a config shows the place by its metrics."""
    warmup, place = number(config, f"{VERL}.optim.lr_warmup_steps"), _verl_place(config, log)
    more = {
        "warmup_steps": warmup if warmup is not None and warmup >= 0 else None,  # -1 leaves it to a ratio
        "kl_place": place or None,
    }
    if place == "reward":
        kind = first(config, f"{VERL_CONTROL}.type")
        more |= {"kl_target_unit": "nats/token", "kl_horizon_unit": "samples"}
        more["kl_adaptive"] = None if kind is None else kind == "adaptive"
    return more | ({"kl_adaptive": False} if place == "loss" else {})


def _verl_algorithm(config: Config, log: RawLog) -> str:
    loss = first(config, f"{VERL}.policy_loss.loss_mode")
    return str(loss) if loss in ("gspo", "cispo") else ""


def _verl_place(config: Config, log: RawLog) -> str:
    """Return "reward", "loss", "none", or "" where neither config nor metrics tell."""
    told = first(config, "algorithm.use_kl_in_reward"), first(config, f"{VERL}.use_kl_loss")
    for place, switch in zip(VERL_SHOWS, told, strict=True):
        if switch or (switch is None and any(name in log.columns for name in VERL_SHOWS[place])):
            return place
    return "none" if told == (False, False) else ""


SETTINGS_BY_HAND: Mapping[str, Rule] = {
    "steadyrl": _own,
    "trl-grpo": _trl_grpo,
    "trl-async-grpo": _trl_grpo,
    "slime": _slime,
    "skyrl": _skyrl,
    "verl": _verl,
}
ALGORITHM_BY_HAND: Mapping[str, Callable[[Config, RawLog], str]] = {
    "trl-grpo": _trl_grpo_algorithm,
    "trl-async-grpo": _trl_grpo_algorithm,
    "trl-ppo": _trl_ppo_algorithm,
    "verl": _verl_algorithm,
}
