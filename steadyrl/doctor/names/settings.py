"""Reading a trainer's config into canonical settings: values as Python has them, the first of several spellings.

Trackers keep settings as text ("0.9", "True", "None"); an absent and a None setting are both unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]
NUMBERS = frozenset(
    "temperature top_p top_k max_new_tokens learning_rate warmup_steps epochs minibatches batch_size "
    "samples_per_prompt clip kl_coef kl_target kl_horizon entropy_coef max_grad_norm vocabulary steps".split()
)
WORDS = {"true": True, "false": False, "none": None, "null": None, "": None}


def typed(value: Any) -> Any:
    """Return a number or truth value where a text spells one; None for the words that mean it."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def first(config: Config, keys: str) -> Any:
    """Return the value of the first key of "a|b|c" that is set, or None."""
    for key in keys.split("|"):
        value = typed(config.get(key))
        if value is not None:
            return value
    return None


def number(config: Config, keys: str) -> float | None:
    """Return the first of "a|b" that is set to a number, or None; a truth value is no number."""
    value = first(config, keys)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def pick(config: Config, keys: Mapping[str, str]) -> dict[str, Any]:
    """Return the canonical settings that are set, from {canonical: "their key|another spelling"}.

    What should be a number and is none (a list, "auto") is left out: a check could do nothing with it.
    """
    found = {name: (number if name in NUMBERS else first)(config, theirs) for name, theirs in keys.items()}
    top_k = number(config, keys["top_k"]) if "top_k" in keys else None
    # vLLM spells "keep all" as -1.
    return known({**found, **({} if top_k is None else {"top_k": max(top_k, 0)})})


def known(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are not None."""
    return {name: value for name, value in settings.items() if value is not None}


def quotient(whole: float | None, part: float | None) -> int | None:
    """Return how many parts make the whole, at least 1, or None if either is unknown."""
    if whole is None or not part:
        return None
    return max(int(whole // part), 1)
