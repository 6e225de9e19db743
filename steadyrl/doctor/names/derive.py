"""What a trainer's config says in canonical settings, and what follows from it and from the columns, by its table.

Trackers keep settings as text ("0.9", "True", "None"); an absent and a None setting are both unknown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from steadyrl.doctor.names.table import Config, Table
from steadyrl.doctor.readers.spelling import typed
from steadyrl.doctor.series import RawLog

NUMBERS = frozenset(
    "temperature top_p top_k max_new_tokens learning_rate warmup_steps epochs minibatches batch_size "
    "samples_per_prompt clip kl_coef kl_target kl_horizon entropy_coef max_grad_norm vocabulary steps ahead "
    "reward_target kl_ref_target kl_old_limit reward_limit solved".split()
)
# k3 is never negative but for the rounding of bfloat16; below this it was not k3.
K3_ROUNDING = -0.01


def first(config: Config, keys: str) -> Any:
    """Return the value of the first key of "a|b|c" that is set, or None."""
    values = (typed(config.get(key)) for key in keys.split("|"))
    return next((value for value in values if value is not None), None)


def number(config: Config, keys: str) -> float | None:
    """Return the first of "a|b" that is set to a number, or None; a truth value is no number."""
    value = first(config, keys)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def settings(table: Table, config: Config, log: RawLog) -> dict[str, Any]:
    """Return the canonical settings of a trainer's config."""
    canonical = {**table.facts, **_set_keys(config, table.keys)}
    algorithm_name = algorithm(table, config, log)
    derived = {**_computed(table, config, canonical), **_kl_place(table, config, log, canonical, algorithm_name)}
    if table.schedule:  # of transformers' Trainer: the steps that are planned, and of the warm-up a number, no share
        warmup, steps = number(config, "warmup_steps"), number(config, "max_steps")
        is_share = (warmup and warmup < 1) or (not warmup and number(config, "warmup_ratio"))
        derived["warmup_steps"] = None if is_share else warmup
        derived["steps"] = canonical.get("steps", steps if steps and steps > 0 else None)
    top_p, top_k = canonical.get("top_p"), canonical.get("top_k")
    if table.tempered and _logs(log, table.tempered) and (top_p is not None or top_k):
        # Its logits are divided by the temperature, and it knows nothing of top-p and top-k. Without truncation that is
        # the distribution that was sampled from; where the log does not say, nothing is said.
        derived["logprobs"] = "tempered" if top_k or (top_p is not None and top_p < 1) else "sampled"
    if table.whitened_ppo and algorithm_name == "ppo":
        derived["whitened"] = canonical.get("whitened", True)
    return {**canonical, **_without_none(derived)}


def algorithm(table: Table, config: Config, log: RawLog) -> str:
    """Return the algorithm of a run, by the first of the table's rules that tells it; "" where none does."""
    for rule in table.algorithm:
        words, value = rule.get("words", {}), first(config, rule.get("key", ""))
        if name := words.get(str(value), words.get("*")) if value is not None else None:
            # The name of a class of the user's own follows its module.
            return re.split(r"[:.]", str(value))[-1].lower() if name == "*" else str(name)
        if "name" in rule and _logs(log, rule.get("column", "*")):
            return str(rule["name"])
    return ""


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


def _set_keys(config: Config, keys: Mapping[str, str]) -> dict[str, Any]:
    """Return the canonical settings that are set, from {canonical: "their key|another spelling"}.

    What should be a number and is none (a list, "auto") is left out: a check could do nothing with it.
    """
    picked = _without_none({name: (number if name in NUMBERS else first)(config, key) for name, key in keys.items()})
    if "top_k" in picked:  # vLLM spells "keep all" as -1
        picked["top_k"] = max(picked["top_k"], 0)
    if picked.get("warmup_steps", 0) < 0:  # verl leaves it to a ratio so
        del picked["warmup_steps"]
    return picked


def _without_none(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _logs(log: RawLog, column: str) -> bool:
    """Return whether a log has a column, whatever a tracker put before its name; "*" is any."""
    return column == "*" or any(name == column or name.endswith(f"/{column}") for name in log.columns)


def _computed(table: Table, config: Config, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what follows from several numbers; None is unknown.

    A product is of settings; a quotient is of the first by the product of the others, of which only the first has to be
    known, and at least 1. Each is a canonical name or one of the trainer's keys.
    """
    counts: dict[str, Any] = {}

    def value(name: str) -> float | None:
        canonical = settings.get(name, counts.get(name))
        return number(config, name) if canonical is None else canonical

    for name, factor_names in table.products.items():
        factors = [value(factor) for factor in factor_names]
        counts[name] = None if None in factors else int(math.prod(factors))  # type: ignore[arg-type]
    for name, (dividend, first_divisor, *divisors) in table.quotients.items():
        total = value(dividend)
        size = (value(first_divisor) or 0) * math.prod(value(divisor) or 1 for divisor in divisors)
        counts[name] = max(int(total // size), 1) if total is not None and size else None
    for name, key in table.positive.items():
        limit = number(config, key)
        counts[name] = None if limit is None else limit > 0
    return counts


def _kl_place(table: Table, config: Config, log: RawLog, settings: Mapping[str, Any], algorithm: str) -> dict[str, Any]:
    """Return where the KL is paid and what it costs; a log without a config shows the place by its metrics."""
    rule = table.kl
    switches = {place: first(config, switch) for place, switch in rule.get("switches", {}).items()}
    logged = {place for place, names in rule.get("shown", {}).items() if not log.columns.keys().isdisjoint(names)}
    place = next((place for place, is_on in switches.items() if is_on or (is_on is None and place in logged)), None)
    if place is None and switches and None not in switches.values():
        place = rule.get("otherwise")
    place = place or rule.get("by_algorithm", {}).get(algorithm) or settings.get("kl_place")
    derived = {"kl_place": place, **rule.get("facts", {}).get(place, {})}
    if rule.get("target") in config:
        derived["kl_adaptive"] = "kl_target" in settings
    kind = first(config, rule.get("kind", ""))
    if kind is not None and place in ("reward", None):
        derived["kl_adaptive"] = kind == "adaptive"
    return derived | _set_keys(config, table.place_keys.get(str(place), {}))
