"""A trainer's config file as the flat settings that a log would have held."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steadyrl.core.config import Config, dump, resolve
from steadyrl.core.errors import ConfigError
from steadyrl.core.metrics import finite_number
from steadyrl.doctor.readers.spelling import flat_settings, typed

_NOT_NEGATIVE = ("0 or more", lambda number: number >= 0)
# By the last part of a setting's name, whatever the trainer: its range in words, and whether a number is in it.
_RANGES: dict[str, tuple[str, Callable[[float], bool]]] = {
    "temperature": ("more than 0", lambda number: number > 0),
    "top_p": ("more than 0 and at most 1", lambda number: 0 < number <= 1),
    "top_k": ("a number", lambda number: True),
    **dict.fromkeys(("beta", "kl_coef", "init_kl_coef", "kl_loss_coef", "kl_penalty_coef"), _NOT_NEGATIVE),
    **dict.fromkeys(("learning_rate", "lr", "max_grad_norm", "max_new_tokens"), _NOT_NEGATIVE),
}
# An evaluation or a judge may be greedy, at temperature 0; a value that a launcher fills in is not a number yet.
_NOT_THE_POLICY = re.compile(r"(^|\.)(val|eval|test|judge|reward)")
_LEFT_OPEN = re.compile(r"auto|\$\{.*")


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings of a TOML or JSON file, nested keys joined with dots.

    A config of steadyrl is completed with defaults. The config of another trainer is used as it is.

    Raises:
        ConfigError: It cannot be read, is neither TOML nor JSON with settings by name, or has a known setting that is
            no number or out of range.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the config '{path}': {error}; give a TOML or JSON file") from error
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        try:
            data = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise ConfigError(
                f"'{path}' is neither JSON nor TOML ({error}); write a YAML config as JSON and name that file"
            ) from error
    if not isinstance(data, dict):
        raise ConfigError(f"'{path}' holds {type(data).__name__}; expected a JSON object of settings by name")
    ours = path.suffix != ".json" and "task" in data and set(data) <= set(Config.model_fields)
    if ours:
        return flat_settings(dump(resolve(data)))
    settings = flat_settings(data)
    problems = [problem for name, value in settings.items() if (problem := _problem(name, value))]
    if problems:
        raise ConfigError(f"the config '{path}' cannot be right: {'; '.join(problems)}")
    return settings


def _problem(name: str, value: Any) -> str:
    """Return what is wrong with the value of a setting, "" for nothing; of a list every item is checked."""
    key = name.rpartition(".")[2]
    if key not in _RANGES or _NOT_THE_POLICY.search(name):
        return ""
    words, is_allowed = _RANGES[key]
    for item in value if isinstance(value, list) else [value]:
        number = typed(item)
        if number is None or (isinstance(number, str) and _LEFT_OPEN.fullmatch(number)):
            continue
        if isinstance(number, bool) or finite_number(number) is None:
            return f"{name} is {item!r}; expected a number"
        if not is_allowed(number):
            return f"{name} is {item!r}; expected {words}"
    return ""
